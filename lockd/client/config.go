package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/unixsock"
	"remuda/lockd/wire"
)

// Config says which lock is wanted, of which lockd, and under which times.
type Config struct {
	// Addr is where lockd listens: /path/to.sock, unix:///path/to.sock or
	// tcp://host:port. A relative path needs a slash, as ./to.sock. Required.
	Addr string
	// TLS is used over tcp. Without it (nil) tcp is allowed to this machine
	// only, as localhost or a loopback address: a lock's holder is who its
	// certificate says. An empty ServerName means Addr's host. It must be nil
	// for a Unix socket.
	TLS *tls.Config
	// Group is the lock's name and Holder is who asks for it, both required:
	// printable characters, at most wire.MaxName bytes.
	Group  string
	Holder string

	// SessionTTL is how long lockd lets a holder over tcp be silent before its
	// session ends: the same value as lockd's own, or less. It has no effect on a
	// Unix socket, where there is no session.
	SessionTTL time.Duration
	// Heartbeat is how long this process may be silent on a Unix socket before
	// lockd takes it for hung, drops the connection and, after its reconnect
	// window, ends the process; 0 sends no signs of life. A third of it is the
	// time between two. It has no effect over tcp.
	Heartbeat time.Duration
	// ConnectTimeout bounds one attempt to connect, the TLS handshake included.
	// Further attempts follow.
	ConnectTimeout time.Duration

	// Logger may be nil.
	Logger hclog.Logger
	// OnWaiting, if it is not nil, is told the place in the queue, from 1,
	// whenever it changes, and again after a reconnection. Acquire calls it and
	// waits for it, so it must not block.
	OnWaiting func(position int)
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		SessionTTL:     10 * time.Second, // as lock.DefaultTimes
		ConnectTimeout: 2 * time.Second,  // a network's round trips take milliseconds, and a session of 10 s leaves room for further attempts
		Logger:         hclog.NewNullLogger(),
	}
}

// validate names every bad field.
func (c Config) validate() error {
	errs := c.serverErrors()
	if !utf8.ValidString(c.Group) || !utf8.ValidString(c.Holder) {
		errs = append(errs, fmt.Errorf("group is %q and holder is %q: must be valid UTF-8", c.Group, c.Holder))
	} else if line, err := wire.EncodeRequest(c.acquire(0)); err != nil {
		errs = append(errs, fmt.Errorf("group and holder: %w", err))
	} else if _, err := wire.DecodeRequest(line); err != nil {
		errs = append(errs, err) // lockd's own check
	}
	if c.Heartbeat != 0 && c.Heartbeat < time.Second {
		errs = append(errs, fmt.Errorf("heartbeat is %s: must be 0 (none) or at least 1s", c.Heartbeat))
	}
	return errors.Join(errs...)
}

// serverErrors are about the fields that say how to reach lockd.
func (c Config) serverErrors() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	network, addr, err := parseAddr(c.Addr)
	switch {
	case err != nil:
		errs = append(errs, err)
	case network == "unix" && c.TLS != nil:
		bad("TLS is set and address %q is a Unix socket: use TLS with tcp only", c.Addr)
	case network == "tcp" && c.TLS == nil && !loopback(addr):
		bad("TLS is missing: must be set for address %q, which is not on this machine", c.Addr)
	}
	if c.ConnectTimeout <= 0 {
		bad("connect timeout is %s: must be more than 0", c.ConnectTimeout)
	}
	if network == "tcp" && c.SessionTTL <= 0 {
		bad("session TTL is %s: must be more than 0", c.SessionTTL)
	}
	return errs
}

// ttl is the session's, or that of the signs of life.
func (c Config) ttl() time.Duration {
	if c.soft() {
		return c.Heartbeat
	}
	return c.SessionTTL
}

// soft tells that there is no session.
func (c Config) soft() bool {
	network, _, _ := parseAddr(c.Addr)
	return network != "tcp"
}

func (c Config) acquire(token uint64) wire.Request {
	return wire.Request{Op: wire.OpAcquire, Protocol: wire.Protocol, Group: c.Group, Holder: c.Holder, Token: token, SessionTTL: c.ttl().Milliseconds()}
}

// parseAddr returns what package net wants.
func parseAddr(s string) (network, addr string, err error) {
	if hostport, ok := strings.CutPrefix(s, "tcp://"); ok {
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return "", "", fmt.Errorf("address is %q: must be tcp://host:port: %w", s, err)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return "", "", fmt.Errorf("address is %q: must be tcp://host:port with a host and a port from 1 to 65535", s)
		}
		return "tcp", hostport, nil
	}
	path := strings.TrimPrefix(s, "unix://")
	switch {
	case s == "":
		return "", "", errors.New("address is missing: must be /path/to.sock, unix:///path/to.sock or tcp://host:port")
	case !strings.Contains(path, "/") || strings.Contains(path, "://"): // host:port without tcp://, perhaps
		return "", "", fmt.Errorf("address is %q: must be /path/to.sock (./to.sock), unix:///path/to.sock or tcp://host:port", s)
	case len(path) > unixsock.MaxPath:
		return "", "", fmt.Errorf("address is %q: the path has %d bytes: must be at most %d", s, len(path), unixsock.MaxPath)
	case strings.ContainsRune(path, 0):
		return "", "", fmt.Errorf("address is %q: the path contains a NUL", s)
	}
	return "unix", path, nil
}

func loopback(hostport string) bool {
	host, _, _ := net.SplitHostPort(hostport)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
