package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"

	"remuda/controller/modelfile"
	"remuda/controller/planner"
	"remuda/internal/hclconfig"
)

type setting = hclconfig.Setting[Config]

// reconcileTime is one of the reconciler's times, of which some may be 0.
type reconcileTime struct {
	name string
	at   func(*planner.Config) *time.Duration
	zero bool
}

// reconcileTimes are the times of the reconciler by their names in a config file.
var reconcileTimes = []reconcileTime{
	{"node_grace", func(c *planner.Config) *time.Duration { return &c.NodeGrace }, false},
	{"drain_timeout", func(c *planner.Config) *time.Duration { return &c.DrainTimeout }, false},
	{"canary_time", func(c *planner.Config) *time.Duration { return &c.CanaryTime }, false},
	{"serving_grace", func(c *planner.Config) *time.Duration { return &c.ServingGrace }, false},
	{"place_timeout", func(c *planner.Config) *time.Duration { return &c.PlaceTimeout }, false},
	{"steady_time", func(c *planner.Config) *time.Duration { return &c.SteadyTime }, false},
	{"settle_time", func(c *planner.Config) *time.Duration { return &c.SettleTime }, false},
	{"backoff", func(c *planner.Config) *time.Duration { return &c.Backoff }, false},
	{"backoff_max", func(c *planner.Config) *time.Duration { return &c.BackoffMax }, false},
	{"prune_interval", func(c *planner.Config) *time.Duration { return &c.PruneInterval }, false},
	{"wake_timeout", func(c *planner.Config) *time.Duration { return &c.WakeTimeout }, false},
	{"sleep_timeout", func(c *planner.Config) *time.Duration { return &c.SleepTimeout }, false},
	{"memory_timeout", func(c *planner.Config) *time.Duration { return &c.MemoryTimeout }, false},
	{"rates.start", func(c *planner.Config) *time.Duration { return &c.Rates.Start }, false},
	{"rates.wake", func(c *planner.Config) *time.Duration { return &c.Rates.Wake }, false},
	{"min_age", func(c *planner.Config) *time.Duration { return &c.MinAge }, true},
	{"thrash_window", func(c *planner.Config) *time.Duration { return &c.ThrashWindow }, true},
	{"traffic_window", func(c *planner.Config) *time.Duration { return &c.TrafficWindow }, true},
	{"tier_grace", func(c *planner.Config) *time.Duration { return &c.TierGrace }, true},
}

// reconcileRates are what loading is estimated with, in bytes a second.
var reconcileRates = []struct {
	name string
	at   func(*planner.Config) *float64
}{
	{"fetch", func(c *planner.Config) *float64 { return &c.Rates.Fetch }},
	{"disk", func(c *planner.Config) *float64 { return &c.Rates.Disk }},
	{"host", func(c *planner.Config) *float64 { return &c.Rates.Host }},
}

