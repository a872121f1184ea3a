// Package engine is the shim around a real inference engine. It starts the
// engine as its child, walks its states (see State), registers the
// engine in Consul only while it can serve, and guarantees that the shim never
// outlives the engine, the engine never outlives the shim, and neither leaves
// a process behind, however either dies.
package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/controller/consul"
	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms/offload"
	"remuda/internal/replica"
	"remuda/lockd/client"
	"remuda/lockd/cohort"
	"remuda/lockd/engine/dialect"
)

// Environment of the engine, beside that of the shim.
const (
	EnvReplica     = "REMUDA_REPLICA"      // the replica's whole name, <model>:<variant>:<id>
	roleEnv        = "REMUDA_ROLE"         // primary or shadow
	weightsLockEnv = "REMUDA_WEIGHTS_LOCK" // how the engine asks the GPU memory service for its weights: rw_or_ro writes them where they are missing, ro only reads
)

// ErrEngineExited is wrapped by Run's error when the engine ended by itself.
var ErrEngineExited = errors.New("engine exited")

// ErrParentDied is the reason for a stop when WatchParent is set.
var ErrParentDied = errors.New("the parent process died")

const (
	// deregisterRetry is the pause between two attempts at the end of a life.
	deregisterRetry = 100 * time.Millisecond
	// guardRestart is how soon a guard that died is replaced; the pause doubles
	// up to guardRestartMax.
	guardRestart    = 100 * time.Millisecond
	guardRestartMax = 5 * time.Second
)

// shutdownTimeout bounds killing the cohort and answering the last requests.
const shutdownTimeout = 30 * time.Second

// Shim runs one engine. Create it with New and call Run once.
type Shim struct {
	cfg       Config
	logger    hclog.Logger
	dialect   dialect.Dialect
	registrar *consul.Registrar // nil where nothing is registered
	locker    *client.Client    // nil where there is no lock
	offload   *offload.Offload  // nil where no weights are shared
	metrics   *metrics
	parking   parking
	cohortID  string
	started   time.Time

	// op serialises drain, sleep and wake; it may be held for their whole
	// duration. mu is never held across I/O.
	op sync.Mutex
	// saved is the only copy of a parked pair's shared weights, or nil. op guards it.
	saved *offload.Copy
	// hold keeps the layouts in use.
	hold weightsHold
	// loading: the engine of a shim that stands by is being started.
	loading atomic.Bool
	// reg serialises calls to Consul that register or deregister. Whoever
	// holds it looks at the state first, so that nothing is registered after
	// the state has forbidden it. Lock order: op, reg, mu.
	reg sync.Mutex

	mu      sync.Mutex
	machine *Machine
	engine  replica.Engine
	child   *child
	// gpus are those of the engine, nil where nobody says.
	gpus []string
	// grant is the lock, nil until it is granted; waiting is the place in the
	// queue before.
	grant   *client.Grant
	waiting int
	// run ends when the shim begins to stop; operations that HTTP clients
	// asked for end with it.
	run context.Context //nolint:containedctx // bridges net/http's request context to Run's.

	// fatal receives the first reason why the engine must go.
	fatal chan error
	// pushNow asks the heartbeat to push at once.
	pushNow chan struct{}
	// drop asks for the end of the engine, but not of the shim; it is answered once
	// nothing of the engine is left.
	drop chan chan<- error
}

