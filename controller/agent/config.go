package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/internal/hclconfig"
)

// Config is everything an Agent needs. Start from DefaultConfig or DevConfig.
type Config struct {
	// DataDir holds the Raft log, the snapshots and the server's identity.
	DataDir string
	// LogLevel is trace, debug, info, warn or error. The program that builds the
	// logger applies it.
	LogLevel string

	// Cluster is a name that all servers share.
	Cluster string
	// BootstrapExpect is how many servers form a new cluster together, and 0 where
	// this one joins a cluster that is there.
	BootstrapExpect int
	// Join are the Raft addresses of other servers. This one's own may be among
	// them, so that all servers can have the same list.
	Join []string
	// LeaveOnTerminate has a server that is told to stop leave the cluster, so that
	// the others no longer count on it. Without it the server stays a member, which
	// is right where it comes back.
	LeaveOnTerminate bool

	Raft Raft
	HTTP HTTP
	TLS  TLS
	ACL  ACL
	// Nomad is the controller's own, Pools are external capacity.
	Nomad  Nomad
	Pools  []Pool
	Consul Consul
	// Reconcile's Pools are made of Pools.
	Reconcile planner.Config
	// GatewayTTL is how long what a gateway reported counts without its saying it again.
	// A new leader calls no replica drained before it has listened for that long.
	GatewayTTL time.Duration

	// Logger may be nil.
	Logger hclog.Logger
	// OnListen, if not nil, is called once with the API's URL, before the first
	// request is served.
	OnListen func(url string)
}

// Raft is how servers reach each other, and how patient they are.
type Raft struct {
	// Bind is where to listen, host:port, and Advertise where others reach this
	// server; empty: Bind, which then must name one address.
	Bind, Advertise string
	// HeartbeatTimeout, ElectionTimeout and LeaderLeaseTimeout are hashicorp/raft's.
	HeartbeatTimeout, ElectionTimeout, LeaderLeaseTimeout time.Duration
	// SnapshotInterval, SnapshotThreshold and TrailingLogs say when the log is cut.
	SnapshotInterval                time.Duration
	SnapshotThreshold, TrailingLogs uint64
}

// HTTP is where the API is.
type HTTP struct {
	// Bind is where to listen, host:port, and Advertise where clients and the other
	// servers reach this one; empty: Bind, which then must name one address.
	Bind, Advertise string
	// Drain is how long requests that are under way may take when the agent stops.
	// Those that wait for a change are answered at once.
	Drain time.Duration
}

// TLS has one certificate for a server's Raft port and for its API. Servers always
// show each other theirs.
type TLS struct {
	// CAFile, CertFile and KeyFile are PEM files; all or none. The certificate is for
	// server and client use.
	CAFile, CertFile, KeyFile string
	// ServerName is what the servers' certificates are for; empty: the host by which a
	// server is reached. It counts between servers only.
	ServerName string
	// VerifyClient asks the API's clients for a certificate of CAFile.
	VerifyClient bool
	// Raft and HTTP can be switched off separately, as while a cluster is moved to TLS.
	Raft, HTTP bool
}

