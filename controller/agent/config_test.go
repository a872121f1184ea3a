package agent_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/agent"
	"remuda/controller/planner"
)

const fullFile = `
data_dir           = "/var/lib/remuda"
log_level          = "debug"
cluster            = "west"
bootstrap_expect   = 3
join               = ["10.0.0.1:4751", "10.0.0.2:4751"]
leave_on_terminate = true

raft {
  bind                 = "0.0.0.0:4751"
  advertise            = "10.0.0.1:4751"
  secret               = "0123456789abcdef"
  heartbeat_timeout    = "4s"
  election_timeout     = "3s"
  leader_lease_timeout = "2s"
  snapshot_interval    = "1m"
  snapshot_threshold   = 100
  trailing_logs        = 200

  server_stabilization_time = "5s"
}

http {
  bind      = "0.0.0.0:4750"
  advertise = "10.0.0.1:4750"
  drain     = "9s"
}

tls {
  ca_file       = "FILE"
  cert_file     = "FILE"
  key_file      = "FILE"
  server_name   = "server.west"
  verify_client = true
  raft          = false
  http          = true
}

acl {
  enabled = false
}

nomad {
  address     = "https://nomad:4646"
  token       = "t"
  namespace   = "models"
  region      = "west"
  node_pool   = "h100"
  ca_file     = "FILE"
  cert_file   = "FILE"
  key_file    = "FILE"
  server_name = "server.global.nomad"
  rate        = 7
  burst       = 8
}

consul {
  address = "consul:8500"
  token   = "c"
  service = "rc"
}

reconcile {
  node_grace    = "1s"
  drain_timeout = "2s"
  canary_time   = "3s"
  gateway_ttl   = "12s"
  backoff       = "7s"
  backoff_max   = "8s"

  min_age       = "21s"
  warm_share    = 0.31
  profile       = "simulation"
}

pool "cloud" {
  nomad {
    address     = "https://cloud:4646"
    token       = "ct"
    namespace   = "cn"
    region      = "east"
    ca_file     = "FILE"
    cert_file   = "FILE"
    key_file    = "FILE"
    server_name = "server.east.nomad"
    rate        = 9
    burst       = 10
    node_pool   = "gpu"
  }
  management = "full"
  price      = 2.5
  batch      = 3
  interval   = "4m"
}

pool "bare" {
  nomad {
    address = "http://bare:4646"
  }
}
`

// full is fullFile with files that can be read.
func full(t testing.TB) (src []byte, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pem")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	return []byte(strings.ReplaceAll(fullFile, "FILE", file)), file
}