// New validates cfg and names everything that is wrong with it.
func New(cfg Config) (*Shim, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	d, err := dialect.New(cfg.Dialect, dialectConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e, err := cfg.endpoint()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	s := &Shim{
		cfg: cfg, dialect: d, engine: e, cohortID: cohortID(),
		logger:  cfg.Logger.With("replica", cfg.Name.String(), "role", cfg.Role),
		metrics: newMetrics(cfg.Name, cfg.Role),
		fatal:   make(chan error, 1), pushNow: make(chan struct{}, 1), drop: make(chan chan<- error),
		machine: NewMachine(cfg.Role, cfg.Lock != "", time.Now()),
		parking: parking{cfg.Park},
	}
	if s.gpus, err = s.wantedGPUs(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if s.offload, err = newOffload(cfg); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if cfg.Lock != "" {
		if s.locker, err = client.New(s.lockConfig()); err != nil {
			return nil, fmt.Errorf("engine: lock: %w", err)
		}
	}
	if cfg.Consul != nil {
		rc := consul.DefaultRegistrarConfig()
		rc.Address, rc.Cohort, rc.TTL, rc.Logger = *cfg.Consul, s.cohortID, cfg.TTL, s.logger
		if s.registrar, err = consul.NewRegistrar(rc); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	return s, nil
}

// Run starts the engine and returns when it is gone with everything that
// belonged to it: nil after ctx asked for the end, an error otherwise.
func (s *Shim) Run(ctx context.Context) error {
	s.started = time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.run = ctx
	s.mu.Unlock()
	if s.registrar != nil {
		defer s.registrar.Close()
	}
	stopHTTP, err := s.serveHTTP()
	if err != nil {
		return err
	}
	defer stopHTTP()
	if s.cfg.WatchParent {
		if err := watchParent(ctx, cancel); err != nil {
			return err
		}
	}
	if err := s.clearTheWay(ctx); err != nil {
		return err
	}
	// Orphans of the engine become children of the shim, so that their
	// parentage stays known.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	self, err := cohort.Lookup(os.Getpid())
	if err != nil {
		return err
	}
	tracker := cohort.NewTracker(s.cohortID, self)
	g, err := newGuard(guardOrder{Shim: self, Cohort: s.cohortID, Engine: s.engine, Consul: s.cfg.Consul,
		LogLevel: s.logger.GetLevel().String()}, s.logger)
	if err != nil {
		return err
	}
	if err := g.start(); err != nil {
		return err
	}
	settled := true
	defer func() {
		if settled {
			g.dismiss()
		} else {
			g.leave()
		}
	}()
	tracker.Spare(g.pid())

	c, err := newChild(s.cfg.Command, s.cohortID)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.child = c
	s.mu.Unlock()
	if m := s.refreshParked(); m != nil {
		s.logger.Info("the engine is parked: standing by without an engine until a wake request", "since", m.Since, "marker", s.parking.path)
	} else if !s.cfg.Cold {
		if err := s.launch(); err != nil {
			return err
		}
	}
	lifeCtx, stopLife := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.lifecycle(lifeCtx) })
	wg.Go(func() { s.holdWeights(lifeCtx) })
	reason := s.watch(ctx, g, tracker)
	settled, err = s.shutDown(reason, tracker, func() { stopLife(); wg.Wait() })
	return err
}

func (s *Shim) engineProcess() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// launch starts the engine's process.
func (s *Shim) launch() error {
	role := s.cfg.Role
	if s.holdsLock() {
		role = replica.RolePrimary // nobody else of the group may write now
	}
	env := []string{EnvReplica + "=" + s.cfg.Name.String(), roleEnv + "=" + s.cfg.Role, weightsLockEnv + "=" + weightsLock(role)}
	s.mu.Lock()
	c, gpus := s.child, s.gpus
	s.mu.Unlock()
	if len(gpus) > 0 {
		list := strings.Join(gpus, ",")
		env = append(env, EnvUseGPUs+"="+list)
		if !sameGPUs(gpus, s.cfg.SeatGPUs) { // a real engine takes what it sees
			env = append(env, deviceplugin.EnvCUDAVisible+"="+list)
		}
	}
	if err := c.start(env...); err != nil {
		return err
	}
	s.logger.Info("engine started", "pid", c.pid(), "command", s.cfg.Command[0], "cohort", s.cohortID, "gpus", gpus)
	return nil
}

// watch returns why the engine must end; nil means that ctx asked for it.
func (s *Shim) watch(ctx context.Context, g *guard, tracker *cohort.Tracker) error {
	c := s.engineProcess()
	tick := time.NewTicker(guardScan)
	defer tick.Stop()
	guardEnded := g.done()
	delay := guardRestart
	var restart <-chan time.Time
	var restarted <-chan error
	began := c.began
	again := func(what string, err error) {
		s.logger.Warn(what, "again_in", delay.String(), "error", err)
		restart, delay = time.After(delay), min(2*delay, guardRestartMax)
	}
	scanFailure := ""
	for {
		select {
		case <-began:
			began = nil
			tracker.Awaited(c.pid())
		case <-c.ended:
			return fmt.Errorf("%w: %s", ErrEngineExited, c.exit())
		case done := <-s.drop:
			fresh, err := s.replace(c, tracker)
			if err != nil {
				done <- err
				return fmt.Errorf("end the engine: %w", err)
			}
			c, began = fresh, fresh.began
			done <- nil
		case err := <-s.fatal:
			return err
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, ErrParentDied) {
				return cause
			}
			return nil
		case <-guardEnded:
			guardEnded = nil
			s.metrics.guardRestarts.Inc()
			again("the guard process exited: starting another one", nil)
		case <-restart:
			restart = nil
			restarted = g.restart()
		case err := <-restarted:
			restarted = nil
			if err != nil {
				again("cannot start the guard process", err)
				continue
			}
			tracker.Spare(g.pid())
			guardEnded = g.done()
		case <-tick.C:
			// A scan that fails is tried again: no reason to end an engine that
			// serves.
			_, zombies, err := tracker.Scan()
			if err != nil {
				if scanFailure != err.Error() {
					scanFailure = err.Error()
					s.logger.Warn("cannot scan for the engine's processes", "error", err)
				}
				continue
			}
			scanFailure = ""
			cohort.Reap(zombies)
		}
	}
}

// replace ends the engine, with all that belongs to it, and prepares another one.
func (s *Shim) replace(c *child, tracker *cohort.Tracker) (*child, error) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := c.stop(ctx, tracker, 0); err != nil {
		return nil, err
	}
	fresh, err := newChild(s.cfg.Command, s.cohortID)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.child = fresh
	s.mu.Unlock()
	return fresh, nil
}

