package raft

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/state"
)

// Config says how a server takes part.
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
	// API is where this server's HTTP API is reached; others learn it by asking.
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
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DataDir == "" {
		bad("data directory must be set")
	}
	if c.Store == nil {
		bad("store must be set")
	}
	if c.Logger == nil {
		bad("logger must be set")
	}
	if c.Cluster == "" {
		bad("cluster must be set")
	}
	host, _, err := net.SplitHostPort(c.Bind)
	if err != nil {
		bad("bind address: %w", err)
	} else if c.TLS == nil && c.Secret == "" && !Loopback(host) {
		bad("bind address %s is not loopback and the port has no authentication: set a secret, the same on all servers, or TLS", c.Bind)
	}
	if n := len(c.Secret); n > 0 && n < MinSecret {
		bad("secret has %d bytes: must have at least %d", n, MinSecret)
	}
	if c.Advertise != "" {
		advertised, port, err := net.SplitHostPort(c.Advertise)
		switch {
		case err != nil:
			bad("advertise address: %w", err)
		case unspecified(advertised) || port == "0":
			bad("advertise address %s: other servers cannot reach it", c.Advertise)
		}
	} else if err == nil && unspecified(host) {
		bad("bind address %s stands for every address: the advertise address must be set", c.Bind)
	}
	if n := c.BootstrapExpect; n < 0 || n > 9 {
		bad("bootstrap expect is %d: must be 0 to 9", n)
	}
	if c.BootstrapExpect == 1 && len(c.Join) > 0 {
		bad("bootstrap expect is 1 and join is set, which would form two clusters: set it to 0 to join, or leave join empty")
	}
	if c.BootstrapExpect > 1 && len(c.Join) == 0 {
		bad("bootstrap expect is %d and join is empty: set the addresses of the other servers", c.BootstrapExpect)
	}
	for _, a := range c.Join {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("join address: %w", err)
		}
	}
	for _, d := range []struct {
		name string
		is   time.Duration
		min  time.Duration
	}{
		{"retry interval", c.RetryInterval, time.Millisecond},
		{"server stabilization time", c.ServerStabilizationTime, 5 * time.Millisecond},
		{"heartbeat timeout", c.HeartbeatTimeout, 5 * time.Millisecond},
		{"election timeout", c.ElectionTimeout, 5 * time.Millisecond},
		{"leader lease timeout", c.LeaderLeaseTimeout, 5 * time.Millisecond},
		{"apply timeout", c.ApplyTimeout, time.Millisecond},
		{"snapshot interval", c.SnapshotInterval, 5 * time.Millisecond},
	} {
		if d.is < d.min {
			bad("%s is %s: must be at least %s", d.name, d.is, d.min)
		}
	}
	if c.LeaderLeaseTimeout > c.HeartbeatTimeout {
		bad("leader lease timeout is %s: must be at most the heartbeat timeout, %s", c.LeaderLeaseTimeout, c.HeartbeatTimeout)
	}
	if c.MaxBatch < 1 || c.MaxBatch > 1024 {
		bad("max batch is %d: must be 1 to 1024", c.MaxBatch)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	return nil
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
