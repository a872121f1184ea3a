package gms

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/layout"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/unixsock"
)

const (
	// acceptPause is how long no connection is accepted after the process ran out
	// of descriptors or memory.
	acceptPause = 50 * time.Millisecond
	// endLimit is how long releases under way may hold up the end of Run.
	endLimit = 2 * time.Second
)

// Server is a GPU memory service. Create it with New and call Run once.
type Server struct {
	cfg     Config
	logger  hclog.Logger
	metrics *metrics
	// nonce names this incarnation.
	nonce string
	units []*unit
	// releasers are by GPU, as in cfg.GPUs.
	releasers []*releaser

	lastAllocation atomic.Uint64
	lastSession    atomic.Uint64
	// slots bounds the connections that are served.
	slots chan struct{}

	mu      sync.Mutex // guards what is below
	conns   map[*wire.Conn]struct{}
	closing bool
	// running counts every goroutine that Run started.
	running sync.WaitGroup
}

// unit is the lock and the layout of one GPU and tag.
type unit struct {
	server   *Server
	gpu      GPU
	tag      string
	path     string
	logger   hclog.Logger
	releaser *releaser
	// kept: the keeper has the committed layout. The writer changes it.
	kept atomic.Bool

	// mu guards everything below. Nothing is waited for under it.
	mu      sync.Mutex
	machine *layout.Machine
	// memory is by allocation ID: that of the machine's allocations.
	memory map[string]backend.Memory
	// sessions are those that wait, were offered the lock or have it.
	sessions map[layout.SessionID]*session
}

// New checks the config; the error names every bad field.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gms: %w", err)
	}
	s := &Server{cfg: cfg, logger: cfg.Logger, nonce: newNonce(),
		slots: make(chan struct{}, cfg.MaxConns), conns: map[*wire.Conn]struct{}{}}
	s.metrics = newMetrics()
	for _, g := range cfg.GPUs {
		r := &releaser{logger: cfg.Logger.With("gpu", g.UUID)}
		s.releasers = append(s.releasers, r)
		for _, tag := range cfg.Tags {
			u := &unit{server: s, gpu: g, tag: tag, path: SocketPath(cfg.SocketDir, g.UUID, tag), releaser: r,
				logger:  cfg.Logger.With("gpu", g.UUID, "tag", tag),
				machine: layout.New(s.newID), memory: map[string]backend.Memory{}, sessions: map[layout.SessionID]*session{}}
			s.units = append(s.units, u)
		}
	}
	if cfg.Metrics != nil {
		if err := s.metrics.register(cfg.Metrics, s); err != nil {
			return nil, fmt.Errorf("gms: register metrics: %w", err)
		}
	}
	return s, nil
}

// unit returns a unit that is served.
func (s *Server) unit(gpu, tag string) (*unit, error) {
	for _, u := range s.units {
		if u.gpu.UUID == gpu && u.tag == tag {
			return u, nil
		}
	}
	return nil, fmt.Errorf("GPU %q and tag %q are not served", gpu, tag)
}

// newID makes an allocation's ID, unlike any before, also of servers before.
func (s *Server) newID() string {
	return s.nonce[:16] + "-" + strconv.FormatUint(s.lastAllocation.Add(1), 10)
}

// Run serves until ctx ends. It ends with an error as soon as any socket cannot
// be served any more (a part that dies takes the program with it).
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sockets, listeners, err := s.open(ctx)
	defer func() {
		for _, c := range sockets {
			_ = c.Close()
		}
	}()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // it was told to end before it had begun
	}
	if err != nil {
		return fmt.Errorf("gms: %w", err)
	}
	failed := make(chan error, 2*len(s.units))
	for i, u := range s.units {
		s.running.Go(func() { failed <- u.accept(ctx, listeners[i]) })
		s.running.Go(func() { failed <- sockets[i].Watch(ctx) })
	}
	s.logger.Info("gms is ready", "sockets", len(s.units), "socket_dir", s.cfg.SocketDir, "nonce", s.nonce, "starts", s.cfg.Starts)
	if s.cfg.OnReady != nil {
		s.cfg.OnReady()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	for _, c := range sockets {
		c.Stop()
	}
	s.mu.Lock()
	s.closing = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer stop()
	for _, r := range s.releasers {
		r.close(end)
	}
	if err != nil {
		return fmt.Errorf("gms: %w", err)
	}
	return nil
}

// open claims every socket, takes back what the keeper has, and listens. Only
// then a client can see a layout, or that there is none. The caller closes the
// claims, also after an error.
func (s *Server) open(ctx context.Context) (claims []*unixsock.Claim, listeners []*net.UnixListener, err error) {
	if err := os.MkdirAll(s.cfg.SocketDir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create the directory of the sockets: %w", err)
	}
	for _, u := range s.units {
		c, err := unixsock.Take(ctx, "unix", u.path)
		if err != nil {
			return claims, nil, err
		}
		claims = append(claims, c)
	}
	s.restore(ctx)
	if err := ctx.Err(); err != nil {
		return claims, nil, err
	}
	for _, c := range claims {
		l, err := c.Listen()
		if err != nil {
			return claims, nil, err
		}
		listeners = append(listeners, l)
	}
	return claims, listeners, nil
}

// accept serves a socket until ctx ends. An error means that it cannot be served
// any more.
func (u *unit) accept(ctx context.Context, l *net.UnixListener) error {
	s := u.server
	var logged time.Time
	for {
		raw, err := l.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the listener was closed by Run
		case passing(err):
			s.metrics.acceptFailures.Inc()
			if time.Since(logged) > time.Second {
				logged = time.Now()
				u.logger.Error("cannot accept a connection: retrying", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(acceptPause):
			}
			continue
		default:
			return fmt.Errorf("socket %s: accept: %w", u.path, err)
		}
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			_ = raw.Close()
			return nil
		}
		s.running.Go(func() {
			defer func() { <-s.slots }()
			u.serve(ctx, raw)
		})
	}
}

// passing tells whether accepting may work again later.
func passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED, unix.EINTR, unix.EPERM, unix.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// admit takes a connection in, unless the server ends.
func (s *Server) admit(c *wire.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) forget(c *wire.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// carry does what the machine asks for. mu is held.
func (u *unit) carry(e layout.Effects) {
	if len(e.Freed) > 0 {
		freed := make([]backend.Memory, 0, len(e.Freed))
		for _, a := range e.Freed {
			freed = append(freed, u.memory[a.ID])
			delete(u.memory, a.ID)
		}
		u.releaser.add(freed...)
	}
	for _, o := range e.Offers {
		u.sessions[o.Session].offer <- o.Mode // it has room for the one offer of a session
	}
}

// leave ends a session, whatever it has. It may be called twice.
func (u *unit) leave(id layout.SessionID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[id] == nil {
		return
	}
	delete(u.sessions, id)
	aborts := u.machine.Check(id, true, "abort") == nil
	e := u.machine.Leave(id)
	if aborts {
		u.server.metrics.clears.WithLabelValues(u.gpu.UUID, u.tag, "abort").Inc()
		u.logger.Warn("a writer disconnected without a commit: its layout is cleared", "session", id, "allocations", len(e.Freed))
	}
	u.carry(e)
}

func (u *unit) status() layout.Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.machine.Status()
}