// shutDown takes the engine out of routing, drains it if it was asked to end
// in peace, and leaves no process behind. It reports whether the registration
// is settled: gone, or not to be removed by trying on.
func (s *Shim) shutDown(reason error, tracker *cohort.Tracker, stopLife func()) (bool, error) {
	c := s.engineProcess()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout+s.cfg.StopTimeout+shutdownTimeout)
	defer cancel()
	peaceful := reason == nil
	if peaceful {
		s.logger.Info("stopping")
	}
	if state := s.State(); peaceful && state != Init && state != Standby { // else there is nothing to drain
		drainCtx, stopWaiting := context.WithCancel(ctx)
		go func() {
			select {
			case <-c.ended:
			case <-drainCtx.Done():
			}
			stopWaiting()
		}()
		if err := s.Drain(drainCtx, s.cfg.DrainTimeout); err != nil && s.State() == Draining {
			s.logger.Warn("stopping the engine before its drain is complete", "error", err)
		}
		stopWaiting()
	} else if !peaceful {
		s.logger.Error("stopping the engine after a failure", "reason", reason)
	}
	if err := s.move(Dead); err != nil {
		return false, errors.Join(reason, err)
	}
	var wg sync.WaitGroup
	var removal error
	wg.Go(func() {
		// A Consul that is busy for a moment must not keep a dead engine; one
		// that is away takes it for dead after a TTL by itself.
		removal = insist(ctx, s.logger, s.cfg.TTL, s.deregister)
	})
	grace := s.cfg.StopTimeout
	if !peaceful {
		grace = 0
	}
	err := c.stop(ctx, tracker, grace)
	stopLife()
	wg.Wait()
	settled := removal == nil || errors.Is(removal, consul.ErrRefused)
	if removal != nil {
		s.logger.Warn("cannot remove the engine's registration: its check becomes critical after the TTL", "ttl", s.cfg.TTL.String(), "error", removal)
	}
	if err != nil {
		return settled, errors.Join(reason, fmt.Errorf("kill the engine's processes: %w", err))
	}
	s.logger.Info("all processes of the engine have exited", "state", Dead)
	return settled, reason
}

// clearTheWay removes what an earlier life may have left: its registration,
// and an engine that still answers where ours shall serve.
func (s *Shim) clearTheWay(ctx context.Context) error {
	if err := s.deregister(ctx); err != nil {
		s.logger.Warn("cannot remove an earlier registration of the engine", "error", err)
	}
	u, err := url.Parse(s.cfg.EngineURL)
	if err != nil {
		return fmt.Errorf("engine-url: %w", err)
	}
	dialer := net.Dialer{Timeout: time.Second}
	for deadline := time.Now().Add(5 * time.Second); ; {
		conn, err := dialer.DialContext(ctx, "tcp", u.Host)
		if err != nil {
			return nil //nolint:nilerr // nobody answers there, as it must be.
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			return fmt.Errorf("engine-url %s is already in use: stop the other program or choose another port", s.cfg.EngineURL)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// watchParent cancels ctx with ErrParentDied when the parent process ends.
func watchParent(ctx context.Context, cancel context.CancelCauseFunc) error {
	pid := os.Getppid()
	if pid <= 1 {
		return nil // started by an init of its own, as in a container: nothing to watch
	}
	p, err := cohort.Lookup(pid)
	if err != nil {
		return fmt.Errorf("watch parent: %w", err)
	}
	h, err := cohort.Open(p)
	if err != nil {
		return fmt.Errorf("watch parent: %w", err)
	}
	go func() {
		defer h.Close()
		for ctx.Err() == nil {
			if gone, err := h.Wait(500); gone || err != nil {
				cancel(ErrParentDied)
				return
			}
		}
	}()
	return nil
}

// serveHTTP starts the shim's own HTTP server and returns what stops it.
func (s *Shim) serveHTTP() (stop func(), err error) {
	ln, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serve %s: %w", ln.Addr(), err))
		}
	}()
	s.logger.Info("shim listens", "addr", ln.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
		<-done
	}, nil
}

// fail makes the engine go. Only the first reason counts.
func (s *Shim) fail(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// State is the engine's current state.
func (s *Shim) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.State()
}

// move makes a transition and notes it; it reports whether it was allowed.
func (s *Shim) move(to State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.machine.State()
	if from == to {
		return nil
	}
	if err := s.machine.To(to, time.Now()); err != nil {
		return err
	}
	s.metrics.entered(to)
	s.logger.Info("state", "from", from, "to", to)
	return nil
}

func dialectConfig(cfg Config) dialect.Config {
	d := dialect.Config{URL: cfg.EngineURL, Model: cfg.Name.Model, ModelFile: cfg.ModelFile, Parameters: cfg.Parameters}
	if cfg.Dialect == dialect.Ollama {
		d.Parallel = cfg.Slots
	}
	return d
}
