package agent

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/internal/hclfault"
)

// Config is everything an Agent needs. Start from DefaultConfig or DevConfig.
type Config struct {
	// DataDir holds the Raft log, the snapshots and the server's identity.
	DataDir string `hcl:"data_dir"`
	// LogLevel is trace, debug, info, warn or error. The program that builds the
	// logger applies it.
	LogLevel string `hcl:"log_level"`

	// Cluster is a name that all servers share.
	Cluster string `hcl:"cluster"`
	// BootstrapExpect is how many servers form a new cluster together, and 0 where
	// this one joins a cluster that is there.
	BootstrapExpect int `hcl:"bootstrap_expect"`
	// Join are the Raft addresses of other servers. This one's own may be among
	// them, so that all servers can have the same list.
	Join []string `hcl:"join"`
	// LeaveOnTerminate has a server that is told to stop leave the cluster, so that
	// the others no longer count on it. Without it the server stays a member, which
	// is right where it comes back.
	LeaveOnTerminate bool `hcl:"leave_on_terminate"`

	Raft Raft `hcl:"raft,block"`
	HTTP HTTP `hcl:"http,block"`
	TLS  TLS  `hcl:"tls,block"`
	ACL  ACL  `hcl:"acl,block"`
	// Nomad is the controller's own, Pools are external capacity.
	Nomad     Nomad     `hcl:"nomad,block"`
	Pools     []Pool    `hcl:"pool,block"`
	Consul    Consul    `hcl:"consul,block"`
	Reconcile Reconcile `hcl:"reconcile,block"`

	// Logger may be nil.
	Logger hclog.Logger
	// CheckScaling checks the policies of model files; nil: they are not checked.
	CheckScaling func(strategy string, settings map[string]string) error
	// OnListen, if not nil, is called once with the API's URL, before the first
	// request is served.
	OnListen func(url string)
}

// Raft is how servers reach each other, and how patient they are.
type Raft struct {
	// Bind is where to listen, host:port.
	Bind string `hcl:"bind"`
	// Advertise is where others reach this server, host:port; empty: Bind, which then
	// must name one address.
	Advertise string `hcl:"advertise"`
	// Secret authenticates servers to each other. It is the same on all servers, at least
	// 16 bytes, as `openssl rand -hex 32` prints them. It does not encrypt: that takes TLS.
	// A server that does not listen on loopback needs a secret or TLS.
	Secret string `hcl:"secret"`
	// SecretFile is a file that contains the secret; white space around it is removed.
	SecretFile string `hcl:"secret_file"`
	// ServerStabilizationTime is how long a server that joins must be healthy without a
	// break before it becomes a voter.
	ServerStabilizationTime time.Duration `hcl:"server_stabilization_time"`
	// HeartbeatTimeout, ElectionTimeout and LeaderLeaseTimeout are hashicorp/raft's.
	HeartbeatTimeout   time.Duration `hcl:"heartbeat_timeout"`
	ElectionTimeout    time.Duration `hcl:"election_timeout"`
	LeaderLeaseTimeout time.Duration `hcl:"leader_lease_timeout"`
	// SnapshotInterval, SnapshotThreshold and TrailingLogs say when the log is cut.
	SnapshotInterval  time.Duration `hcl:"snapshot_interval"`
	SnapshotThreshold uint64        `hcl:"snapshot_threshold"`
	TrailingLogs      uint64        `hcl:"trailing_logs"`
}

// HTTP is where the API is.
type HTTP struct {
	// Bind is where to listen, host:port.
	Bind string `hcl:"bind"`
	// Advertise is where clients and the other servers reach this one, host:port; empty:
	// Bind, which then must name one address.
	Advertise string `hcl:"advertise"`
	// Drain is how long requests that are under way may take when the agent stops.
	// Those that wait for a change are answered at once.
	Drain time.Duration `hcl:"drain"`
}

// TLS has one certificate for a server's Raft port and for its API. Servers always
// show each other theirs.
type TLS struct {
	// CAFile, CertFile and KeyFile are PEM files; all or none. The certificate is for
	// server and client use. The web page's chats trust gateways with a certificate of this
	// CA, or of the system's.
	CAFile   string `hcl:"ca_file"`
	CertFile string `hcl:"cert_file"`
	KeyFile  string `hcl:"key_file"`
	// ServerName is a DNS name that the servers' certificates bear, and no others of the
	// same CA: a server accepts no connection from a server without it.
	ServerName string `hcl:"server_name"`
	// VerifyClient asks the API's clients for a certificate of CAFile.
	VerifyClient bool `hcl:"verify_client"`
	// Raft and HTTP can be switched off separately, as while a cluster is moved to TLS.
	Raft bool `hcl:"raft"`
	HTTP bool `hcl:"http"`
}

