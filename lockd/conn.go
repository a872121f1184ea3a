package lockd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"remuda/internal/unixsock"
	"remuda/lockd/cohort"
	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

const (
	// firstLine is how long a client may take for its first request.
	firstLine = 10 * time.Second
	// writeLimit is how long a line to a client may take. Lines are short and
	// few: only a client that is stuck fills its socket's buffer.
	writeLimit = 5 * time.Second
	// queueLimit is how many lines wait for a client. A waiter is told of each
	// new position, so it is more than a crowd of waiters makes at once.
	queueLimit = 1024
	// leastTTL keeps a client from being taken for hung when it is only slow.
	leastTTL = time.Second
	// codeForbidden: the client may not use this lockd.
	codeForbidden = "forbidden"
	// codeBusy: there are too many connections.
	codeBusy = "busy"
)

// conn is a client's connection.
type conn struct {
	id   lock.ConnID
	raw  net.Conn
	peer lock.Peer
	// name is who it is, for logs.
	name string
	// group and holder are what it asked for. Guarded by the server's mu.
	group, holder string
	// out holds lines to be sent; closing it ends the connection after them.
	out    chan []byte
	closed bool // guarded by the server's mu
}

// send queues a message; a client that does not read is cut off. mu is held.
func (c *conn) send(m lock.Message) {
	c.event(wire.Event{Event: m.Event, Position: m.Position, Token: m.Token, Regranted: m.Regranted, Code: m.Code, Error: m.Error})
}

func (c *conn) event(e wire.Event) {
	line, err := wire.EncodeEvent(e)
	if err != nil || c.closed {
		return
	}
	select {
	case c.out <- line:
	default:
		c.close()
		_ = c.raw.Close()
	}
}

// close ends the connection once what is queued is sent. mu is held.
func (c *conn) close() {
	if !c.closed {
		c.closed = true
		close(c.out)
	}
}

// accept serves a listener until it is closed.
func (s *Server) accept(l net.Listener) error {
	for {
		raw, err := l.Accept()
		switch {
		case err == nil:
		case s.ctx.Err() != nil:
			return nil //nolint:nilerr // the listener was closed by Run
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			s.refusals.Do(func() { s.logger.Error("cannot accept a connection", "error", err) })
			select {
			case <-s.ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			continue
		default:
			return fmt.Errorf("accept: %w", err)
		}
		s.running.Go(func() { s.serve(raw) })
	}
}

// serve speaks with one client until its connection ends.
func (s *Server) serve(raw net.Conn) {
	defer raw.Close()
	c := &conn{raw: raw, out: make(chan []byte, queueLimit)}
	refusal := s.identify(c)

	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return
	}
	s.lastID++
	c.id = s.lastID
	if refusal == nil && len(s.conns) >= s.cfg.MaxConns {
		refusal = reject(codeBusy, "the limit of %d connections is reached", len(s.conns))
	}
	if refusal != nil {
		c.event(wire.Event{Event: wire.Refused, Code: refusal.code, Error: refusal.why})
		c.close()
	} else {
		s.conns[c.id] = c
	}
	s.mu.Unlock()
	if refusal != nil {
		s.metrics.refused.WithLabelValues(refusal.code).Inc()
		s.refusals.Do(func() {
			s.logger.Warn("rejected a connection", "peer", c.name, "code", refusal.code, "error", refusal.why)
		})
	}

	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	if refusal == nil {
		s.read(c)
		s.do(func(now time.Time) []lock.Effect {
			delete(s.conns, c.id)
			return s.machine.Closed(now, c.id)
		})
		s.mu.Lock()
		c.close()
		s.mu.Unlock()
	}
	<-written
	// What the client has sent meanwhile is read: else its write fails, or the
	// answer is lost with the connection, before it knows why it is refused. The
	// writer has set a deadline.
	_, _ = io.Copy(io.Discard, raw)
}