// settings are all attributes that a config file may have.
func settings() []setting {
	all := []setting{
		{Name: "data_dir", Set: text(func(c *Config) *string { return &c.DataDir })},
		{Name: "log_level", Set: text(func(c *Config) *string { return &c.LogLevel })},
		{Name: "cluster", Set: text(func(c *Config) *string { return &c.Cluster })},
		{Name: "bootstrap_expect", Set: hclconfig.Count(func(c *Config) *int { return &c.BootstrapExpect })},
		{Name: "join", Set: hclconfig.Texts(func(c *Config) *[]string { return &c.Join })},
		{Name: "leave_on_terminate", Set: boolean(func(c *Config) *bool { return &c.LeaveOnTerminate })},

		{Block: "raft", Name: "bind", Set: text(func(c *Config) *string { return &c.Raft.Bind })},
		{Block: "raft", Name: "advertise", Set: text(func(c *Config) *string { return &c.Raft.Advertise })},
		{Block: "raft", Name: "heartbeat_timeout", Set: duration(func(c *Config) *time.Duration { return &c.Raft.HeartbeatTimeout })},
		{Block: "raft", Name: "election_timeout", Set: duration(func(c *Config) *time.Duration { return &c.Raft.ElectionTimeout })},
		{Block: "raft", Name: "leader_lease_timeout", Set: duration(func(c *Config) *time.Duration { return &c.Raft.LeaderLeaseTimeout })},
		{Block: "raft", Name: "snapshot_interval", Set: duration(func(c *Config) *time.Duration { return &c.Raft.SnapshotInterval })},
		{Block: "raft", Name: "snapshot_threshold", Set: hclconfig.Count(func(c *Config) *uint64 { return &c.Raft.SnapshotThreshold })},
		{Block: "raft", Name: "trailing_logs", Set: hclconfig.Count(func(c *Config) *uint64 { return &c.Raft.TrailingLogs })},

		{Block: "http", Name: "bind", Set: text(func(c *Config) *string { return &c.HTTP.Bind })},
		{Block: "http", Name: "advertise", Set: text(func(c *Config) *string { return &c.HTTP.Advertise })},
		{Block: "http", Name: "drain", Set: duration(func(c *Config) *time.Duration { return &c.HTTP.Drain })},

		{Block: "tls", Name: "ca_file", Set: text(func(c *Config) *string { return &c.TLS.CAFile })},
		{Block: "tls", Name: "cert_file", Set: text(func(c *Config) *string { return &c.TLS.CertFile })},
		{Block: "tls", Name: "key_file", Set: text(func(c *Config) *string { return &c.TLS.KeyFile })},
		{Block: "tls", Name: "server_name", Set: text(func(c *Config) *string { return &c.TLS.ServerName })},
		{Block: "tls", Name: "verify_client", Set: boolean(func(c *Config) *bool { return &c.TLS.VerifyClient })},
		{Block: "tls", Name: "raft", Set: boolean(func(c *Config) *bool { return &c.TLS.Raft })},
		{Block: "tls", Name: "http", Set: boolean(func(c *Config) *bool { return &c.TLS.HTTP })},

		{Block: "acl", Name: "enabled", Set: boolean(func(c *Config) *bool { return &c.ACL.Enabled })},

		{Block: "nomad", Name: "node_pool", Set: text(func(c *Config) *string { return &c.Nomad.NodePool })},

		{Block: "consul", Name: "address", Set: text(func(c *Config) *string { return &c.Consul.Address })},
		{Block: "consul", Name: "token", Set: text(func(c *Config) *string { return &c.Consul.Token })},
		{Block: "consul", Name: "service", Set: text(func(c *Config) *string { return &c.Consul.Service })},

		{Block: "reconcile", Name: "gateway_ttl", Set: duration(func(c *Config) *time.Duration { return &c.GatewayTTL })},
		{Block: "reconcile", Name: "restarts", Set: hclconfig.Count(func(c *Config) *uint64 { return &c.Reconcile.Restarts })},
		{Block: "reconcile", Name: "surge", Set: hclconfig.Count(func(c *Config) *int { return &c.Reconcile.Surge })},
		{Block: "reconcile", Name: "prune_max", Set: hclconfig.Count(func(c *Config) *int { return &c.Reconcile.PruneMax })},
		{Block: "reconcile", Name: "memory_slack", Set: size(func(c *Config, n int64) { c.Reconcile.MemorySlack = n })},
		{Block: "reconcile", Name: "warm_share", Set: hclconfig.Float(func(c *Config) *float64 { return &c.Reconcile.WarmShare })},
	}
	all = append(all, nomadSettings(func(c *Config) *Nomad { return &c.Nomad })...)
	for _, t := range reconcileTimes {
		block, name := "reconcile", t.name
		if inner, rest, nested := strings.Cut(t.name, "."); nested {
			block, name = block+"."+inner, rest
		}
		all = append(all, setting{Block: block, Name: name, Set: duration(func(c *Config) *time.Duration { return t.at(&c.Reconcile) })})
	}
	for _, r := range reconcileRates {
		all = append(all, setting{Block: "reconcile.rates", Name: r.name, Set: size(func(c *Config, n int64) { *r.at(&c.Reconcile) = float64(n) })})
	}
	return all
}

