package raft

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/state"
	"remuda/internal/hclfault"
)

// Config configures a server.
type Config struct {
	// DataDir holds the log, the snapshots and the server's identity. One process at
	// a time can have it open.
	DataDir string
	// Bind is where to listen, host:port. Advertise is where other servers reach this
	// one; empty: Bind, which then must name one address.
	Bind, Advertise string
	// Cluster is a name that servers must share; it keeps those apart that meet by a
	// wrong address.
	Cluster string
	// BootstrapExpect is how many servers form a new cluster together: 1 at once,
	// more as soon as all of them are there. 0: never, only join.
	BootstrapExpect int
	// Join are the advertised addresses of other servers. A new server joins through
	// them, and a leader makes a server that joins a voter only if its address is among
	// them. This server's own may be among them.
	Join []string
	// RetryInterval is how long to wait between attempts to join.
	RetryInterval time.Duration
	// TLS authenticates and encrypts the connections of servers; nil: plain TCP.
	TLS *TLS
	// Secret authenticates the connections of servers and does not encrypt them. It is
	// the same on all servers, at least MinSecret bytes; empty: none. A server that does
	// not listen on loopback needs TLS or Secret, and may have both.
	Secret string
	// ServerStabilizationTime is how long a non-voter must be healthy without a break
	// before the leader makes it a voter.
	ServerStabilizationTime time.Duration
	// FeatureLevel is what this server can apply; tests set other levels.
	FeatureLevel int
	// API is the address of this server's HTTP API. Other servers learn it from a hello.
	API string

	// HeartbeatTimeout is how long a follower waits to hear from the leader before it
	// wants an election, ElectionTimeout how long a candidate waits for one, and
	// LeaderLeaseTimeout how long a leader that is cut off goes on believing.
	HeartbeatTimeout, ElectionTimeout, LeaderLeaseTimeout time.Duration
	// ApplyTimeout is how long a command may wait to be taken by the leader.
	ApplyTimeout time.Duration
	// SnapshotInterval and SnapshotThreshold: a snapshot is made that often, if there
	// are that many new entries. TrailingLogs are kept behind it, so that a follower
	// that was away for a moment need not have all of the state sent.
	SnapshotInterval                time.Duration
	SnapshotThreshold, TrailingLogs uint64
	// MaxBatch is how many commands go to disk and to followers in one step.
	MaxBatch int

	// Dial connects to another server; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Store is where commands are applied. Nobody else applies to it.
	Store  *state.Store
	Logger hclog.Logger
	// Registerer, nil: no metrics.
	Registerer prometheus.Registerer
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Cluster:       "remuda",
		RetryInterval: time.Second,
		// As Nomad and Consul: a server that fails soon after its start does not become a voter.
		ServerStabilizationTime: 10 * time.Second,
		FeatureLevel:            state.FeatureLevel,
		HeartbeatTimeout:        time.Second, // as hashicorp/raft: fine within a region, and an election is rare
		ElectionTimeout:         time.Second,
		LeaderLeaseTimeout:      500 * time.Millisecond, // below the heartbeat timeout: the old leader stops first
		ApplyTimeout:            5 * time.Second,
		SnapshotInterval:        30 * time.Second,
		SnapshotThreshold:       8192,   // about 5 MB of commands
		TrailingLogs:            10_240, // several seconds of the fastest changes
		MaxBatch:                256,    // one fsync for many: a placement is below 1 KiB
		Logger:                  hclog.NewNullLogger(),
	}
}

func (c *Config) validate() error {
	bad := c.Problems()
	if c.Store == nil {
		bad.Add("store", "must be set")
	}
	if c.Logger == nil {
		bad.Add("logger", "must be set")
	}
	return bad.Err("invalid Raft config")
}

