package gateway_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
)

const fullFile = `
tls {
  cert = "/cert.pem"
  key  = "/key.pem"
}

engine_tls {
  ca_cert     = "/ca.pem"
  server_name = "engine.example.com"
}

listen      = "0.0.0.0:80"
advertise   = "https://llm.example.com"
operator_listen = "10.0.0.1:81"
log_level   = "debug"
retry_after = "7s"

cors {
  origins = ["https://chat.example.com"]
}

consul {
  service = "gw"
  address = "consul:8500"
  token   = "t"
}

controller {
  addresses = ["http://a:4750", "https://b:4750"]
  token     = "c"
  ca_cert   = "/ca.pem"
}

timeouts {
  header      = "1s"
  body        = "2s"
  keep_alive  = "3s"
  write       = "4s"
  connect     = "5s"
  first_byte  = "6m"
  stream_idle = "7s"
  engine_idle = "8s"
  lame_duck   = "9s"
  drain       = "10s"
}

limits {
  body     = "64MiB"
  header   = 4096
  buffered = "2GiB"
}

routing {
  grace            = "0s"
  suspect          = "250ms"
  suspect_max      = "5s"
  remember         = "1h"
  imbalance_factor = 2
  imbalance_slack  = 100
}

queue {
  length        = 10
  aging         = "1s"
  wait          = "2s"
  restart       = "3s"
  comment_after = "4s"
  comment_every = "5s"
}

retries {
  attempts      = 5
  budget_ratio  = 0.5
  budget_floor  = 2
  budget_window = "6s"
}

keys {
  required     = true
  weight       = 2
  priority     = 3
  max_priority = 4
  concurrency  = 5
  rate         = 6
  burst        = 7
}

key "team-a" {
  token  = "secret"
  weight = 9
}

key "team-b" {
  sha256       = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  priority     = 8
  max_priority = 9
}

access_log {
  path = "/var/log/access.json"
}

tracing {
  endpoint = "http://127.0.0.1:4318"
  ratio    = 0.5
}
`

func TestParseReadsEverySetting(t *testing.T) {
	t.Parallel()
	got, err := gateway.Parse("g.hcl", []byte(fullFile), gateway.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, gateway.Config{
		Listen: "0.0.0.0:80", Advertise: "https://llm.example.com", OperatorListen: "10.0.0.1:81", LogLevel: "debug", RetryAfter: 7 * time.Second,
		TLS:        gateway.TLS{Cert: "/cert.pem", Key: "/key.pem"},
		EngineTLS:  gateway.EngineTLS{CACert: "/ca.pem", ServerName: "engine.example.com"},
		CORS:       gateway.CORS{Origins: []string{"https://chat.example.com"}},
		Consul:     gateway.Consul{Service: "gw", Address: "consul:8500", Token: "t"},
		Controller: gateway.Controller{Addresses: []string{"http://a:4750", "https://b:4750"}, Token: "c", CACert: "/ca.pem"},
		Timeouts: gateway.Timeouts{
			Header: time.Second, Body: 2 * time.Second, KeepAlive: 3 * time.Second, Write: 4 * time.Second, Connect: 5 * time.Second,
			FirstByte: 6 * time.Minute, StreamIdle: 7 * time.Second, EngineIdle: 8 * time.Second, LameDuck: 9 * time.Second, Drain: 10 * time.Second,
		},
		Limits: gateway.Limits{Body: 64 << 20, Header: 4096, Buffered: 2 << 30},
		Routing: gateway.Routing{
			Grace: 0, Suspect: 250 * time.Millisecond, SuspectMax: 5 * time.Second, Remember: time.Hour, ImbalanceFactor: 2, ImbalanceSlack: 100,
		},
		Queue: gateway.Queue{
			Length: 10, Aging: time.Second, Wait: 2 * time.Second, Restart: 3 * time.Second, CommentAfter: 4 * time.Second, CommentEvery: 5 * time.Second,
		},
		Retries: gateway.Retries{Attempts: 5, BudgetRatio: 0.5, BudgetFloor: 2, BudgetWindow: 6 * time.Second},
		Keys: gateway.Keys{
			Required: true,
			Default:  queue.KeyLimit{Weight: 2, Priority: 3, MaxPriority: 4, Concurrency: 5, Rate: 6, Burst: 7},
		},
		NamedKeys: []gateway.Key{
			{
				Name: "team-a", Token: "secret",
				KeyLimit: queue.KeyLimit{Weight: 9, Priority: 3, MaxPriority: 4, Concurrency: 5, Rate: 6, Burst: 7},
			},
			{
				Name: "team-b", SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
				KeyLimit: queue.KeyLimit{Weight: 2, Priority: 8, MaxPriority: 9, Concurrency: 5, Rate: 6, Burst: 7},
			},
		},
		AccessLog: gateway.AccessLog{Path: "/var/log/access.json"},
		Tracing:   gateway.Tracing{Endpoint: "http://127.0.0.1:4318", Ratio: 0.5},
	}, got)
}

func TestLoadFileKeepsDefaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "g.hcl")
	_, err := gateway.LoadFile(path, gateway.DefaultConfig())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(`limits { body = "1MiB" }`), 0o600))
	got, err := gateway.LoadFile(path, gateway.DefaultConfig())
	require.NoError(t, err)
	want := gateway.DefaultConfig()
	want.Limits.Body = 1 << 20
	require.Equal(t, want, got)
}

func TestParseReportsEveryFaultWithItsLine(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, src string
		want      []string
	}{
		{"syntax", "listen = \n", []string{"g.hcl:1: "}},
		{"unknown things", "listn = \"x\"\nlog_level = \"info\"\nconsul {\n  adress = \"x\"\n}\nextra {\n}\n",
			[]string{`g.hcl:1: unsupported argument`, `g.hcl:4: unsupported argument`, `g.hcl:6: unsupported block type`}},
		{"wrong types", "listen = 5\ntimeouts {\n  body = 5\n  drain = \"soon\"\n}\nlimits {\n  body = \"5 pounds\"\n}\nretries {\n  attempts = 1.5\n}\n",
			[]string{`g.hcl:1: listen is 5: must be a string`, `g.hcl:3: timeouts.body is 5: must be a duration`, `g.hcl:4: timeouts.drain is "soon"`, `g.hcl:7: limits.body is "5 pounds": must be a number of bytes or a size such as "32MiB"`, `g.hcl:10: retries.attempts is 1.5: must be a whole number`}},
		{"bad values", "listen = \"nowhere\"\nlog_level = \"loud\"\ntimeouts {\n  body = \"0s\"\n  drain = \"-1s\"\n}\nlimits {\n  header = 1\n}\nretries {\n  attempts = 0\n}\n",
			[]string{`g.hcl:1: listen is "nowhere"`, `g.hcl:2: log_level is "loud"`, `g.hcl:4: timeouts.body is 0`, `g.hcl:5: timeouts.drain is -1s`, `g.hcl:8: limits.header is 1 bytes`, `g.hcl:11: retries.attempts is 0`}},
		{"faults of every kind at once", "listn = 1\nlog_level = \"loud\"\ntimeouts {\n  body = \"soon\"\n  drain = \"-1s\"\n}\n",
			[]string{`g.hcl:1: unsupported argument`, `g.hcl:2: log_level is "loud"`, `g.hcl:4: timeouts.body is "soon"`, `g.hcl:5: timeouts.drain is -1s`}},
		{"limits that disagree", "\nlimits {\n body = \"512MiB\"\n buffered = \"256MiB\"\n}", []string{`g.hcl:4: limits.buffered is 268435456 bytes: must be at least limits.body, which is 536870912`}},
		{"a body too large to hold", "limits {\n  body = 9223372036854775807\n  buffered = 9223372036854775807\n}", []string{`g.hcl:2: limits.body is 9223372036854775807 bytes: must be 1 to 1GiB`}},
		{"a block twice", "consul {\n}\nconsul {\n}", []string{"g.hcl:3: duplicate consul block: first defined on line 1"}},
		{"a controller nowhere", "controller {\n  token = \"t\"\n}", []string{`g.hcl:2: controller.addresses is empty: must be set`}},
		{"controllers that are none", "controller {\n  addresses = [\"http://a:1\", \"b:2\", \"ftp://c\", \"http://d/v1\"]\n  token = 5\n}",
			[]string{`g.hcl:2: controller.addresses contains "b:2": must be a URL`, `g.hcl:2: controller.addresses contains "ftp://c"`, `g.hcl:2: controller.addresses contains "http://d/v1"`, `g.hcl:3: controller.token is 5: must be a string`}},
		{"the queue", "queue {\n  length = 0\n  wait = \"0s\"\n}\nrouting {\n  suspect_max = \"1ms\"\n}\ntracing {\n  ratio = 2\n}\n",
			[]string{`g.hcl:2: queue.length is 0: must be 1 to`, `g.hcl:3: queue.wait is 0`, `g.hcl:6: routing.suspect_max is 1ms: must be at least routing.suspect`, `g.hcl:9: tracing.ratio is 2`}},
		{"keys", "keys {\n  weight = -1\n}\nkey \"a\" {\n  sha256 = \"12\"\n}\nkey \"b\" {\n  token = \"x\"\n}\nkey \"c\" {\n  token = \"x\"\n}\nkey \"d\" {\n  token = \"\"\n}\nkey \"e\" {\n  token = \"z\"\n  sha256 = \"00\"\n}\n",
			[]string{`g.hcl:1: keys is invalid`, `g.hcl:5: key "a".sha256 is "12"`, `g.hcl:11: key "c".sha256 is a duplicate of key "b"`, `g.hcl:14: key "d".token is missing: must be the key`, `g.hcl:17: key "e".token is set beside sha256`}},
		{"nobody may", "keys {\n  required = true\n}\n", []string{`g.hcl:2: keys.required is true and no key is configured`}},
		{"an address with a path", `advertise = "https://a/v1"`, []string{`g.hcl:1: advertise is "https://a/v1": must be a URL such as`}},
		{"an address that ends with a slash", `advertise = "https://a/"`, []string{`g.hcl:1: advertise is "https://a/"`}},
		{"null", "listen = null", []string{"g.hcl:1: listen is null: must be a string"}},
		{"a variable", "listen = var.x", []string{"g.hcl:1: "}},
		{"sizes", "limits {\n  body = \"-1\"\n  header = \"9999999999GiB\"\n  buffered = \"1KB\"\n}", []string{`g.hcl:2: limits.body is "-1"`, `g.hcl:3: limits.header is "9999999999GiB"`, "g.hcl:4: limits.buffered is 1000 bytes"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := gateway.Parse("g.hcl", []byte(c.src), gateway.DefaultConfig())
			require.Error(t, err)
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(c.want), err.Error())
			for i, want := range c.want {
				line, text, _ := strings.Cut(want, ": ")
				require.Regexp(t, "^"+regexp.QuoteMeta(line)+`:\d+: `+regexp.QuoteMeta(text), lines[i])
			}
		})
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, err := gateway.New(gateway.Config{})
	for _, field := range []string{"listen", "log_level", "retry_after", "timeouts.header", "timeouts.write", "limits.body", "limits.header", "retries.attempts", "queue.length", "routing.suspect_max", "Watcher"} {
		require.ErrorContains(t, err, field)
	}
}

func TestNewReadsTheCA(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	cfg.Watcher = &feed{}
	cfg.Controller = gateway.Controller{Addresses: []string{"https://a:4750"}, CACert: filepath.Join(t.TempDir(), "none.pem")}
	_, err := gateway.New(cfg)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fullFile))
	f.Add([]byte(`limits { body = "9223372036854775807GiB" }`))
	f.Add([]byte(`timeouts { body = 1e400 }`))
	f.Add([]byte(`controller { addresses = ["http://a:1/?", "http://u@b"] }`))
	f.Fuzz(func(t *testing.T, src []byte) {
		cfg, err := gateway.Parse("g.hcl", src, gateway.DefaultConfig())
		if err != nil {
			return
		}
		cfg.Watcher = &feed{}
		cfg.Controller.CACert, cfg.EngineTLS.CACert = "", "" // files that New reads
		if _, err := gateway.New(cfg); err != nil {
			t.Fatalf("Parse takes what New refuses: %v", err)
		}
	})
}