// nomadSettings are those of a nomad block.
func nomadSettings(of func(*Config) *Nomad) []setting {
	return []setting{
		{Block: "nomad", Name: "address", Set: text(func(c *Config) *string { return &of(c).Address })},
		{Block: "nomad", Name: "token", Set: text(func(c *Config) *string { return &of(c).Token })},
		{Block: "nomad", Name: "namespace", Set: text(func(c *Config) *string { return &of(c).Namespace })},
		{Block: "nomad", Name: "region", Set: text(func(c *Config) *string { return &of(c).Region })},
		{Block: "nomad", Name: "ca_file", Set: text(func(c *Config) *string { return &of(c).CAFile })},
		{Block: "nomad", Name: "cert_file", Set: text(func(c *Config) *string { return &of(c).CertFile })},
		{Block: "nomad", Name: "key_file", Set: text(func(c *Config) *string { return &of(c).KeyFile })},
		{Block: "nomad", Name: "server_name", Set: text(func(c *Config) *string { return &of(c).ServerName })},
		{Block: "nomad", Name: "rate", Set: hclconfig.Count(func(c *Config) *int { return &of(c).Rate })},
		{Block: "nomad", Name: "burst", Set: hclconfig.Count(func(c *Config) *int { return &of(c).Burst })},
	}
}

// size sets a number of bytes, which is written with its unit as in model files.
func size(set func(*Config, int64)) func(*Config, cty.Value) error {
	return func(c *Config, v cty.Value) error {
		var s struct{ text string }
		if err := hclconfig.Text(func(s *struct{ text string }) *string { return &s.text })(&s, v); err != nil {
			return errors.New(`must be a size like "16GiB"`)
		}
		n, err := modelfile.ParseSize(s.text)
		if err != nil {
			return fmt.Errorf("is %q: %w", s.text, err)
		}
		set(c, n)
		return nil
	}
}

func text(at func(*Config) *string) func(*Config, cty.Value) error { return hclconfig.Text(at) }

func boolean(at func(*Config) *bool) func(*Config, cty.Value) error { return hclconfig.Bool(at) }

func duration(at func(*Config) *time.Duration) func(*Config, cty.Value) error {
	return hclconfig.Duration(at)
}

// LoadFile reads an HCL config file over base and returns the result. Its error
// has one line, "file:line: …", for each thing that is wrong.
//
//	data_dir         = "/var/lib/remuda"
//	bootstrap_expect = 3
//	join             = ["10.0.0.1:4751", "10.0.0.2:4751", "10.0.0.3:4751"]
//	raft { bind = "10.0.0.1:4751" }
//	http { bind = "10.0.0.1:4750" }
//	tls {
//	  ca_file   = "/etc/remuda/ca.pem"
//	  cert_file = "/etc/remuda/server.pem"
//	  key_file  = "/etc/remuda/server-key.pem"
//	}
//	nomad  { address = "https://nomad.example:4646" }
//	consul { address = "127.0.0.1:8500" }
//	reconcile {
//	  min_age      = "5m"
//	  memory_slack = "1GiB"
//	  rates { disk = "3GiB" }
//	}
//	pool "cloud" {
//	  nomad {
//	    address = "https://nomad.cloud.example:4646"
//	    token   = "…"
//	  }
//	  node_pool  = "gpu"
//	  management = "full"
//	  price      = 2
//	  batch      = 1
//	  interval   = "5m"
//	}
func LoadFile(path string, base Config) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("read the agent config: %w", err)
	}
	return Parse(path, src, base)
}

// Parse is LoadFile for a file whose content is at hand; filename is for messages
// only.
func Parse(filename string, src []byte, base Config) (Config, error) {
	return hclconfig.Parse(filename, src, base, settings(), Config.problems, poolBlocks())
}
