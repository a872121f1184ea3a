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

	"remuda/device-plugin/gms/wire"
	"remuda/internal/unixsock"
)

const (
	// acceptPause is how long no connection is accepted after the process ran out
	// of descriptors or memory.
	acceptPause = 50 * time.Millisecond
	// logPause is how often a message is logged that every connection could cause.
	logPause = time.Minute
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
	// releasers are by GPU, as in cfg.GPUs.
	releasers []*releaser
	// own are the units that have a socket of their own.
	own []*unit

	lastAllocation atomic.Uint64
	lastSession    atomic.Uint64
	// When each of these was logged last, in Unix nanoseconds.
	lastAcceptLog, lastFullLog, lastUserLog atomic.Int64
	// slots bounds the connections that are served.
	slots chan struct{}

	mu sync.Mutex // guards what is below
	// units are the locks and layouts that there are. mu is taken before a unit's.
	units   map[unitKey]*unit
	conns   map[*wire.Conn]struct{}
	closing bool
	// running counts every goroutine that Run started.
	running sync.WaitGroup
}

// New checks the config; the error names every bad field.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gms: %w", err)
	}
	s := &Server{cfg: cfg, logger: cfg.Logger, nonce: newNonce(),
		slots: make(chan struct{}, cfg.MaxConns), units: map[unitKey]*unit{}, conns: map[*wire.Conn]struct{}{}}
	s.metrics = newMetrics()
	for _, g := range cfg.GPUs {
		r := &releaser{logger: cfg.Logger.With("gpu", g.UUID)}
		s.releasers = append(s.releasers, r)
		for _, tag := range []string{WeightsTag, kvCacheTag} {
			u := s.newUnit(g, r, tag)
			u.permanent = true
			s.units[u.key()] = u
			s.own = append(s.own, u)
		}
	}
	if cfg.Metrics != nil {
		if err := s.metrics.register(cfg.Metrics, s); err != nil {
			return nil, fmt.Errorf("gms: register metrics: %w", err)
		}
	}
	return s, nil
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
	failed := make(chan error, 2*len(sockets))
	for i := range sockets {
		var u *unit // of a socket of its own; none on the node's
		if i > 0 {
			u = s.own[i-1]
		}
		s.running.Go(func() { failed <- s.accept(ctx, listeners[i], u) })
		s.running.Go(func() { failed <- sockets[i].Watch(ctx) })
	}
	s.running.Go(func() { s.releaseUnused(ctx) })
	s.logger.Info("gms is ready", "gpus", len(s.cfg.GPUs), "socket_dir", s.cfg.SocketDir, "nonce", s.nonce, "starts", s.cfg.Starts)
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

// open claims every socket (the node's, and those of the units that have one of their own), takes
// back what the keeper has, and listens. Only then a client can see a layout, or that there is none. The caller closes the
// claims, also after an error.
func (s *Server) open(ctx context.Context) (claims []*unixsock.Claim, listeners []*net.UnixListener, err error) {
	if err := os.MkdirAll(s.cfg.SocketDir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create the directory of the sockets: %w", err)
	}
	paths := []string{NodeSocketPath(s.cfg.SocketDir)}
	for _, u := range s.own {
		paths = append(paths, tagSocketPath(s.cfg.SocketDir, u.gpu.UUID, u.tag))
	}
	for _, path := range paths {
		c, err := unixsock.Take(ctx, "unix", path)
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
func (s *Server) accept(ctx context.Context, l *net.UnixListener, u *unit) error {
	for {
		raw, err := l.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the listener was closed by Run
		case passing(err):
			s.metrics.acceptFailures.Inc()
			if s.seldom(&s.lastAcceptLog) {
				s.logger.Error("cannot accept connections: retrying", "socket", l.Addr(), "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(acceptPause):
			}
			continue
		default:
			return fmt.Errorf("socket %s: accept: %w", l.Addr(), err)
		}
		select {
		case s.slots <- struct{}{}:
		default:
			if s.seldom(&s.lastFullLog) {
				s.logger.Warn("as many connections as are allowed: others wait", "connections", s.cfg.MaxConns)
			}
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				_ = raw.Close()
				return nil
			}
		}
		s.running.Go(func() {
			defer func() { <-s.slots }()
			s.serve(ctx, raw, u)
		})
	}
}

// seldom reports whether a message that could fill the log is due again.
func (s *Server) seldom(last *atomic.Int64) bool {
	now := time.Now().UnixNano()
	was := last.Load()
	return now-was > int64(logPause) && last.CompareAndSwap(was, now)
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