func (t TLS) given() bool { return t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" }

func (t TLS) forHTTP() bool { return t.given() && t.HTTP }

func (t TLS) forRaft() bool { return t.given() && t.Raft }

// ACL says who may use the API.
type ACL struct {
	// Enabled refuses whoever has no token; `remuda acl bootstrap` gives the first.
	Enabled bool `hcl:"enabled"`
}

// Nomad says where the replicas' jobs run.
type Nomad struct {
	// Address, Token, Namespace and Region are empty where NOMAD_ADDR and its friends
	// say it; of a pool they are not asked.
	Address   string `hcl:"address"`
	Token     string `hcl:"token"`
	Namespace string `hcl:"namespace"`
	Region    string `hcl:"region"`
	// NodePool: only the nodes of this pool of Nomad's are used; empty: all.
	NodePool string `hcl:"node_pool"`
	// CAFile, CertFile, KeyFile and ServerName are for HTTPS; all empty: NOMAD_CACERT
	// and its friends, of which a pool has none either.
	CAFile     string `hcl:"ca_file"`
	CertFile   string `hcl:"cert_file"`
	KeyFile    string `hcl:"key_file"`
	ServerName string `hcl:"server_name"`
	// Rate is how many requests a second are sent at most, on average.
	Rate int `hcl:"rate"`
	// Burst is how many requests are sent at once at most.
	Burst int `hcl:"burst"`
}

// Consul says where engines are found, and how the agent appears there.
type Consul struct {
	// Address and Token are empty where CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN say it.
	Address string `hcl:"address"`
	Token   string `hcl:"token"`
	// Service is the name under which the agent registers itself; empty: it does not.
	Service string `hcl:"service"`
}

// Reconcile says how patient the reconciler is. Its Pools are made of Config.Pools.
type Reconcile struct {
	planner.Config `hcl:",remain"`
	// GatewayTTL is how long a report of a gateway counts until its next one.
	// A new leader calls no replica drained before it has listened for that long.
	GatewayTTL time.Duration `hcl:"gateway_ttl"`
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
			Bind: DefaultRaft, ServerStabilizationTime: r.ServerStabilizationTime,
			HeartbeatTimeout: r.HeartbeatTimeout, ElectionTimeout: r.ElectionTimeout, LeaderLeaseTimeout: r.LeaderLeaseTimeout,
			SnapshotInterval: r.SnapshotInterval, SnapshotThreshold: r.SnapshotThreshold, TrailingLogs: r.TrailingLogs,
		},
		HTTP: HTTP{
			Bind: DefaultHTTP,
			// Half of Nomad's default kill_timeout of 5 s: the rest is for Raft.
			Drain: 2500 * time.Millisecond,
		},
		TLS: TLS{ServerName: raft.DefaultServerName, Raft: true, HTTP: true},
		// Deny by default.
		ACL:    ACL{Enabled: true},
		Nomad:  defaultNomad(),
		Consul: Consul{Service: "remuda-controller"},
		Reconcile: Reconcile{
			Config: planner.DefaultConfig(),
			// Several reports of a gateway, so that one that is lost makes no difference.
			GatewayTTL: 10 * time.Second,
		},
	}
}

// defaultNomad is as nomad.DefaultConfig, which has the reasons.
func defaultNomad() Nomad { return Nomad{Rate: 50, Burst: 100} }

// DevConfig returns settings for `remuda agent -dev`: one server on loopback without
// ACLs. DataDir is empty: the caller makes a temporary one.
func DevConfig() Config {
	c := DefaultConfig()
	c.ACL.Enabled = false
	c.Raft.Secret = rand.Text() // No other server joins it.
	// A single server has nobody to elect but itself: let it lead at once.
	c.Raft.HeartbeatTimeout, c.Raft.ElectionTimeout, c.Raft.LeaderLeaseTimeout = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	return c
}

// problems checks all settings, and returns what is wrong with them.
func (c Config) problems() hclfault.Problems {
	var out hclfault.Problems
	bad, blame := out.Add, out.Blame
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		bad("log_level", "is %q: must be trace, debug, info, warn or error", c.LogLevel)
	}
	if c.BootstrapExpect == 0 && len(c.Join) == 0 {
		bad("join", "is required with bootstrap_expect = 0: the addresses of servers of the cluster")
		blame("bootstrap_expect")
	}
	out = append(out, c.raftProblems()...)
	host, _, err := net.SplitHostPort(c.HTTP.Bind)
	switch {
	case err != nil:
		bad("http.bind", `is %q: must be "host:port"`, c.HTTP.Bind)
	case c.HTTP.Advertise == "" && unspecified(host):
		bad("http.advertise", "is required with bind %s: other servers need one address of this machine", c.HTTP.Bind)
		blame("http.bind")
	}
	if c.HTTP.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.HTTP.Advertise); err != nil || unspecified(host) || port == "" || port == "0" {
			bad("http.advertise", `is %q: must be "host:port" at which others reach this server`, c.HTTP.Advertise)
		}
	}
	if c.HTTP.Drain < time.Millisecond {
		bad("http.drain", "is %s: must be at least 1ms", c.HTTP.Drain)
	}
	out = append(out, c.TLS.problems()...)
	out.Within("nomad.", c.Nomad.problems())
	out.Within("", c.poolProblems())
	out.Within("reconcile.", c.Reconcile.Problems())
	if c.Reconcile.GatewayTTL < 100*time.Millisecond {
		bad("reconcile.gateway_ttl", "is %s: must be at least 100ms, and several report intervals of the gateways", c.Reconcile.GatewayTTL)
	}
	return out
}

