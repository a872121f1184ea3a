package gateway

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/zclconf/go-cty/cty"

	"remuda/controller/gateway/queue"
	"remuda/internal/bytesize"
	"remuda/internal/hclconfig"
)

type setting = hclconfig.Setting[Config]

// settings are all attributes that a config file may have.
var settings = []setting{
	{Name: "listen", Set: text(func(c *Config) *string { return &c.Listen })},
	{Name: "log_level", Set: text(func(c *Config) *string { return &c.LogLevel })},
	{Name: "retry_after", Set: duration(func(c *Config) *time.Duration { return &c.RetryAfter })},
	{Block: "consul", Name: "address", Set: text(func(c *Config) *string { return &c.Consul.Address })},
	{Block: "consul", Name: "token", Set: text(func(c *Config) *string { return &c.Consul.Token })},
	{Block: "consul", Name: "service", Set: text(func(c *Config) *string { return &c.Consul.Service })},
	{Block: "controller", Name: "addresses", Set: hclconfig.Texts(func(c *Config) *[]string { return &c.Controller.Addresses })},
	{Block: "controller", Name: "token", Set: text(func(c *Config) *string { return &c.Controller.Token })},
	{Block: "controller", Name: "ca_cert", Set: text(func(c *Config) *string { return &c.Controller.CACert })},
	{Block: "timeouts", Name: "header", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.Header })},
	{Block: "timeouts", Name: "body", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.Body })},
	{Block: "timeouts", Name: "keep_alive", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.KeepAlive })},
	{Block: "timeouts", Name: "write", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.Write })},
	{Block: "timeouts", Name: "connect", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.Connect })},
	{Block: "timeouts", Name: "first_byte", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.FirstByte })},
	{Block: "timeouts", Name: "stream_idle", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.StreamIdle })},
	{Block: "timeouts", Name: "engine_idle", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.EngineIdle })},
	{Block: "timeouts", Name: "lame_duck", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.LameDuck })},
	{Block: "timeouts", Name: "drain", Set: duration(func(c *Config) *time.Duration { return &c.Timeouts.Drain })},
	{Block: "limits", Name: "body", Set: size(func(c *Config) *int64 { return &c.Limits.Body })},
	{Block: "limits", Name: "header", Set: size(func(c *Config) *int64 { return &c.Limits.Header })},
	{Block: "limits", Name: "buffered", Set: size(func(c *Config) *int64 { return &c.Limits.Buffered })},
	{Block: "routing", Name: "grace", Set: duration(func(c *Config) *time.Duration { return &c.Routing.Grace })},
	{Block: "routing", Name: "suspect", Set: duration(func(c *Config) *time.Duration { return &c.Routing.Suspect })},
	{Block: "routing", Name: "suspect_max", Set: duration(func(c *Config) *time.Duration { return &c.Routing.SuspectMax })},
	{Block: "routing", Name: "imbalance_factor", Set: hclconfig.Float(func(c *Config) *float64 { return &c.Routing.ImbalanceFactor })},
	{Block: "routing", Name: "imbalance_slack", Set: hclconfig.Count(func(c *Config) *int64 { return &c.Routing.ImbalanceSlack })},
	{Block: "queue", Name: "length", Set: hclconfig.Count(func(c *Config) *int64 { return &c.Queue.Length })},
	{Block: "queue", Name: "aging", Set: duration(func(c *Config) *time.Duration { return &c.Queue.Aging })},
	{Block: "queue", Name: "wait", Set: duration(func(c *Config) *time.Duration { return &c.Queue.Wait })},
	{Block: "queue", Name: "restart", Set: duration(func(c *Config) *time.Duration { return &c.Queue.Restart })},
	{Block: "queue", Name: "comment_after", Set: duration(func(c *Config) *time.Duration { return &c.Queue.CommentAfter })},
	{Block: "queue", Name: "comment_every", Set: duration(func(c *Config) *time.Duration { return &c.Queue.CommentEvery })},
	{Block: "retries", Name: "attempts", Set: hclconfig.Count(func(c *Config) *int64 { return &c.Retries.Attempts })},
	{Block: "retries", Name: "budget_ratio", Set: hclconfig.Float(func(c *Config) *float64 { return &c.Retries.BudgetRatio })},
	{Block: "retries", Name: "budget_floor", Set: hclconfig.Float(func(c *Config) *float64 { return &c.Retries.BudgetFloor })},
	{Block: "retries", Name: "budget_window", Set: duration(func(c *Config) *time.Duration { return &c.Retries.BudgetWindow })},
	{Block: "keys", Name: "required", Set: hclconfig.Bool(func(c *Config) *bool { return &c.Keys.Required })},
	{Block: "access_log", Name: "path", Set: text(func(c *Config) *string { return &c.AccessLog.Path })},
	{Block: "tracing", Name: "endpoint", Set: text(func(c *Config) *string { return &c.Tracing.Endpoint })},
	{Block: "tracing", Name: "ratio", Set: hclconfig.Float(func(c *Config) *float64 { return &c.Tracing.Ratio })},
	{Block: "routing", Name: "remember", Set: duration(func(c *Config) *time.Duration { return &c.Routing.Remember })},
}

// LoadFile reads an HCL config file over base and returns the result. Its
// error has one line, "file:line: …", for each thing that is wrong.
//
//	listen = "0.0.0.0:8080"
//	consul     { address = "127.0.0.1:8500" }
//	controller { addresses = ["http://10.0.0.1:4750", "http://10.0.0.2:4750"] }
//	timeouts   { first_byte = "20m" }
//	limits     { body = "64MiB" }
//	queue      { wait = "2m" }
//	key "team-a" {
//	  sha256 = "…"
//	  weight = 2
//	}
func LoadFile(path string, base Config) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("read gateway config: %w", err)
	}
	return Parse(path, src, base)
}

// Parse is LoadFile for a file whose content is at hand; filename is for
// messages only.
func Parse(filename string, src []byte, base Config) (Config, error) {
	all := append(slices.Clone(settings), limitSettings("keys", func(c *Config) *queue.KeyLimit { return &c.Keys.Default })...)
	return hclconfig.Parse(filename, src, base, all, func(c Config) []hclconfig.Problem { return c.settingProblems() }, keyBlocks())
}

func text(at func(*Config) *string) func(*Config, cty.Value) error { return hclconfig.Text(at) }

func duration(at func(*Config) *time.Duration) func(*Config, cty.Value) error {
	return hclconfig.Duration(at)
}

// size sets a number of bytes.
func size(at func(*Config) *int64) func(*Config, cty.Value) error {
	number := hclconfig.Count(at)
	return func(c *Config, v cty.Value) error {
		if number(c, v) == nil {
			return nil
		}
		if v.Type() == cty.String && v.IsKnown() && !v.IsNull() {
			if n, err := bytesize.Parse(v.AsString()); err == nil {
				*at(c) = n
				return nil
			}
		}
		return errors.New(`is not a size: must be a number of bytes or a string such as "32MiB"`)
	}
}