func (t TLS) given() bool { return t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" }

func (t TLS) forHTTP() bool { return t.given() && t.HTTP }

func (t TLS) forRaft() bool { return t.given() && t.Raft }

// ACL says who may use the API.
type ACL struct {
	// Enabled refuses whoever has no token; `remuda acl bootstrap` gives the first.
	Enabled bool
}

// Nomad says where the replicas' jobs run.
type Nomad struct {
	// Address, Token, Namespace and Region are empty where NOMAD_ADDR and its friends
	// say it; of a pool they are not asked.
	Address, Token, Namespace, Region string
	// NodePool: only the nodes of this pool of Nomad's are used; empty: all.
	NodePool string
	// CAFile, CertFile, KeyFile and ServerName are for HTTPS; all empty: NOMAD_CACERT
	// and its friends, of which a pool has none either.
	CAFile, CertFile, KeyFile, ServerName string
	// Rate is how many requests a second are sent at most, on average, and Burst how
	// many at once.
	Rate, Burst int
}

// Consul says where engines are found, and how the agent appears there.
type Consul struct {
	// Address and Token are empty where CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN say it.
	Address, Token string
	// Service is the name under which the agent registers itself; empty: it does not.
	Service string
}

// Addresses of an agent that is told nothing else.
const (
	// DefaultHTTP and DefaultRaft are below Nomad's 4646 to 4648 and Consul's 8300 to
	// 8600, so that all three can run on one machine.
	DefaultHTTP = "127.0.0.1:4750"
	DefaultRaft = "127.0.0.1:4751"
)

// DefaultConfig returns settings for one server beside a local Nomad and Consul.
func DefaultConfig() Config {
	r := raft.DefaultConfig()
	return Config{
		LogLevel: "info",
		Cluster:  r.Cluster,
		// One server: a cluster of three must be asked for, with its members.
		BootstrapExpect: 1,
		Raft: Raft{
			// Loopback: opening a port to the network is the operator's decision.
			Bind:             DefaultRaft,
			HeartbeatTimeout: r.HeartbeatTimeout, ElectionTimeout: r.ElectionTimeout, LeaderLeaseTimeout: r.LeaderLeaseTimeout,
			SnapshotInterval: r.SnapshotInterval, SnapshotThreshold: r.SnapshotThreshold, TrailingLogs: r.TrailingLogs,
		},
		HTTP: HTTP{
			Bind: DefaultHTTP,
			// Half of Nomad's default kill_timeout of 5 s: the rest is for Raft.
			Drain: 2500 * time.Millisecond,
		},
		TLS: TLS{Raft: true, HTTP: true},
		// Deny by default.
		ACL:       ACL{Enabled: true},
		Nomad:     defaultNomad(),
		Consul:    Consul{Service: "remuda-controller"},
		Reconcile: planner.DefaultConfig(),
		// Several reports of a gateway, so that one that is lost makes no difference.
		GatewayTTL: 10 * time.Second,
	}
}

// defaultNomad is as nomad.DefaultConfig, which has the reasons.
func defaultNomad() Nomad { return Nomad{Rate: 50, Burst: 100} }

// DevConfig returns settings for `remuda agent -dev`: one server on loopback that
// asks nobody for a token. DataDir is empty: the caller makes one that goes again.
func DevConfig() Config {
	c := DefaultConfig()
	c.ACL.Enabled = false
	// A single server has nobody to elect but itself: let it lead at once.
	c.Raft.HeartbeatTimeout, c.Raft.ElectionTimeout, c.Raft.LeaderLeaseTimeout = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	return c
}

// problems checks all settings, and returns what is wrong with them.
func (c Config) problems() []hclconfig.Problem {
	var out []hclconfig.Problem
	bad := func(field, format string, args ...any) {
		out = append(out, hclconfig.Problem{Field: field, Text: fmt.Sprintf(format, args...)})
	}
	blame := func(fields ...string) { out[len(out)-1].Blame = fields }
	if c.DataDir == "" {
		bad("data_dir", "is required: the directory of the Raft log, which must survive a restart")
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		bad("log_level", "is %q: must be trace, debug, info, warn or error", c.LogLevel)
	}
	if c.Cluster == "" {
		bad("cluster", "is required: a name that all servers share")
	}
	switch n := c.BootstrapExpect; {
	case n < 0 || n > 9:
		bad("bootstrap_expect", "is %d: must be 1, 3 or 5 for a new cluster, 0 to join one", n)
	case n == 1 && len(c.Join) > 0:
		bad("bootstrap_expect", "is 1 and join is set, which would form two clusters: set it to 0 to join, or leave join empty")
		blame("join")
	case n > 1 && len(c.Join) == 0:
		bad("join", "is required with bootstrap_expect = %d: the addresses of the other servers", n)
		blame("bootstrap_expect")
	case n == 0 && len(c.Join) == 0:
		bad("join", "is required with bootstrap_expect = 0: the addresses of servers of the cluster")
		blame("bootstrap_expect")
	}
	for _, a := range c.Join {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" || port == "0" {
			bad("join", `has %q: must be "host:port" of another server's Raft port`, a)
		}
	}
	for _, l := range []struct{ block, bind, advertise string }{{"raft", c.Raft.Bind, c.Raft.Advertise}, {"http", c.HTTP.Bind, c.HTTP.Advertise}} {
		host, _, err := net.SplitHostPort(l.bind)
		switch {
		case err != nil:
			bad(l.block+".bind", `is %q: must be "host:port"`, l.bind)
		case l.advertise == "" && unspecified(host):
			bad(l.block+".advertise", "is required with bind %s: other servers need one address of this machine", l.bind)
			blame(l.block + ".bind")
		}
		if l.advertise == "" {
			continue
		}
		if host, port, err := net.SplitHostPort(l.advertise); err != nil || unspecified(host) || port == "" || port == "0" {
			bad(l.block+".advertise", `is %q: must be "host:port" at which others reach this server`, l.advertise)
		}
	}
	out = append(out, c.Raft.problems()...)
	if c.HTTP.Drain < time.Millisecond {
		bad("http.drain", "is %s: must be at least 1ms", c.HTTP.Drain)
	}
	out = append(out, c.TLS.problems()...)
	out = append(out, c.Nomad.problems("nomad.")...)
	out = append(out, c.poolProblems()...)
	out = append(out, reconcileProblems(c.Reconcile)...)
	if c.GatewayTTL < 100*time.Millisecond {
		bad("reconcile.gateway_ttl", "is %s: must be at least 100ms, and several report intervals of the gateways", c.GatewayTTL)
	}
	return out
}