// raft returns the settings of a server's Raft without what it is connected to.
func (c Config) raft(secret string, secure *raft.TLS) raft.Config {
	rc := raft.DefaultConfig()
	rc.DataDir, rc.Cluster, rc.BootstrapExpect, rc.Join = c.DataDir, c.Cluster, c.BootstrapExpect, c.Join
	rc.Bind, rc.Advertise, rc.TLS, rc.Secret = c.Raft.Bind, c.Raft.Advertise, secure, secret
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = c.Raft.HeartbeatTimeout, c.Raft.ElectionTimeout, c.Raft.LeaderLeaseTimeout
	rc.ServerStabilizationTime = c.Raft.ServerStabilizationTime
	rc.SnapshotInterval, rc.SnapshotThreshold, rc.TrailingLogs = c.Raft.SnapshotInterval, c.Raft.SnapshotThreshold, c.Raft.TrailingLogs
	return rc
}

func (c Config) raftProblems() hclfault.Problems {
	var out hclfault.Problems
	secret, err := c.Raft.secret()
	switch {
	case c.Raft.Secret != "" && c.Raft.SecretFile != "":
		out.Add("raft.secret_file", "is set, and raft.secret too: set one of them")
		out.Blame("raft.secret")
		secret = anySecret
	case err != nil:
		out.Add("raft.secret_file", "%v", err)
		secret = anySecret
	}
	var secure *raft.TLS
	if c.TLS.forRaft() {
		secure = new(raft.TLS) // the files are checked elsewhere
	}
	rc := c.raft(secret, secure)
	for _, p := range rc.Problems() {
		if p.Field == "raft.secret" && c.Raft.SecretFile != "" {
			p.Field = "raft.secret_file"
		}
		out = append(out, p)
	}
	return out
}

// anySecret stands for a secret that is not known while the other settings are checked.
var anySecret = strings.Repeat("x", raft.MinSecret)

// secret returns the secret of the Raft port, empty if there is none.
func (r Raft) secret() (string, error) {
	if r.SecretFile == "" {
		return r.Secret, nil
	}
	data, err := os.ReadFile(r.SecretFile)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	secret := strings.TrimSpace(string(data))
	if secret == "" {
		return "", fmt.Errorf("is empty: must have at least %d bytes (\"openssl rand -hex 32\" prints a good one)", raft.MinSecret)
	}
	return secret, nil
}

func (t TLS) problems() hclfault.Problems {
	var out hclfault.Problems
	if t.given() && t.ServerName == "" {
		out = append(out, hclfault.Problem{Field: "tls.server_name", Text: "is empty: must be a DNS name that the certificates of all servers bear"})
	}
	files := []struct{ field, path string }{{"tls.ca_file", t.CAFile}, {"tls.cert_file", t.CertFile}, {"tls.key_file", t.KeyFile}}
	for _, f := range files {
		switch {
		case f.path == "" && t.given():
			out = append(out, hclfault.Problem{Field: f.field, Text: "is missing: set tls.ca_file, tls.cert_file and tls.key_file together", Blame: []string{"tls.ca_file", "tls.cert_file", "tls.key_file"}})
		case f.path != "":
			if err := readable(f.path); err != nil {
				out = append(out, hclfault.Problem{Field: f.field, Text: fmt.Sprintf("cannot be read: %v", err)})
			}
		}
	}
	if t.VerifyClient && !t.forHTTP() {
		out = append(out, hclfault.Problem{Field: "tls.verify_client", Text: "is true without TLS for the API: set tls.ca_file, tls.cert_file, tls.key_file and tls.http"})
	}
	return out
}

func (n Nomad) problems() hclfault.Problems {
	var out hclfault.Problems
	if n.Address != "" {
		if u, err := url.Parse(n.Address); err != nil || u.Host == "" && u.Scheme != "unix" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			out.Add("address", `is %q: must be a URL like "http://127.0.0.1:4646"`, n.Address)
		}
	}
	if (n.CertFile == "") != (n.KeyFile == "") {
		out.Add("cert_file", "and key_file must be set together")
		out.Blame("key_file")
	}
	for _, f := range []struct{ field, path string }{{"ca_file", n.CAFile}, {"cert_file", n.CertFile}, {"key_file", n.KeyFile}} {
		if f.path == "" {
			continue
		}
		if err := readable(f.path); err != nil {
			out.Add(f.field, "cannot be read: %v", err)
		}
	}
	for _, v := range []struct {
		field string
		value int
	}{{"rate", n.Rate}, {"burst", n.Burst}} {
		if v.value < 1 {
			out.Add(v.field, "is %d: must be at least 1", v.value)
		}
	}
	return out
}

// validate names every bad setting at once.
func (c Config) validate() error { return c.problems().Err("invalid agent config") }

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
