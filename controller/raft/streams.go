package raft

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// The first byte of a connection, after TLS, says what it is for.
const (
	streamRaft    = 'R'
	streamPeering = 'P'
)

// helloTimeout bounds how long a new connection may take to say what it is for.
const helloTimeout = 10 * time.Second

// maxPending bounds the connections that have not said so yet.
const maxPending = 64

// streams is the one port of a server. It is the StreamLayer of Raft, and hands the
// other connections to peering.
type streams struct {
	listener  net.Listener
	advertise string
	tls       *TLS
	dial      func(ctx context.Context, address string) (net.Conn, error)
	// peering serves one connection and returns when it is done with it.
	peering func(net.Conn)

	raft    chan net.Conn
	pending chan struct{}
	closed  chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	mu sync.Mutex
	// conns are those that were accepted and are open.
	conns map[net.Conn]struct{}
}

var _ hraft.StreamLayer = (*streams)(nil)

func listen(cfg *Config) (*streams, error) {
	l, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	s := &streams{
		listener: l, advertise: cfg.Advertise, tls: cfg.TLS, dial: cfg.Dial,
		raft: make(chan net.Conn), pending: make(chan struct{}, maxPending),
		closed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	if s.advertise == "" {
		s.advertise = l.Addr().String()
	}
	if s.dial == nil {
		// A server that listens on one address also calls from it, so that firewalls can
		// be told who the servers are.
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

// serve starts accepting. peering must be set.
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
			select {
			case s.pending <- struct{}{}:
			default:
				conn.Close()
				continue
			}
			s.wg.Go(func() { s.sort(conn) })
		}
	})
}

// tracked forgets itself when it is closed.
type tracked struct {
	net.Conn
	forget func()
}

func (t *tracked) Close() error {
	t.forget()
	return t.Conn.Close()
}

// sort finds out what a connection is for.
func (s *streams) sort(conn net.Conn) {
	raw := conn
	s.mu.Lock()
	s.conns[raw] = struct{}{}
	s.mu.Unlock()
	select {
	case <-s.closed:
		raw.Close()
	default:
	}
	if s.tls != nil {
		conn = tls.Server(conn, s.tls.server)
	}
	var t net.Conn = &tracked{Conn: conn, forget: func() {
		s.mu.Lock()
		delete(s.conns, raw)
		s.mu.Unlock()
	}}
	var kind [1]byte
	err := conn.SetDeadline(time.Now().Add(helloTimeout))
	if err == nil {
		_, err = io.ReadFull(conn, kind[:])
	}
	<-s.pending
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		t.Close()
		return
	}
	switch kind[0] {
	case streamRaft:
		select {
		case s.raft <- t:
		case <-s.closed:
			t.Close()
		}
	case streamPeering:
		s.peering(t)
		t.Close()
	default:
		t.Close()
	}
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

func (s *streams) open(ctx context.Context, address string, kind byte) (net.Conn, error) {
	conn, err := s.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if s.tls != nil {
		cfg := s.tls.client.Clone()
		if cfg.ServerName == "" {
			if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
		}
		secure := tls.Client(conn, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("TLS with %s: %w", address, err), conn.Close())
		}
		conn = secure
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	if err == nil {
		_, err = conn.Write([]byte{kind})
	}
	if err == nil && kind == streamRaft {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Close implements net.Listener: it closes the port and every connection that came
// in by it.
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