// write sends what is queued. Afterwards it ends the connection in a way that
// lets the client read the last line.
func (c *conn) write() {
	for line := range c.out {
		_ = c.raw.SetWriteDeadline(time.Now().Add(writeLimit))
		if _, err := c.raw.Write(line); err != nil {
			break
		}
	}
	if half, ok := c.raw.(interface{ CloseWrite() error }); ok {
		_ = c.raw.SetWriteDeadline(time.Now().Add(writeLimit))
		_ = half.CloseWrite()
	}
	// The reader sees the end at once, or after this much silence.
	_ = c.raw.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	for range c.out {
	}
}

// read takes the client's requests until its connection ends.
func (s *Server) read(c *conn) {
	r := wire.NewReader(c.raw)
	_ = c.raw.SetReadDeadline(time.Now().Add(firstLine))
	first := true
	for {
		line, err := r.Line()
		if err != nil {
			switch {
			case errors.Is(err, wire.ErrTooLong):
				s.badRequest(c, err)
			case errors.Is(err, os.ErrDeadlineExceeded) && first:
				s.badRequest(c, fmt.Errorf("no request within %s", firstLine))
			case !errors.Is(err, io.EOF) && s.ctx.Err() == nil:
				s.logger.Debug("connection ended", "peer", c.name, "error", err)
			}
			return
		}
		req, err := wire.DecodeRequest(line)
		if err != nil {
			s.badRequest(c, err)
			return
		}
		if first {
			first = false
			s.mu.Lock()
			if !c.closed { // the end of writing has set a deadline of its own
				_ = c.raw.SetReadDeadline(time.Time{})
			}
			s.mu.Unlock()
		}
		s.request(c, req)
	}
}

func (s *Server) badRequest(c *conn, err error) { s.refuse(c, lock.CodeBadRequest, err) }

// refuse answers a request and ends the connection.
func (s *Server) refuse(c *conn, code string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := lock.Message{Event: wire.Refused, Code: code, Error: err.Error()}
	c.send(m)
	s.metrics.sent(m)
	s.logSent(c, m)
	c.close()
}

func (s *Server) request(c *conn, req wire.Request) {
	switch req.Op {
	case wire.OpPing:
		s.ping(c)
	case wire.OpStatus:
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range statusEvents(s.machine.Status()) {
			c.event(e)
		}
	case wire.OpAcquire:
		if _, local := c.raw.(*net.UnixConn); local && c.peer.Process == nil {
			s.refuse(c, codeForbidden, errors.New("lockd cannot see the client's process, which is in another PID namespace, so it would not see its death: run lockd and the client in the node's own PID namespace (pid_mode = \"host\" of a container), or connect over TCP, where a lock has a session"))
			return
		}
		ours := s.cfg.Times.SessionTTL
		if theirs := time.Duration(req.SessionTTL) * time.Millisecond; c.peer.Process == nil && theirs > ours {
			s.badRequest(c, fmt.Errorf("the client's session TTL is %s: must be at most lockd's, which is %s, or the client could act after losing its lock", theirs, ours))
			return
		}
		if c.peer.Process != nil && req.SessionTTL > 0 {
			c.peer.TTL = max(time.Duration(req.SessionTTL)*time.Millisecond, leastTTL)
		}
		s.do(func(now time.Time) []lock.Effect {
			if c.closed {
				return nil
			}
			c.group, c.holder = req.Group, req.Holder
			return s.machine.Acquire(now, c.id, req.Group, req.Holder, req.Token, c.peer)
		})
	}
}