func TestParseReadsEverySetting(t *testing.T) {
	src, file := full(t)
	reconcile := planner.DefaultConfig()
	reconcile.NodeGrace, reconcile.DrainTimeout, reconcile.CanaryTime = time.Second, 2*time.Second, 3*time.Second
	reconcile.Backoff, reconcile.BackoffMax = 7*time.Second, 8*time.Second
	reconcile.MinAge, reconcile.WarmShare, reconcile.Profile = 21*time.Second, 0.31, planner.ProfileSimulation
	got, err := agent.Parse("a.hcl", src, agent.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, agent.Config{
		DataDir: "/var/lib/remuda", LogLevel: "debug",
		Cluster: "west", BootstrapExpect: 3, Join: []string{"10.0.0.1:4751", "10.0.0.2:4751"}, LeaveOnTerminate: true,
		Raft: agent.Raft{
			Bind: "0.0.0.0:4751", Advertise: "10.0.0.1:4751", HeartbeatTimeout: 4 * time.Second, ElectionTimeout: 3 * time.Second, LeaderLeaseTimeout: 2 * time.Second,
			SnapshotInterval: time.Minute, SnapshotThreshold: 100, TrailingLogs: 200,
			Secret: "0123456789abcdef", ServerStabilizationTime: 5 * time.Second,
		},
		HTTP:  agent.HTTP{Bind: "0.0.0.0:4750", Advertise: "10.0.0.1:4750", Drain: 9 * time.Second},
		TLS:   agent.TLS{CAFile: file, CertFile: file, KeyFile: file, ServerName: "server.west", VerifyClient: true, HTTP: true},
		Nomad: agent.Nomad{Address: "https://nomad:4646", Token: "t", Namespace: "models", Region: "west", NodePool: "h100", CAFile: file, CertFile: file, KeyFile: file, ServerName: "server.global.nomad", Rate: 7, Burst: 8},
		Pools: []agent.Pool{
			{
				Pool:  planner.Pool{Name: "cloud", Management: "full", Price: 2.5, Batch: 3, Interval: 4 * time.Minute},
				Nomad: agent.Nomad{Address: "https://cloud:4646", Token: "ct", Namespace: "cn", Region: "east", NodePool: "gpu", CAFile: file, CertFile: file, KeyFile: file, ServerName: "server.east.nomad", Rate: 9, Burst: 10},
			},
			{Pool: planner.Pool{Name: "bare", Management: "manual", Price: 1, Batch: 1, Interval: 5 * time.Minute}, Nomad: agent.Nomad{Address: "http://bare:4646", Rate: 50, Burst: 100}},
		},
		Consul:    agent.Consul{Address: "consul:8500", Token: "c", Service: "rc"},
		Reconcile: agent.Reconcile{Config: reconcile, GatewayTTL: 12 * time.Second},
	}, got)
	read, defaults := reflect.ValueOf(got.Reconcile.Config), reflect.ValueOf(agent.DefaultConfig().Reconcile.Config)
	for i := range read.NumField() {
		if f := read.Type().Field(i); f.Tag.Get("hcl") != "" {
			require.NotEqual(t, defaults.Field(i).Interface(), read.Field(i).Interface(), "the file does not set %s", f.Name)
		}
	}
}

func TestLoadFileKeepsDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.hcl")
	_, err := agent.LoadFile(path, agent.DefaultConfig())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(`data_dir = "d"`), 0o600))
	got, err := agent.LoadFile(path, agent.DefaultConfig())
	require.NoError(t, err)
	want := agent.DefaultConfig()
	want.DataDir = "d"
	require.Equal(t, want, got)
	require.True(t, got.ACL.Enabled, "deny by default")
}

