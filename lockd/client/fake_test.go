package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/lockd/client"
	"remuda/lockd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is what the fake lockd does with one connection, which is closed after it.
type script func(p *peer)

// peer is a connection of the fake lockd.
type peer struct {
	t    testing.TB
	conn net.Conn
	r    *wire.Reader
}

func newPeer(t testing.TB, conn net.Conn) *peer { return &peer{t, conn, wire.NewReader(conn)} }

// fail ends the script.
func (p *peer) fail(format string, args ...any) {
	p.t.Helper()
	p.t.Errorf(format, args...)
	runtime.Goexit()
}

// read returns the next request, or false at the end of the connection.
func (p *peer) read() (wire.Request, bool) {
	line, err := p.r.Line()
	if err != nil {
		return wire.Request{}, false
	}
	r, err := wire.DecodeRequest(line)
	if err != nil {
		p.fail("the client sent %q: %v", line, err)
	}
	return r, true
}

// acquire expects the acquire of test's config with a token.
func (p *peer) acquire(token uint64) {
	p.t.Helper()
	want := wire.Request{Op: wire.OpAcquire, Protocol: wire.Protocol, Group: "llama:h100:7f3a", Holder: "primary", Token: token}
	r, ok := p.read()
	r.SessionTTL = 0 // see TestSessionTTLIsAnnounced
	if !ok || r != want {
		p.fail("the client sent %+v (%t): want %+v", r, ok, want)
	}
}

// ping expects a ping.
func (p *peer) ping() {
	p.t.Helper()
	if r, ok := p.read(); !ok || r.Op != wire.OpPing {
		p.fail("the client sent %+v (%t): want a ping", r, ok)
	}
}

// send sends events in one piece.
func (p *peer) send(events ...wire.Event) {
	var all []byte
	for _, e := range events {
		line, err := wire.EncodeEvent(e)
		if err != nil {
			p.fail("encode %+v: %v", e, err)
		}
		all = append(all, line...)
	}
	p.raw(all)
}

// raw sends bytes. It is no matter that the client may have gone.
func (p *peer) raw(b []byte) { _, _ = p.conn.Write(b) }

// silent reads until the client goes, and answers nothing.
func (p *peer) silent() { _, _ = io.Copy(io.Discard, p.conn) }

// pongs answers pings until the client goes.
func (p *peer) pongs() {
	for {
		r, ok := p.read()
		if !ok {
			return
		}
		if r.Op != wire.OpPing {
			p.fail("the client sent %+v: want a ping", r)
		}
		p.send(pong)
	}
}

var pong = wire.Event{Event: wire.Pong}

func granted(token uint64) wire.Event { return wire.Event{Event: wire.Granted, Token: token} }

func regranted(token uint64) wire.Event {
	return wire.Event{Event: wire.Granted, Token: token, Regranted: true}
}

func waiting(position int) wire.Event { return wire.Event{Event: wire.Waiting, Position: position} }

func refused(code string) wire.Event {
	return wire.Event{Event: wire.Refused, Code: code, Error: "because of " + code}
}

// answers is a script: the acquire with a token is answered with events, and
// then the connection is kept.
func answers(token uint64, events ...wire.Event) script {
	return func(p *peer) {
		p.acquire(token)
		p.send(events...)
		p.silent()
	}
}

// grants is a script: the acquire is granted and the connection closed.
func grants(token uint64) script {
	return func(p *peer) {
		p.acquire(0)
		p.send(granted(token))
	}
}

// config is a valid one with generous times.
func config(addr string) client.Config {
	cfg := client.DefaultConfig()
	cfg.Addr, cfg.Group, cfg.Holder = addr, "llama:h100:7f3a", "primary"
	cfg.SessionTTL = 30 * time.Second
	return cfg
}

func newClient(t testing.TB, cfg client.Config) *client.Client {
	t.Helper()
	c, err := client.New(cfg)
	require.NoError(t, err)
	return c
}

// serve is a fake lockd on a listener. Each connection runs the next script, the
// last one again and again.
func serve(t testing.TB, ln net.Listener, scripts ...script) (stop func()) {
	var conns sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	closed := false
	conns.Go(func() {
		for i := 0; ; i++ {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			if closed {
				conn.Close()
			}
			mu.Unlock()
			conns.Go(func() {
				defer func() {
					conn.Close()
					mu.Lock()
					delete(open, conn)
					mu.Unlock()
				}()
				scripts[min(i, len(scripts)-1)](newPeer(t, conn))
			})
		}
	})
	stop = sync.OnceFunc(func() {
		ln.Close()
		mu.Lock()
		closed = true
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// unixServer is a fake lockd on a Unix socket. It returns the path.
func unixServer(t testing.TB, scripts ...script) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	serve(t, ln, scripts...)
	return path
}

// tcpServer is a fake lockd on TCP, with TLS if cfg is not nil. It returns the
// address with its scheme.
func tcpServer(t testing.TB, cfg *tls.Config, scripts ...script) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := "tcp://" + ln.Addr().String()
	if cfg != nil {
		ln = tls.NewListener(ln, cfg)
	}
	serve(t, ln, scripts...)
	return addr
}

// dial is how a connection is made, or not, to a fake lockd in memory, so that a
// test in a bubble has the time to itself.
type dial func(ctx context.Context) (net.Conn, error)

var errAway = errors.New("lockd is away")

// away is a lockd that does not listen.
func away(context.Context) (net.Conn, error) { return nil, errAway }

// hangs is a connection that is never made.
func hangs(ctx context.Context) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// up is a lockd that runs a script.
func up(t testing.TB, s script) dial {
	return func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			s(newPeer(t, far))
		}()
		return near, nil
	}
}

// piped has a client connect by dials, by the last one again and again. It
// returns when that was.
func piped(c *client.Client, dials ...dial) (when func() []time.Time) {
	var mu sync.Mutex
	var at []time.Time
	client.SetDial(c, func(ctx context.Context) (net.Conn, error) {
		mu.Lock()
		d := dials[min(len(at), len(dials)-1)]
		at = append(at, time.Now())
		mu.Unlock()
		return d(ctx)
	})
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Time(nil), at...)
	}
}
