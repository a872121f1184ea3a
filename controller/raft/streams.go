package raft

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	hraft "github.com/hashicorp/raft"
	"golang.org/x/time/rate"
)

// The first byte of a connection, once it is authenticated, is its protocol.
const (
	streamRaft = 'R'
	streamRPC  = 'P'
)

const (
	// handshakeTimeout bounds the time from accepting a connection to its first byte.
	handshakeTimeout = 5 * time.Second
	// maxPending bounds the connections in the handshake. A peer needs milliseconds for
	// it, so thousands a second would have to arrive to evict one.
	maxPending = 256
)

// streams is the one port of a server. It is the StreamLayer of Raft, and passes the
// other connections to rpc.
type streams struct {
	listener  net.Listener
	advertise string
	tls       *TLS
	secret    string
	dial      func(ctx context.Context, address string) (net.Conn, error)
	// rpc serves one connection and returns when it is done with it.
	rpc func(net.Conn)
	// joined reports whether this server belongs to a cluster, or has promised to. Until then it
	// takes nothing of Raft: a leader may still write to its address, for a server that was there
	// before and has lost its data, and with that log this one could join no cluster.
	joined func() bool
	log    hclog.Logger
	// logRejected bounds the log lines that strangers cause.
	logRejected rate.Sometimes

	raft   chan net.Conn
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup

	mu sync.Mutex
	// conns are the accepted connections that are open.
	conns map[net.Conn]struct{}
	// pending are those in the handshake, oldest first.
	pending []net.Conn
}

var _ hraft.StreamLayer = (*streams)(nil)

func listen(cfg *Config) (*streams, error) {
	l, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	s := &streams{
		listener: l, advertise: cfg.Advertise, tls: cfg.TLS, secret: cfg.Secret, dial: cfg.Dial,
		log: cfg.Logger.Named("raft"), logRejected: rate.Sometimes{First: 5, Interval: 10 * time.Second},
		raft: make(chan net.Conn), closed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	if s.advertise == "" {
		s.advertise = l.Addr().String()
	}
	if s.dial == nil {
		// A server that listens on one address also dials from it, so that firewall rules
		// can name the servers.
		d := &net.Dialer{}
		if own, ok := l.Addr().(*net.TCPAddr); ok && !own.IP.IsUnspecified() {
			d.LocalAddr = &net.TCPAddr{IP: own.IP, Zone: own.Zone}
		}
		s.dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	return s, nil
}

// serve starts accepting. rpc and joined must be set.
func (s *streams) serve() {
	s.wg.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				select {
				case <-s.closed:
					return
				case <-time.After(50 * time.Millisecond): // Out of descriptors, say.
					continue
				}
			}
			s.admit(conn)
			s.wg.Go(func() { s.dispatch(conn) })
		}
	})
}

// admit adds a connection to those in the handshake. If there are too many, it closes
// the oldest one of the address that has the most.
func (s *streams) admit(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[conn] = struct{}{}
	s.pending = append(s.pending, conn)
	if len(s.pending) <= maxPending {
		return
	}
	count := map[string]int{}
	for _, c := range s.pending {
		count[host(c)]++
	}
	victim := 0
	for i, c := range s.pending {
		if count[host(c)] > count[host(s.pending[victim])] {
			victim = i
		}
	}
	s.pending[victim].Close()
	s.pending = slices.Delete(s.pending, victim, victim+1)
}

func host(conn net.Conn) string {
	h, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	return h
}

// admitted ends the handshake of a connection.
func (s *streams) admitted(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.pending, conn); i >= 0 {
		s.pending = slices.Delete(s.pending, i, i+1)
	}
}

// tracked removes itself from streams.conns when it is closed.
type tracked struct {
	net.Conn
	forget func()
}

func (t *tracked) Close() error {
	t.forget()
	return t.Conn.Close()
}

// dispatch authenticates a connection and passes it to its protocol.
func (s *streams) dispatch(raw net.Conn) {
	select {
	case <-s.closed:
		raw.Close()
	default:
	}
	conn, kind, err := s.accept(raw)
	s.admitted(raw)
	t := &tracked{Conn: conn, forget: func() {
		s.mu.Lock()
		delete(s.conns, raw)
		s.mu.Unlock()
	}}
	if err != nil {
		_ = t.Close()
		if errors.Is(err, net.ErrClosed) {
			return // This server stops, or has too many connections.
		}
		s.logRejected.Do(func() {
			s.log.Warn("connection to the Raft port rejected", "from", raw.RemoteAddr().String(), "reason", err)
		})
		return
	}
	switch kind {
	case streamRaft:
		if !s.joined() {
			_ = t.Close()
			s.logRejected.Do(func() {
				s.log.Warn("Raft connection rejected: this server has not joined a cluster yet", "from", raw.RemoteAddr().String())
			})
			return
		}
		select {
		case s.raft <- t:
		case <-s.closed:
			_ = t.Close()
		}
	case streamRPC:
		s.rpc(t)
		_ = t.Close()
	}
}

// accept is the server's side of the handshake. It always returns a connection to close.
func (s *streams) accept(conn net.Conn) (net.Conn, byte, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return conn, 0, err
	}
	if s.tls != nil {
		conn = tls.Server(conn, s.tls.server)
	}
	if s.secret != "" {
		if err := authServer(conn, s.secret); err != nil {
			return conn, 0, err
		}
	}
	var kind [1]byte
	if _, err := io.ReadFull(conn, kind[:]); err != nil {
		return conn, 0, err
	}
	if kind[0] != streamRaft && kind[0] != streamRPC {
		return conn, 0, fmt.Errorf("unknown protocol %q", kind[0])
	}
	return conn, kind[0], conn.SetDeadline(time.Time{})
}

// Accept implements net.Listener for Raft.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.raft:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Dial implements hraft.StreamLayer.
func (s *streams) Dial(address hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.open(ctx, string(address), streamRaft)
}

// open connects to another server for a protocol. The connection of an RPC keeps the
// deadline of ctx.
func (s *streams) open(ctx context.Context, address string, kind byte) (net.Conn, error) {
	conn, err := s.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	secure := conn
	if err == nil && s.tls != nil {
		t := tls.Client(conn, s.tls.client)
		if err = t.HandshakeContext(ctx); err != nil {
			err = fmt.Errorf("TLS with %s: %w", address, err)
		}
		secure = t
	}
	if err == nil && s.secret != "" {
		err = authClient(secure, s.secret)
	}
	if err == nil {
		_, err = secure.Write([]byte{kind})
	}
	if err == nil && kind == streamRaft {
		err = secure.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// Close implements net.Listener: it closes the port and every accepted connection.
func (s *streams) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		err = s.listener.Close()
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
	})
	return err
}

// wait returns when nothing that serve started runs.
func (s *streams) wait() { s.wg.Wait() }

// Addr implements net.Listener: the address that other servers use.
func (s *streams) Addr() net.Addr { return advertised(s.advertise) }

type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }
