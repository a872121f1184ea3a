package gms

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/layout"
	"remuda/device-plugin/gms/wire"
)

// writeBuffer is how many bytes of answers the kernel holds for a client that does not
// read (it doubles the number). An export that is on its way is a descriptor that
// counts for the whole user, and the user's bound holds up the keeper, too: so few fit.
const writeBuffer = 16 << 10

// session is a connection that asked for the lock.
type session struct {
	id   layout.SessionID
	unit *unit
	conn *wire.Conn
	// offer takes the lock that is offered.
	offer  chan layout.Mode
	logger hclog.Logger
	// releases: it is the service's own, and clears the layout.
	releases bool
}

// connection is one client that is being served.
type connection struct {
	server *Server
	// unit is nil on the node's socket, until the client has chosen one.
	unit   *unit
	group  string
	wire   *wire.Conn
	logger hclog.Logger
}

// serve speaks with one client until its connection ends. u is the unit of the socket,
// nil for the node's.
func (s *Server) serve(ctx context.Context, raw *net.UnixConn, u *unit) {
	c := &connection{server: s, wire: wire.NewConn(raw)}
	defer func() { _ = c.wire.Close() }()
	if !s.admit(c.wire) {
		return
	}
	defer s.forget(c.wire)
	pid, uid, err := c.wire.Peer()
	c.logger = s.logger.With("pid", pid)
	if own := uint32(os.Geteuid()); err != nil || (uid != own && uid != 0) {
		s.metrics.refused.WithLabelValues("user").Inc()
		if s.seldom(&s.lastUserLog) {
			c.logger.Warn("rejected a connection: only this service's user and root can connect", "uid", uid, "own", own, "error", err)
		}
		return
	}
	c.wire.FrameTimeout = s.cfg.Frame
	_ = raw.SetWriteBuffer(writeBuffer) // or it stays as it is
	_ = c.wire.SetReadDeadline(time.Now().Add(s.cfg.FirstMessage))
	if u == nil {
		m, ok := c.first()
		if !ok {
			return
		}
		open, ok := m.(*wire.OpenUnitRequest)
		if !ok {
			c.refuse(m.MessageType(), wire.ErrorNotAllowed, errors.New("the first message on this socket must be an open_unit_request"))
			return
		}
		c.group = open.Group
		if c.unit, err = s.enter(open.GPU, open.Tag, open.Group); err != nil {
			c.refuse(m.MessageType(), wire.ErrorBadRequest, err)
			return
		}
		// It may stay as it is, so that the unit is in use.
		_ = c.wire.SetReadDeadline(time.Time{})
	} else {
		c.unit, _ = s.enter(u.gpu.UUID, u.tag, "") // it is permanent
	}
	used := c.group != "" // a question for the state is no use
	defer func() { s.exit(c.unit, c.group, used) }()
	c.logger = c.unit.logger.With("pid", pid)
	if u == nil && !c.answer(&wire.OpenUnitRequest{}, &wire.OpenUnitResponse{}, -1) {
		return
	}
	m, ok := c.first()
	if !ok {
		return
	}
	_ = c.wire.SetReadDeadline(time.Time{})
	switch m := m.(type) {
	case *wire.HandshakeRequest:
		used = true
		if session, mode := c.handshake(ctx, m); session != nil {
			c.requests(ctx, session, mode)
			session.end()
		}
	case *wire.GetRuntimeStateRequest:
		c.answer(m, c.unit.runtimeState(), -1)
	case *wire.GetEventHistoryRequest:
		c.answer(m, c.unit.eventHistory(), -1)
	default:
		c.refuse(m.MessageType(), wire.ErrorNotAllowed, errors.New("the first message of a connection must be a handshake_request, or ask for the runtime state or the event history"))
	}
}

// first reads a message before there is a session.
func (c *connection) first() (wire.Message, bool) {
	m, err := c.read()
	switch {
	case err == nil:
		return m, true
	case wire.Refusable(err):
		c.refuse("unknown", wire.ErrorBadRequest, err)
	default:
		c.broken(err)
	}
	return nil, false
}

// read takes the next request.
func (c *connection) read() (wire.Message, error) {
	frame, err := c.wire.ReadFrame(wire.MaxRequest, false)
	if err != nil {
		return nil, err
	}
	if frame.Closed > 0 {
		c.server.metrics.descriptors.Add(float64(frame.Closed))
		c.logger.Warn("closed unexpected descriptors", "descriptors", frame.Closed)
	}
	return wire.Decode(frame.Body)
}

// broken notes why a connection has ended, unless the client just closed it.
func (c *connection) broken(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return
	}
	reason := "other"
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		reason = "too_large"
	case errors.Is(err, wire.ErrMalformed):
		reason = "malformed"
	case errors.Is(err, wire.ErrTruncated):
		reason = "descriptors"
	case errors.Is(err, io.ErrUnexpectedEOF):
		reason = "truncated"
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason = "timeout"
	}
	c.server.metrics.refused.WithLabelValues(reason).Inc()
	c.logger.Warn("closing a connection", "reason", reason, "error", err)
}

// answer sends the answer to a request, with a descriptor unless fd is negative,
// and tells whether it could be sent.
func (c *connection) answer(request, response wire.Message, fd int) bool {
	result := "ok"
	if _, refused := response.(*wire.ErrorResponse); refused {
		result = "refused"
	}
	return c.send(request.MessageType(), result, response, fd)
}

// refuse sends an error_response.
func (c *connection) refuse(request string, code int64, err error) bool {
	c.logger.Debug("refused a request", "request", request, "error", err)
	return c.send(request, "refused", &wire.ErrorResponse{Error: err.Error(), Code: code}, -1)
}

func (c *connection) send(request, result string, response wire.Message, fd int) bool {
	s := c.server
	_ = c.wire.SetWriteDeadline(time.Now().Add(s.cfg.Write))
	err := c.wire.Write(response, fd)
	if err != nil {
		result = "unsent"
		c.broken(err)
	}
	var key unitKey // without a unit
	if c.unit != nil {
		key = c.unit.key()
	}
	s.metrics.requests.WithLabelValues(key.gpu, key.tag, request, result).Inc()
	return err == nil
}

// end takes the session out of the lock.
func (s *session) end() { s.unit.leave(s.id) }