// Problems are all bad settings, by their names in the agent's config file where it has them.
// Store and Logger are not checked.
func (c *Config) Problems() hclfault.Problems {
	var out hclfault.Problems
	bad, blame := out.Add, out.Blame
	if c.DataDir == "" {
		bad("data_dir", "is required: the directory of the Raft log, which must survive a restart")
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
	}
	for _, a := range c.Join {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" || port == "0" {
			bad("join", `has %q: must be "host:port" of another server's Raft port`, a)
		}
	}
	host, _, err := net.SplitHostPort(c.Bind)
	switch {
	case err != nil:
		bad("raft.bind", `is %q: must be "host:port"`, c.Bind)
	case c.TLS == nil && c.Secret == "" && !Loopback(host):
		bad("raft.bind", "is %s and the Raft port has no authentication, so every host that reaches it could take over the cluster: set raft.secret or raft.secret_file, the same on all servers (\"openssl rand -hex 32\" prints one), or tls.ca_file, tls.cert_file and tls.key_file", c.Bind)
	}
	if c.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.Advertise); err != nil || unspecified(host) || port == "" || port == "0" {
			bad("raft.advertise", `is %q: must be "host:port" at which others reach this server`, c.Advertise)
		}
	} else if err == nil && unspecified(host) {
		bad("raft.advertise", "is required with bind %s: other servers need one address of this machine", c.Bind)
		blame("raft.bind")
	}
	if n := len(c.Secret); n > 0 && n < MinSecret {
		bad("raft.secret", "has %d bytes: must have at least %d (\"openssl rand -hex 32\" prints a good one)", n, MinSecret)
	}
	for _, d := range []struct {
		field   string
		is, min time.Duration
	}{
		{"retry interval", c.RetryInterval, time.Millisecond},
		{"apply timeout", c.ApplyTimeout, time.Millisecond},
		// hashicorp/raft refuses less of the others.
		{"raft.server_stabilization_time", c.ServerStabilizationTime, 5 * time.Millisecond},
		{"raft.heartbeat_timeout", c.HeartbeatTimeout, 5 * time.Millisecond},
		{"raft.election_timeout", c.ElectionTimeout, 5 * time.Millisecond},
		{"raft.leader_lease_timeout", c.LeaderLeaseTimeout, 5 * time.Millisecond},
		{"raft.snapshot_interval", c.SnapshotInterval, 5 * time.Millisecond},
	} {
		if d.is < d.min {
			bad(d.field, "is %s: must be at least %s", d.is, d.min)
		}
	}
	if c.LeaderLeaseTimeout > c.HeartbeatTimeout {
		bad("raft.leader_lease_timeout", "is %s: must be at most raft.heartbeat_timeout (%s)", c.LeaderLeaseTimeout, c.HeartbeatTimeout)
		blame("raft.heartbeat_timeout")
	}
	if c.SnapshotThreshold < 1 {
		bad("raft.snapshot_threshold", "is 0: must be at least 1")
	}
	if c.MaxBatch < 1 || c.MaxBatch > 1024 {
		bad("max batch", "is %d: must be 1 to 1024", c.MaxBatch)
	}
	return out
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// Loopback returns whether only processes of this machine reach a host. Of names it
// knows "localhost" only.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// DefaultServerName is the name that servers' certificates bear if the config sets no
// other.
const DefaultServerName = "server.remuda"

// TLS is how servers authenticate to each other, in both directions.
type TLS struct {
	server, client *tls.Config
}

// LoadTLS reads PEM files. Every server's certificate must be signed by ca for server
// and client use, and bear serverName. A certificate of the same CA without that name
// is rejected on both sides.
func LoadTLS(ca, cert, key, serverName string) (*TLS, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("raft TLS: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("raft TLS: %s contains no PEM certificate", ca)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("raft TLS: %w", err)
	}
	if err := pair.Leaf.VerifyHostname(serverName); err != nil {
		return nil, fmt.Errorf("raft TLS: certificate %s does not bear the servers' name %q: issue it with that DNS name, or set tls.server_name on all servers: %w", cert, serverName, err)
	}
	certs := []tls.Certificate{pair}
	return &TLS{
		server: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: certs, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyConnection: func(c tls.ConnectionState) error { return c.PeerCertificates[0].VerifyHostname(serverName) },
		},
		client: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: certs, RootCAs: pool, ServerName: serverName},
	}, nil
}
