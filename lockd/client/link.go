package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"remuda/internal/unixsock"
	"remuda/lockd/wire"
)

// writeTimeout bounds the sending of a line. A line of a few bytes waits only
// when thousands before it were not read, so this is a last resort.
const writeTimeout = time.Second

// errSession means that lockd answered nothing that was sent in the last
// SessionTTL.
var errSession = errors.New("the session has expired: lockd did not respond in time")

// dialer opens a connection.
type dialer func(ctx context.Context) (net.Conn, error)

// dialer returns how lockd is reached. The config is valid.
func (c Config) dialer() dialer {
	network, addr, _ := parseAddr(c.Addr)
	switch {
	case network == "unix":
		return func(ctx context.Context) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if err := trusted(conn.(*net.UnixConn)); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		}
	case c.TLS == nil:
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	d := tls.Dialer{Config: c.TLS.Clone()}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, network, addr) }
}

// trusted returns an error unless the process that listens belongs to this user or to
// root: another user who can write where the socket is could grant one lock twice.
func trusted(conn *net.UnixConn) error {
	cred, err := unixsock.PeerCred(conn)
	if err != nil {
		return err //nolint:wrapcheck // it says what was read
	}
	if uid := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != uid {
		return fmt.Errorf("user %d listens on the socket: must be user %d or root", cred.Uid, uid)
	}
	return nil
}

// link is one connection. A goroutine reads it; everything else is done by its
// owner, one goroutine at a time. Whoever opens a link closes it.
type link struct {
	conn net.Conn
	// lease is the connection's own: a new connection starts a new one.
	lease lease
	born  time.Time

	arrivals chan arrival
	stop     chan struct{}
	ended    chan struct{}
}

// arrival is what was read. An error is the last.
type arrival struct {
	event wire.Event
	err   error
}

// open connects and sends a request.
func (c Config) open(ctx context.Context, dial dialer, ttl time.Duration, soft bool, r wire.Request) (*link, error) {
	attempt, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	conn, err := dial(attempt)
	if err != nil {
		return nil, fmt.Errorf("connect to lockd at %s: %w", c.Addr, err)
	}
	now := time.Now()
	l := &link{
		conn:     conn,
		lease:    newLease(ttl, soft, now),
		born:     now,
		arrivals: make(chan arrival),
		stop:     make(chan struct{}),
		ended:    make(chan struct{}),
	}
	go l.read()
	deadline, ok := ctx.Deadline()
	if most := now.Add(writeTimeout); !ok || most.Before(deadline) {
		deadline = most
	}
	if err := l.send(r, deadline); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// send sends a request.
func (l *link) send(r wire.Request, deadline time.Time) error {
	line, err := wire.EncodeRequest(r)
	if err == nil {
		err = l.conn.SetWriteDeadline(deadline)
	}
	if err == nil {
		_, err = l.conn.Write(line)
	}
	if err != nil {
		return fmt.Errorf("send %s to lockd: %w", r.Op, err)
	}
	return nil
}

// read reads until the connection ends or breaks the protocol.
func (l *link) read() {
	defer close(l.ended)
	r := wire.NewReader(l.conn)
	for {
		var a arrival
		line, err := r.Line()
		if err == nil {
			a.event, err = wire.DecodeEvent(line)
		}
		if err != nil {
			a.err = fmt.Errorf("read from lockd: %w", err)
		}
		select {
		case l.arrivals <- a:
		case <-l.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// next returns the next event that is no pong, and keeps the session alive while
// it waits. The error is errSession, the context's cause, or why the connection
// is of no more use.
func (l *link) next(ctx context.Context) (wire.Event, error) {
	for {
		a, arrived, err := l.wait(ctx)
		if err != nil {
			return wire.Event{}, err
		}
		// A session that is over stays so, whatever came in the same moment.
		now := time.Now()
		switch {
		case l.lease.over(now):
			return wire.Event{}, errSession
		case !arrived && now.Before(l.lease.due()):
		case !arrived:
			if err := l.ping(now); err != nil {
				return wire.Event{}, err
			}
		case a.err != nil:
			return wire.Event{}, a.err
		case a.event.Event != wire.Pong:
			return a.event, nil
		case !l.lease.pong():
			return wire.Event{}, unexpected(a.event, "no ping is unanswered")
		}
	}
}

// wait waits for an arrival, or until the lease has something to do. The error
// is the context's cause.
func (l *link) wait(ctx context.Context) (a arrival, arrived bool, err error) {
	var alarm <-chan time.Time
	if l.lease.ttl != 0 {
		at := l.lease.due()
		if l.lease.ends() && l.lease.until.Before(at) {
			at = l.lease.until
		}
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-ctx.Done():
		return a, false, context.Cause(ctx)
	case <-alarm:
		return a, false, nil
	case a = <-l.arrivals:
		return a, true, nil
	}
}

// age is how long ago the connection was opened.
func (l *link) age() time.Duration { return time.Since(l.born) }

func (l *link) ping(now time.Time) error {
	l.lease.ping(now)
	deadline := now.Add(writeTimeout)
	if l.lease.ends() && l.lease.until.Before(deadline) {
		deadline = l.lease.until
	}
	return l.send(wire.Request{Op: wire.OpPing}, deadline)
}

// close closes the connection and waits for its reader. It does not say goodbye
// in TLS: that could block, and lockd takes an end for an end.
func (l *link) close() {
	close(l.stop)
	conn := l.conn
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	conn.Close()
	<-l.ended
}

// unexpected is the error of an event that is out of place.
func unexpected(e wire.Event, why string) error {
	return fmt.Errorf("lockd broke the protocol: event %.40q, but %s", e.Event, why)
}