func (r Raft) problems() []hclconfig.Problem {
	var out []hclconfig.Problem
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"heartbeat_timeout", r.HeartbeatTimeout},
		{"election_timeout", r.ElectionTimeout},
		{"leader_lease_timeout", r.LeaderLeaseTimeout},
		{"snapshot_interval", r.SnapshotInterval},
	} {
		// hashicorp/raft refuses less.
		if d.value < 5*time.Millisecond {
			out = append(out, hclconfig.Problem{Field: "raft." + d.field, Text: fmt.Sprintf("is %s: must be at least 5ms", d.value)})
		}
	}
	if r.LeaderLeaseTimeout > r.HeartbeatTimeout {
		out = append(out, hclconfig.Problem{
			Field: "raft.leader_lease_timeout", Blame: []string{"raft.heartbeat_timeout"},
			Text: fmt.Sprintf("is %s: must be at most raft.heartbeat_timeout (%s)", r.LeaderLeaseTimeout, r.HeartbeatTimeout),
		})
	}
	if r.SnapshotThreshold < 1 {
		out = append(out, hclconfig.Problem{Field: "raft.snapshot_threshold", Text: "is 0: must be at least 1"})
	}
	return out
}

func (t TLS) problems() []hclconfig.Problem {
	var out []hclconfig.Problem
	files := []struct{ field, path string }{{"tls.ca_file", t.CAFile}, {"tls.cert_file", t.CertFile}, {"tls.key_file", t.KeyFile}}
	for _, f := range files {
		switch {
		case f.path == "" && t.given():
			out = append(out, hclconfig.Problem{Field: f.field, Text: "is missing: set tls.ca_file, tls.cert_file and tls.key_file together", Blame: []string{"tls.ca_file", "tls.cert_file", "tls.key_file"}})
		case f.path != "":
			if err := readable(f.path); err != nil {
				out = append(out, hclconfig.Problem{Field: f.field, Text: fmt.Sprintf("cannot be read: %v", err)})
			}
		}
	}
	if t.VerifyClient && !t.forHTTP() {
		out = append(out, hclconfig.Problem{Field: "tls.verify_client", Text: "is true without TLS for the API: set tls.ca_file, tls.cert_file, tls.key_file and tls.http"})
	}
	return out
}

