// Package lockd is the failover lock server: Consul-session
// style locks whose proof of death is the kernel's.
//
// The rules are in the package lock, a pure state machine. This package carries
// out its effects: sockets, the state file, and watching, ending and proving
// dead the processes that hold locks.
//
// A lock on a Unix socket belongs to the process that connected. It is free
// again when that process and everything that descends from it is gone, which
// the kernel says; a closed connection proves nothing. A process of another PID
// namespace gets no lock there. Over TCP, where no kernel can tell, a session with a
// TTL and a lock-delay decides.
package lockd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/lockd/lock"
)

// Config says where lockd listens and how long it waits.
type Config struct {
	// Socket is the path of the Unix socket, made with mode 0600. Required.
	Socket string
	// Listen is a TCP address for groups that span machines; empty for none.
	Listen string
	// TLS is for Listen; it must ask for client certificates, whose common name
	// is the holder's identity. Only a loopback Listen may do without.
	TLS *tls.Config
	// State is the directory of the state file, made with mode 0700 where it is
	// missing. It must outlive reboots and be on the node's own disk. Required.
	State string
	// Node is the machine ID (machine-id(5)) of this node; a state directory that
	// another node wrote is rejected. Empty where the node has none.
	Node string
	// Times are the waits that decide about holders.
	Times lock.Times
	// OnChange, if not nil, is told the status whenever it may have changed. It
	// must not block, and must not call the server.
	OnChange func([]lock.Status)
	// OnEnd, if not nil, is told when a local holder and its cohort are proven gone, before
	// the next one is granted the lock: whatever that life of the holder has announced about
	// itself is no longer true, and it announces nothing any more. cohort is its mark, empty
	// for none. It must not block, and must not call the server.
	OnEnd func(group, cohort string)
	// MaxConns bounds the connections that are open at once.
	MaxConns int
	Logger   hclog.Logger
	// Metrics takes lockd's metrics; nil for none.
	Metrics prometheus.Registerer
	// OnListen, if not nil, is called with the TCP address in use.
	OnListen func(net.Addr)
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Node:     machineID(),
		Times:    lock.DefaultTimes(),
		MaxConns: 4096, // a group has a handful; descriptors are usually limited to more
		Logger:   hclog.NewNullLogger(),
	}
}

// machineID reads machine-id(5).
func machineID() string {
	raw, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Socket == "" {
		bad("socket is empty: must be the path of the Unix socket")
	}
	if len(c.Socket) > 107 {
		bad("socket is %d bytes long: must be at most 107", len(c.Socket))
	}
	if c.State == "" {
		bad("state is empty: must be the directory of the state file")
	}
	if c.MaxConns < 2 {
		bad("max connections is %d: must be at least 2", c.MaxConns)
	}
	if c.Logger == nil {
		bad("logger must be set")
	}
	if c.Listen != "" {
		errs = append(errs, c.validateListen())
	}
	if err := validateTimes(c.Times); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

const (
	// deathAllowance is what a holder whose session is over gets to end an
	// engine: SIGKILL, and the kernel's work to free its memory.
	deathAllowance = 500 * time.Millisecond
	// clockSkew: two machines' monotonic clocks differ by at most one part in
	// so many (quartz is ten times better, and NTP slews by half of it).
	clockSkew = 1000
)

func validateTimes(t lock.Times) error {
	var errs []error
	// A remote holder gives up SessionTTL after it sent what was last answered.
	// lockd gives its lock away SessionTTL + LockDelay after it received that,
	// which was later. So the holder has LockDelay, less what two clocks differ
	// over a TTL, to end its processes: LockDelay must not be shorter than that
	// takes.
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"reconnect-window", t.Reconnect, 0},
		{"session-ttl", t.SessionTTL, time.Second},
		{"lock-delay", t.LockDelay, deathAllowance + t.SessionTTL/clockSkew},
	} {
		if d.value < d.least {
			errs = append(errs, fmt.Errorf("%s is %s: must be at least %s", d.name, d.value, d.least))
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateListen() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen is %q: must be host:port: %w", c.Listen, err)
	}
	if c.TLS == nil {
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("listen is %q: must be a loopback address unless TLS is set", c.Listen)
		}
		return nil
	}
	if c.TLS.ClientAuth != tls.RequireAndVerifyClientCert || c.TLS.ClientCAs == nil {
		return errors.New("tls must require and verify client certificates, so that each holder is authenticated")
	}
	return nil
}