func TestParseReportsEveryFaultWithItsLine(t *testing.T) {
	const dir = "data_dir = \"d\"\n"
	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"an empty file": {"", []string{"a.hcl:1: data_dir is required"}},
		"syntax":        {"data_dir = \n", []string{"a.hcl:1: "}},
		"unknown things": {
			dir + "clutser = \"x\"\nnomad {\n  adress = \"x\"\n}\nvault {\n}\n",
			[]string{"a.hcl:2: unsupported argument", "a.hcl:4: unsupported argument", "a.hcl:6: unsupported block type"},
		},
		"values of every block": {
			dir + `
cluster   = ""
log_level = "loud"
raft {
  bind              = "nowhere"
  advertise         = "0.0.0.0:1"
  heartbeat_timeout = "1ms"
}
http {
  bind  = "here"
  drain = "-1s"
}
tls {
  ca_file = "/none"
}
nomad {
  address   = "nomad:4646"
  cert_file = "/none"
  rate      = 0
}
reconcile {
  node_grace  = "0s"
  backoff     = "1h"
  restarts    = 1
  drain_timeout = "-1s"
  canary_time = "soon"
}`,
			[]string{
				`a.hcl:3: cluster is required`, `a.hcl:4: log_level is "loud"`,
				`a.hcl:6: raft.bind is "nowhere"`, `a.hcl:7: raft.advertise is "0.0.0.0:1"`, `a.hcl:8: raft.heartbeat_timeout is 1ms`, `a.hcl:8: raft.leader_lease_timeout is 500ms: must be at most`,
				`a.hcl:11: http.bind is "here"`, `a.hcl:12: http.drain is -1s`,
				`a.hcl:15: tls.ca_file cannot be read`, `a.hcl:15: tls.ca_file cannot be read`, `a.hcl:15: tls.ca_file cannot be read`,
				`a.hcl:18: nomad.address is "nomad:4646"`, `a.hcl:19: nomad.cert_file and key_file must be set together`, `a.hcl:19: nomad.cert_file cannot be read`, `a.hcl:20: nomad.rate is 0`,
				`a.hcl:23: reconcile.node_grace is 0s`, `a.hcl:24: reconcile.backoff_max is 10m0s: must be at least backoff (1h0m0s)`, `a.hcl:25: unsupported argument`,
				`a.hcl:26: reconcile.drain_timeout is -1s`, `a.hcl:27: reconcile.canary_time is "soon"`,
			},
		},
		"values of tiers": {
			dir + `
reconcile {
  min_age     = "-1s"
  prune_max   = 5
  backoff     = "0s"
  backoff_max = "much"
  warm_share  = 1.5
  profile     = "fast"
  rates {
    start = "1s"
  }
}`,
			[]string{
				`a.hcl:4: reconcile.min_age is -1s: must be 0 or more`, `a.hcl:5: unsupported argument`, `a.hcl:6: reconcile.backoff is 0s: must be more than 0`,
				`a.hcl:7: reconcile.backoff_max is "much": must be a duration`, `a.hcl:8: reconcile.warm_share is 1.5: must be 0 to 1`,
				`a.hcl:9: reconcile.profile is "fast": must be "production" or "simulation"`, `a.hcl:10: unsupported block`,
			},
		},
		"values of pools": {
			dir + `
nomad {
  address = "http://Own:4646/"
}
pool "a" {
  nomad {
    address = "cloud"
    rate    = 0
  }
  management = "some"
  price      = -1
  batch      = 0
  interval   = "-1m"
}
pool "b c" {
}
pool "same" {
  nomad {
    address   = "http://own:4646"
    node_pool = "gpu"
  }
}
pool "same" {
}
pool {
}
pool "x" {
  nomad {
    address   = "http://x:1"
    node_pool = "gpu"
  }
}
pool "y" {
  nomad {
    address   = "http://x:1"
    node_pool = "gpu"
  }
}
pool "z" {
  nomad {
    address   = "http://x:1"
    node_pool = "other"
  }
  node_pool = "more"
}`,
			[]string{
				`a.hcl:8: pool "a".nomad.address is "cloud"`, `a.hcl:9: pool "a".nomad.rate is 0`, `a.hcl:11: pool "a".management is "some"`, `a.hcl:12: pool "a".price is -1`,
				`a.hcl:13: pool "a".batch is 0`, `a.hcl:14: pool "a".interval is -1m0s`,
				`a.hcl:16: pool "b c" is not a valid name`, `a.hcl:16: pool "b c".nomad.address is required`,
				`a.hcl:21: pool "same".nomad.node_pool is "gpu" on the same Nomad as the nomad block, with node_pool ""`,
				`a.hcl:24: duplicate pool "same" block: first defined on line 18`, `a.hcl:26: missing name for pool`,
				`a.hcl:37: pool "y".nomad.node_pool is "gpu" on the same Nomad as pool "x", with node_pool "gpu"`,
				`a.hcl:45: unsupported argument`,
			},
		},
		"every address of the machine": {
			dir + "raft {\n bind = \":1\"\n}\nhttp {\n bind = \"[::]:2\"\n}",
			[]string{"a.hcl:3: raft.advertise is required with bind :1", "a.hcl:3: raft.bind is :1 and the Raft port has no authentication", "a.hcl:6: http.advertise is required with bind [::]:2"},
		},
		"an open Raft port":              {dir + "raft {\n bind = \"10.0.0.1:1\"\n}", []string{"a.hcl:3: raft.bind is 10.0.0.1:1 and the Raft port has no authentication, so every host that reaches it could take over the cluster: set raft.secret"}},
		"TLS, but not for Raft":          {dir + "raft {\n bind = \"10.0.0.1:1\"\n}\ntls {\n ca_file = \"/dev/null\"\n cert_file = \"/dev/null\"\n key_file = \"/dev/null\"\n raft = false\n}", []string{"a.hcl:3: raft.bind is 10.0.0.1:1 and the Raft port has no authentication"}},
		"certificates for no name":       {dir + "tls {\n ca_file = \"/dev/null\"\n cert_file = \"/dev/null\"\n key_file = \"/dev/null\"\n server_name = \"\"\n}", []string{"a.hcl:6: tls.server_name is empty"}},
		"a short secret":                 {dir + "raft {\n secret = \"hunter2\"\n}", []string{"a.hcl:3: raft.secret has 7 bytes: must have at least 16"}},
		"an empty secret file":           {dir + "raft {\n secret_file = \"/dev/null\"\n}", []string{"a.hcl:3: raft.secret_file is empty: must have at least 16 bytes"}},
		"no secret file":                 {dir + "raft {\n secret_file = \"/none\"\n}", []string{"a.hcl:3: raft.secret_file cannot be read"}},
		"two secrets":                    {dir + "raft {\n secret = \"0123456789abcdef\"\n secret_file = \"/none\"\n}", []string{"a.hcl:4: raft.secret_file is set, and raft.secret too"}},
		"three without the others":       {dir + "bootstrap_expect = 3", []string{"a.hcl:2: join is required with bootstrap_expect = 3"}},
		"a new cluster and an old one":   {dir + "join = [\"a:1\"]", []string{"a.hcl:2: bootstrap_expect is 1 and join is set, which would form two clusters: set it to 0 to join, or leave join empty"}},
		"nothing to join":                {dir + "bootstrap_expect = 0", []string{"a.hcl:2: join is required with bootstrap_expect = 0"}},
		"ten servers":                    {dir + "bootstrap_expect = 10\njoin = [\"a:1\"]", []string{"a.hcl:2: bootstrap_expect is 10"}},
		"a bad server to join":           {dir + "bootstrap_expect = 3\njoin = [\"a:1\", \"b\", \"c:0\"]", []string{`a.hcl:3: join has "b"`, `a.hcl:3: join has "c:0"`}},
		"clients are known without TLS":  {dir + "tls {\n verify_client = true\n}", []string{"a.hcl:3: tls.verify_client is true without TLS"}},
		"a string where a list belongs":  {dir + "join = \"a:1\"", []string{"a.hcl:2: join is \"a:1\": must be a list of strings"}},
		"faults of every kind, together": {"cluster = 5\nhttp {\n x = 1\n}\n", []string{"a.hcl:1: cluster is 5: must be a string", "a.hcl:1: data_dir is required", "a.hcl:3: unsupported argument"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.Parse("a.hcl", []byte(tc.src), agent.DefaultConfig())
			require.Error(t, err)
			require.Len(t, strings.Split(err.Error(), "\n"), len(tc.want), err)
			for _, want := range tc.want {
				line, text, _ := strings.Cut(want, ": ")
				require.Regexp(t, "(?m)^"+regexp.QuoteMeta(line)+`:\d+: `+regexp.QuoteMeta(text), err.Error())
			}
		})
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := agent.New(agent.Config{})
	for _, field := range []string{
		"data_dir", "log_level", "cluster", "join", "raft.bind", "raft.heartbeat_timeout", "raft.snapshot_threshold",
		"http.bind", "nomad.rate", "reconcile.node_grace", "reconcile.restarts", "reconcile.gateway_ttl",
	} {
		require.ErrorContains(t, err, field)
	}
}

func FuzzParse(f *testing.F) {
	src, _ := full(f)
	f.Add(src)
	f.Add([]byte("data_dir = \"d\"\nraft {\n bind = \":0\"\n advertise = \"[::1]:1\"\n}"))
	f.Add([]byte("data_dir = \"d\"\nreconcile {\n warm_share = 1e400\n}"))
	f.Fuzz(func(t *testing.T, src []byte) {
		cfg, err := agent.Parse("a.hcl", src, agent.DefaultConfig())
		if err != nil {
			return
		}
		if _, err := agent.New(cfg); err != nil {
			t.Fatalf("Parse takes what New refuses: %v", err)
		}
	})
}