// statusEvents splits a status into lines that fit.
func statusEvents(all []lock.Status) []wire.Event {
	var out []wire.Event
	var groups []wire.Group
	flush := func(more bool) {
		out = append(out, wire.Event{Event: wire.StatusEvent, Groups: groups, More: more})
		groups = nil
	}
	for _, st := range all {
		g := wire.Group{Group: st.Group, State: string(st.State), Holder: st.Holder, Token: st.Token, PID: st.PID,
			Waiters: []string{}, Waiting: len(st.Waiters)}
		if !st.Since.IsZero() {
			g.Since = &st.Since
		}
		for _, w := range st.Waiters {
			if !fits(wire.Group{Group: g.Group, State: g.State, Holder: g.Holder, Token: g.Token, Since: g.Since, PID: g.PID,
				Waiters: append(g.Waiters, w), Waiting: g.Waiting}) {
				break
			}
			g.Waiters = append(g.Waiters, w)
		}
		if len(groups) > 0 && !fits(append(groups, g)...) {
			flush(true)
		}
		groups = append(groups, g)
	}
	flush(false)
	return out
}

func fits(groups ...wire.Group) bool {
	_, err := wire.EncodeEvent(wire.Event{Event: wire.StatusEvent, Groups: groups, More: true})
	return err == nil
}

// rejection is why a client may not come in.
type rejection struct{ code, why string }

func reject(code, format string, args ...any) *rejection {
	return &rejection{code, fmt.Sprintf(format, args...)}
}

// identify finds out who is at the other end.
func (s *Server) identify(c *conn) *rejection {
	switch raw := c.raw.(type) {
	case *net.UnixConn:
		return s.identifyLocal(c, raw)
	case *tls.Conn:
		c.name = raw.RemoteAddr().String()
		ctx, cancel := context.WithTimeout(s.ctx, firstLine)
		defer cancel()
		if err := raw.HandshakeContext(ctx); err != nil {
			return reject(codeForbidden, "tls: %v", err)
		}
		certs := raw.ConnectionState().PeerCertificates
		if len(certs) == 0 || certs[0].Subject.CommonName == "" {
			return reject(codeForbidden, "the client certificate has no common name")
		}
		c.peer.Identity = certs[0].Subject.CommonName
		c.name += " " + c.peer.Identity
	default:
		c.name = raw.RemoteAddr().String()
	}
	return nil
}

func (s *Server) identifyLocal(c *conn, raw *net.UnixConn) *rejection {
	cred, err := unixsock.PeerCred(raw)
	if err != nil {
		return reject(codeForbidden, "%v", err)
	}
	pidfd, err := peerPidfd(raw)
	if err != nil {
		return reject(codeForbidden, "%v", err)
	}
	if pidfd >= 0 {
		defer unix.Close(pidfd) //nolint:errcheck // a descriptor of our own
	}
	c.name = fmt.Sprintf("pid %d uid %d", cred.Pid, cred.Uid)
	if uid := os.Geteuid(); int(cred.Uid) != uid && cred.Uid != 0 {
		return reject(codeForbidden, "user %d cannot use a lock of user %d", cred.Uid, uid)
	}
	if cred.Pid <= 0 {
		return nil // of another PID namespace: it may ask for the status only
	}
	p, err := cohort.Lookup(int(cred.Pid))
	if err == nil && pidfd >= 0 && ended(pidfd) {
		err = cohort.ErrGone // whoever has the ID now is another process
	}
	if err != nil {
		return reject(codeForbidden, "the client's process has exited: %v", err)
	}
	boot, err := bootID()
	if err != nil {
		return reject(codeForbidden, "%v", err)
	}
	c.peer.Process = &lock.Process{PID: p.PID, Start: p.Start, Boot: boot, Cohort: cohort.Mark(p)}
	return nil
}

// peerPidfd returns a descriptor of the peer's process, -1 on a kernel before Linux 6.5.
// Without it the process ID alone must do.
func peerPidfd(raw *net.UnixConn) (pidfd int, err error) {
	sys, err := raw.SyscallConn()
	if err != nil {
		return -1, err
	}
	pidfd = -1
	err = sys.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			pidfd = got
		}
	})
	return pidfd, err
}

// ended tells whether the process of a pidfd has ended.
func ended(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
