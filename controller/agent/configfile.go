package agent

import (
	"fmt"
	"os"
	"time"

	"github.com/zclconf/go-cty/cty"

	"remuda/controller/planner"
	"remuda/internal/hclconfig"
)

type setting = hclconfig.Setting[Config]

// reconcileTimes are the times of the reconciler by their names in a config file.
var reconcileTimes = []struct {
	name string
	at   func(*planner.Config) *time.Duration
}{
	{"node_grace", func(c *planner.Config) *time.Duration { return &c.NodeGrace }},
	{"drain_timeout", func(c *planner.Config) *time.Duration { return &c.DrainTimeout }},
	{"canary_time", func(c *planner.Config) *time.Duration { return &c.CanaryTime }},
	{"serving_grace", func(c *planner.Config) *time.Duration { return &c.ServingGrace }},
	{"place_timeout", func(c *planner.Config) *time.Duration { return &c.PlaceTimeout }},
	{"steady_time", func(c *planner.Config) *time.Duration { return &c.SteadyTime }},
	{"settle_time", func(c *planner.Config) *time.Duration { return &c.SettleTime }},
	{"backoff", func(c *planner.Config) *time.Duration { return &c.Backoff }},
	{"backoff_max", func(c *planner.Config) *time.Duration { return &c.BackoffMax }},
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

		{Block: "nomad", Name: "address", Set: text(func(c *Config) *string { return &c.Nomad.Address })},
		{Block: "nomad", Name: "token", Set: text(func(c *Config) *string { return &c.Nomad.Token })},
		{Block: "nomad", Name: "namespace", Set: text(func(c *Config) *string { return &c.Nomad.Namespace })},
		{Block: "nomad", Name: "region", Set: text(func(c *Config) *string { return &c.Nomad.Region })},
		{Block: "nomad", Name: "ca_file", Set: text(func(c *Config) *string { return &c.Nomad.CAFile })},
		{Block: "nomad", Name: "cert_file", Set: text(func(c *Config) *string { return &c.Nomad.CertFile })},
		{Block: "nomad", Name: "key_file", Set: text(func(c *Config) *string { return &c.Nomad.KeyFile })},
		{Block: "nomad", Name: "server_name", Set: text(func(c *Config) *string { return &c.Nomad.ServerName })},
		{Block: "nomad", Name: "rate", Set: hclconfig.Count(func(c *Config) *int { return &c.Nomad.Rate })},
		{Block: "nomad", Name: "burst", Set: hclconfig.Count(func(c *Config) *int { return &c.Nomad.Burst })},

		{Block: "consul", Name: "address", Set: text(func(c *Config) *string { return &c.Consul.Address })},
		{Block: "consul", Name: "token", Set: text(func(c *Config) *string { return &c.Consul.Token })},
		{Block: "consul", Name: "service", Set: text(func(c *Config) *string { return &c.Consul.Service })},

		{Block: "reconcile", Name: "gateway_ttl", Set: duration(func(c *Config) *time.Duration { return &c.GatewayTTL })},
		{Block: "reconcile", Name: "restarts", Set: hclconfig.Count(func(c *Config) *uint64 { return &c.Reconcile.Restarts })},
		{Block: "reconcile", Name: "surge", Set: hclconfig.Count(func(c *Config) *int { return &c.Reconcile.Surge })},
	}
	for _, t := range reconcileTimes {
		all = append(all, setting{Block: "reconcile", Name: t.name, Set: duration(func(c *Config) *time.Duration { return t.at(&c.Reconcile) })})
	}
	return all
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
	return hclconfig.Parse(filename, src, base, settings(), Config.problems)
}
