package lockd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"remuda/internal/unixsock"
	"remuda/lockd/lock"
	"remuda/lockd/statefile"
	"remuda/lockd/wire"
)

// Server is a lockd. Create it with New and call Run once.
type Server struct {
	cfg     Config
	logger  hclog.Logger
	metrics *metrics
	// refusals bounds the log lines about clients that are turned away: they can come back as
	// fast as they like.
	refusals rate.Sometimes

	// mu guards everything below, and the machine's events: effects are carried
	// out under it, in order, and none of them waits for anything.
	mu      sync.Mutex
	machine *lock.Machine
	conns   map[lock.ConnID]*conn
	lastID  lock.ConnID
	holders map[string]*holder // by group: the one that was granted last
	awake   *awake
	timer   *time.Timer
	// toWrite is the newest version that is not on its way to disk yet.
	toWrite *lock.Persist
	// changed tells the writer that toWrite is to be written now.
	changed chan struct{}
	closing bool

	// running counts every goroutine that Run started.
	running sync.WaitGroup
	// ctx ends with Run.
	ctx context.Context //nolint:containedctx // effects start goroutines that end with Run
}

// New validates cfg. It opens nothing and starts nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("lockd: %w", err)
	}
	s := &Server{cfg: cfg, logger: cfg.Logger, conns: map[lock.ConnID]*conn{}, holders: map[string]*holder{},
		changed: make(chan struct{}, 1), refusals: rate.Sometimes{First: 20, Interval: 10 * time.Second}}
	s.metrics = newMetrics(s, cfg.Metrics)
	return s, nil
}

// Run serves until ctx ends. It returns an error, and grants nothing, when the
// state file cannot be read or another lockd has it or the socket.
func (s *Server) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	file, records, err := s.openState()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	boot, err := bootID()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o700); err != nil {
		return fmt.Errorf("socket %s: %w", s.cfg.Socket, err)
	}
	claim, err := unixsock.Take(ctx, "unix", s.cfg.Socket)
	if err != nil {
		return err //nolint:wrapcheck // it names the socket
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	local, err := claim.Listen()
	if err != nil {
		return err //nolint:wrapcheck // it names the socket
	}
	listeners := []net.Listener{local}
	if s.cfg.Listen != "" {
		tcp, err := net.Listen("tcp", s.cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if s.cfg.OnListen != nil {
			s.cfg.OnListen(tcp.Addr())
		}
		if s.cfg.TLS != nil {
			tcp = tls.NewListener(tcp, s.cfg.TLS)
		}
		listeners = append(listeners, tcp)
	}

	s.running.Go(func() { s.write(file) })
	s.awake = newAwake()
	s.running.Go(func() { s.awake.run(ctx) })
	s.mu.Lock()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	machine, effects := lock.New(time.Now(), s.cfg.Times, boot, records)
	s.machine = machine
	s.carryOut(effects)
	s.tell()
	s.mu.Unlock()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		s.running.Go(func() { failed <- s.accept(l) })
	}
	s.logger.Info("lockd is ready", "socket", s.cfg.Socket, "listen", s.cfg.Listen, "state", s.cfg.State, "groups", len(records.Groups), "token", records.Token)

	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	claim.Stop()
	for _, l := range listeners[1:] {
		err = errors.Join(err, l.Close())
	}
	s.mu.Lock()
	s.closing = true
	s.timer.Stop()
	for _, c := range s.conns {
		c.close()
	}
	s.mu.Unlock()
	s.running.Wait()
	return err
}

// stateName is the file in the state directory.
const stateName = "locks"

// document is what is in the state file.
type document struct {
	// Node is the machine ID of the node that wrote it, empty where it has none.
	Node string `json:"node"`
	lock.Records
}

// ErrOtherNode: another node wrote the state directory.
var ErrOtherNode = errors.New("the state directory was written by another node")

// openState reads what a lockd before this one has persisted. It makes the directory,
// private to its user, where it is missing.
func (s *Server) openState() (*statefile.File, lock.Records, error) {
	if err := privateDir(s.cfg.State); err != nil {
		return nil, lock.Records{}, fmt.Errorf("state directory: %w", err)
	}
	file, raw, err := statefile.Open(filepath.Join(s.cfg.State, stateName))
	if err != nil {
		return nil, lock.Records{}, err
	}
	var doc document
	if raw != nil {
		if err := json.Unmarshal(raw, &doc); err != nil {
			return nil, lock.Records{}, errors.Join(fmt.Errorf("state directory %s: %w: %w", s.cfg.State, statefile.ErrCorrupt, err), file.Close())
		}
		if doc.Node != s.cfg.Node {
			return nil, lock.Records{}, errors.Join(fmt.Errorf("state directory %s: %w: it has machine ID %q, this node has %q: set -state to a directory of this node's own disk",
				s.cfg.State, ErrOtherNode, doc.Node, s.cfg.Node), file.Close())
		}
	}
	return file, doc.Records, nil
}