// problems names the fields with prefix, which ends with a dot.
func (n Nomad) problems(prefix string) []hclconfig.Problem {
	var out []hclconfig.Problem
	if n.Address != "" {
		if u, err := url.Parse(n.Address); err != nil || u.Host == "" && u.Scheme != "unix" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			out = append(out, hclconfig.Problem{Field: prefix + "address", Text: fmt.Sprintf(`is %q: must be a URL like "http://127.0.0.1:4646"`, n.Address)})
		}
	}
	if (n.CertFile == "") != (n.KeyFile == "") {
		out = append(out, hclconfig.Problem{Field: prefix + "cert_file", Text: "and " + prefix + "key_file must be set together", Blame: []string{prefix + "key_file"}})
	}
	for _, f := range []struct{ field, path string }{{prefix + "ca_file", n.CAFile}, {prefix + "cert_file", n.CertFile}, {prefix + "key_file", n.KeyFile}} {
		if f.path == "" {
			continue
		}
		if err := readable(f.path); err != nil {
			out = append(out, hclconfig.Problem{Field: f.field, Text: fmt.Sprintf("cannot be read: %v", err)})
		}
	}
	for _, v := range []struct {
		field string
		value int
	}{{prefix + "rate", n.Rate}, {prefix + "burst", n.Burst}} {
		if v.value < 1 {
			out = append(out, hclconfig.Problem{Field: v.field, Text: fmt.Sprintf("is %d: must be at least 1", v.value)})
		}
	}
	return out
}

// reconcileProblems has the planner's own rules by the names of the config file.
func reconcileProblems(c planner.Config) []hclconfig.Problem {
	var out []hclconfig.Problem
	for _, s := range reconcileTimes {
		switch d := *s.at(&c); {
		case d < 0 && s.zero:
			out = append(out, hclconfig.Problem{Field: "reconcile." + s.name, Text: fmt.Sprintf("is %s: must be 0 or more", d)})
		case d <= 0 && !s.zero:
			out = append(out, hclconfig.Problem{Field: "reconcile." + s.name, Text: fmt.Sprintf("is %s: must be more than 0", d)})
		}
	}
	for _, s := range reconcileRates {
		if n := *s.at(&c); !(n > 0) {
			out = append(out, hclconfig.Problem{Field: "reconcile.rates." + s.name, Text: fmt.Sprintf("is %g: must be more than 0 bytes a second", n)})
		}
	}
	if c.PruneMax < 1 {
		out = append(out, hclconfig.Problem{Field: "reconcile.prune_max", Text: fmt.Sprintf("is %d: must be at least 1", c.PruneMax)})
	}
	if c.MemorySlack < 0 {
		out = append(out, hclconfig.Problem{Field: "reconcile.memory_slack", Text: fmt.Sprintf("is %d bytes: must be 0 or more", c.MemorySlack)})
	}
	if !(c.WarmShare >= 0 && c.WarmShare <= 1) {
		out = append(out, hclconfig.Problem{Field: "reconcile.warm_share", Text: fmt.Sprintf("is %g: must be 0 to 1, a share of the node's memory", c.WarmShare)})
	}
	if c.BackoffMax < c.Backoff {
		out = append(out, hclconfig.Problem{Field: "reconcile.backoff_max", Text: fmt.Sprintf("is %s: must be at least reconcile.backoff (%s)", c.BackoffMax, c.Backoff), Blame: []string{"reconcile.backoff"}})
	}
	if c.Restarts < 1 {
		out = append(out, hclconfig.Problem{Field: "reconcile.restarts", Text: "is 0: must be at least 1"})
	}
	if c.Surge < 1 {
		out = append(out, hclconfig.Problem{Field: "reconcile.surge", Text: fmt.Sprintf("is %d: must be at least 1", c.Surge)})
	}
	if out == nil {
		// A rule of the planner that has no name here.
		if err := c.Validate(); err != nil {
			out = append(out, hclconfig.Problem{Field: "reconcile", Text: "is invalid: " + err.Error()})
		}
	}
	return out
}

// validate names every bad setting at once.
func (c Config) validate() error {
	problems := c.problems()
	if problems == nil {
		return nil
	}
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Field + " " + p.Text
	}
	return errors.New("invalid agent config: " + strings.Join(texts, "; "))
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// apiURL is where the API of an agent that listens at addr is reached.
func (c Config) apiURL(addr net.Addr) string {
	scheme := "http"
	if c.TLS.forHTTP() {
		scheme = "https"
	}
	return scheme + "://" + cmp.Or(c.HTTP.Advertise, addr.String())
}