// privateDir makes a directory with mode 0700, or checks the one that is there: it must
// belong to this user, and no other user may use it.
func privateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: must belong to user %d, which runs lockd", path, owner.Uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %#o: must be 0700, so that no other user can change who holds a lock", path, mode)
	}
	return nil
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// do applies one event. Events that come after the end of Run are dropped: the
// next lockd starts from what is on disk.
func (s *Server) do(event func(now time.Time) []lock.Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.carryOut(event(time.Now()))
		s.tell()
	}
}

// ping answers a sign of life, which changes no status.
func (s *Server) ping(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing && !c.closed { // what was read before is not obeyed any more
		s.carryOut(s.machine.Ping(time.Now(), c.id))
	}
}

// tell passes the status on. mu is held.
func (s *Server) tell() {
	if s.cfg.OnChange != nil {
		s.cfg.OnChange(s.machine.Status())
	}
}

func (s *Server) tick() { s.do(s.machine.Tick) }

// carryOut does what the machine asks for. mu is held.
func (s *Server) carryOut(effects []lock.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case lock.Send:
			if c := s.conns[e.Conn]; c != nil {
				c.send(e.Message)
				s.metrics.sent(e.Message)
				s.logSent(c, e.Message)
			}
		case lock.Close:
			if c := s.conns[e.Conn]; c != nil {
				c.close()
			}
		case lock.Persist:
			s.toWrite = &e
			if e.Later {
				time.AfterFunc(writeLater, s.wakeWriter)
			} else {
				s.wakeWriter()
			}
		case lock.Watch:
			s.watch(e)
		case lock.Fence:
			s.logger.Warn("killing the holder and its cohort", "group", e.Group, "token", e.Token, "pid", pidOf(e.Peer))
			s.metrics.fenced.Inc()
			if h := s.holders[e.Group]; h != nil && h.token == e.Token {
				h.fence <- struct{}{} // it has room for the one Fence of a token
			}
		case lock.Wake:
			s.timer.Reset(max(time.Until(e.At), 0))
		}
	}
}

// writeLater is how long a version that nothing waits for stays unwritten. A shim holds the
// lock of its engine and that of the pair. Written at once, the record that the first is free
// would delay the grant of the second by two writes, its own and the witness's.
const writeLater = 100 * time.Millisecond

func (s *Server) wakeWriter() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func pidOf(p lock.Peer) int {
	if p.Process == nil {
		return 0
	}
	return p.Process.PID
}

func (s *Server) logSent(c *conn, m lock.Message) {
	switch m.Event {
	case wire.Granted:
		s.logger.Info("granted", "group", c.group, "holder", c.holder, "token", m.Token, "regranted", m.Regranted, "peer", c.name)
	case wire.Refused:
		s.refusals.Do(func() {
			s.logger.Warn("refused", "group", c.group, "holder", c.holder, "code", m.Code, "error", m.Error, "peer", c.name)
		})
	}
}

// watch starts to watch a local holder, and ends to watch the one before it: its
// grant was taken back, or it is gone.
func (s *Server) watch(e lock.Watch) {
	if before := s.holders[e.Group]; before != nil {
		before.cancel()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	h := newHolder(e.Group, e.Token, e.Peer, s.awake, s.logger, cancel,
		func() { s.do(func(now time.Time) []lock.Effect { return s.machine.Died(now, e.Group, e.Token) }) },
		func() {
			if s.cfg.OnEnd != nil {
				s.cfg.OnEnd(e.Group, e.Peer.Process.Cohort)
			}
			s.do(func(now time.Time) []lock.Effect { return s.machine.Gone(now, e.Group, e.Token) })
		})
	s.holders[e.Group] = h
	s.running.Go(func() {
		defer cancel()
		h.run(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holders[e.Group] == h { // nobody was granted the lock since
			delete(s.holders, e.Group)
		}
	})
}

// write is the only one that writes the state file.
func (s *Server) write(file *statefile.File) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.changed:
		}
		s.mu.Lock()
		next := s.toWrite
		s.toWrite = nil
		s.mu.Unlock()
		if next == nil {
			continue
		}
		began := time.Now()
		doc, err := json.Marshal(document{s.cfg.Node, next.Records})
		if err == nil {
			err = file.Save(doc)
		}
		s.metrics.persisted(time.Since(began), err)
		if err != nil {
			s.logger.Error("cannot write the state file: no lock is granted", "error", err)
		}
		s.do(func(now time.Time) []lock.Effect { return s.machine.Persisted(now, next.Version, err) })
		if err == nil {
			if err := file.Settle(); err != nil {
				s.logger.Error("cannot write the state file's witness", "error", err)
			}
		}
	}
}
