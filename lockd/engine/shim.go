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
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"
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

// shutdownTimeout bounds killing the cohort and answering the last requests.
const shutdownTimeout = 30 * time.Second

// Shim runs one engine. Create it with New and call Run once.
type Shim struct {
	cfg       Config
	logger    hclog.Logger
	dialect   dialect.Dialect
	registrar *consul.Registrar // nil where nothing is registered
	// life is the lock of this engine alone: while this process has it, lockd watches the
	// process and what descends from it. Nil without lockd.
	life *client.Client
	// locker is the lock of the failover pair. Nil for a single engine.
	locker   *client.Client
	offload  *offload.Offload // nil where no weights are shared
	metrics  *metrics
	records  *records
	cohortID string
	// keyArgs and keyEnv are what the engine gets beside its command and environment, so that it asks
	// for its API key.
	keyArgs, keyEnv []string

	// op serialises drain, sleep and wake; it may be held for their whole
	// duration. mu is never held across I/O.
	op sync.Mutex
	// saved is the only copy of a parked pair's shared weights, or nil. op guards it.
	saved *offload.Copy
	// drainedUntil is until when a drained engine waits for what is to follow. op guards it.
	drainedUntil time.Time
	// hold keeps the layouts in use.
	hold weightsHold
	// reg serialises calls to Consul that register or deregister. Whoever
	// holds it looks at the state first, so that nothing is registered after
	// the state has forbidden it. Lock order: op, reg, mu.
	reg sync.Mutex

	mu      sync.Mutex
	machine *Machine
	// vacatedAt is when the weights of a parked pair were last taken off the GPUs.
	vacatedAt time.Time
	// weightsLost is Status.WeightsLost.
	weightsLost bool
	engine      replica.Engine
	child       *child
	// gpus are those of the engine, nil where nobody says.
	gpus []string
	// grant is the lock, nil until it is granted; waiting is the place in the
	// queue before.
	grant   *client.Grant
	waiting int
	// lockedAt is when the lock that decides who serves was granted, or when the shim began if
	// there is none.
	lockedAt time.Time
	// takeover is nil unless the engine serves after another one.
	takeover *Takeover
	// generated is dialect.Usage.Generated of the engine before it served.
	generated string
	// lastLines is Takeover.Log.
	lastLines string
	// alone is the grant of the lock that is this engine's own, nil until it is granted.
	alone *client.Grant
	// run ends when the shim begins to stop; operations that HTTP clients
	// asked for end with it.
	run context.Context //nolint:containedctx // bridges net/http's request context to Run's.

	// fatal receives the first reason why the engine must go.
	fatal chan error
	// pushNow asks the heartbeat to push at once.
	pushNow chan struct{}
	// tookOver receives the take-over.
	tookOver chan *Takeover
	// drop asks for the end of the engine, but not of the shim; it is answered once
	// nothing of the engine is left.
	drop chan chan<- error
}

// New validates cfg and names everything that is wrong with it.
func New(cfg Config) (*Shim, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e, err := cfg.endpoint()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	s := &Shim{
		cfg: cfg, engine: e, cohortID: cohortID(),
		logger:  cfg.Logger.With("replica", cfg.Name.String(), "role", cfg.Role),
		metrics: newMetrics(cfg.Name, cfg.Role),
		fatal:   make(chan error, 1), pushNow: make(chan struct{}, 1), tookOver: make(chan *Takeover, 1), drop: make(chan chan<- error),
		machine: NewMachine(cfg.Role, cfg.Standby != StandbyNone, time.Now()), lockedAt: time.Now(),
	}
	if s.records, err = openRecords(cfg.Record); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	dc := dialectConfig(cfg)
	if dc.Key, err = s.engineKey(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if s.dialect, err = dialect.New(cfg.Dialect, dc); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	s.noteOwnEnd()
	if s.gpus, err = s.wantedGPUs(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if s.offload, err = newOffload(cfg); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if cfg.Lock != "" && !cfg.remoteLock() {
		if s.life, err = client.New(s.lockConfig(e.ID())); err != nil {
			return nil, fmt.Errorf("engine: lock: %w", err)
		}
	}
	if cfg.Standby != StandbyNone {
		if s.locker, err = client.New(s.lockConfig(cfg.Name.String())); err != nil {
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// What is under way for the engine ends with it: an order that drains it may have hours.
	lifeCtx, stopLife := context.WithCancel(ctx)
	defer stopLife()
	s.mu.Lock()
	s.run = lifeCtx
	s.mu.Unlock()
	if s.registrar != nil {
		defer s.registrar.Close()
	}
	stopHTTP, err := s.serveHTTP()
	if err != nil {
		return err
	}
	defer stopHTTP()
	stopTLS, err := s.serveTLS(ctx)
	if err != nil {
		return err
	}
	defer stopTLS()
	if s.cfg.WatchParent {
		if err := watchParent(ctx, cancel); err != nil {
			return err
		}
	}
	// The processes of an earlier life of this engine are gone once this one has the lock.
	if lost, err := s.acquireLife(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was asked to stop
		}
		return err
	} else if lost != nil {
		go s.endWith(ctx, lost)
	}
	if err := s.preflight(ctx); err != nil {
		return err
	}
	// Orphans of the engine become children of the shim, so that their
	// parentage stays known.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	c, err := s.newChild()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.child = c
	s.mu.Unlock()
	// Also while the engine drains for its stop: it may hang then.
	healthCtx, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	wg.Go(func() { s.lifecycle(lifeCtx) })
	wg.Go(func() { s.healthLoop(healthCtx) })
	reason := s.watch(ctx, ended)
	return s.shutDown(reason, func() { stopLife(); stopHealth(); wg.Wait() })
}

func (s *Shim) engineProcess() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// newChild prepares the engine's process.
func (s *Shim) newChild() (*child, error) {
	return newChild(slices.Concat(s.cfg.Command, s.keyArgs), s.cohortID)
}

// launch starts the engine's process.
func (s *Shim) launch() error {
	role := s.cfg.Role
	if s.holdsLock() {
		role = replica.RolePrimary // nobody else of the group may write now
	}
	env := []string{EnvReplica + "=" + s.cfg.Name.String(), roleEnv + "=" + s.cfg.Role, weightsLockEnv + "=" + weightsLock(role)}
	env = append(env, s.keyEnv...)
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

// watch returns why the engine must end; nil means that ctx asked for it. ended tells that a child
// has ended.
func (s *Shim) watch(ctx context.Context, ended <-chan os.Signal) error {
	c := s.engineProcess()
	for {
		select {
		case <-c.ended:
			return fmt.Errorf("%w: %s", ErrEngineExited, c.exit())
		case done := <-s.drop:
			fresh, err := s.replace(c)
			if err != nil {
				done <- err
				return fmt.Errorf("end the engine: %w", err)
			}
			c = fresh
			done <- nil
		case err := <-s.fatal:
			return err
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, ErrParentDied) {
				return cause
			}
			return nil
		case <-ended: // perhaps an orphan of the engine, which is this process's child now
			if pid := c.pid(); pid != 0 {
				_ = cohort.Reap(pid) // the next one tries again
			}
		}
	}
}

// replace ends the engine, with all that belongs to it, and prepares another one.
func (s *Shim) replace(c *child) (*child, error) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := c.stop(ctx, 0); err != nil {
		return nil, err
	}
	fresh, err := s.newChild()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.child = fresh
	s.mu.Unlock()
	return fresh, nil
}

// shutDown takes the engine out of routing, drains it if it was asked to end
// in peace, and leaves no process behind. A registration that it cannot remove is
// lockd's to remove once this process has ended.
func (s *Shim) shutDown(reason error, stopLife func()) error {
	c := s.engineProcess()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout+s.cfg.StopTimeout+shutdownTimeout)
	defer cancel()
	peaceful := reason == nil
	if peaceful {
		s.logger.Info("stopping")
	}
	s.mu.Lock()
	state, unhealthy := s.machine.State(), s.machine.unhealthy
	s.mu.Unlock()
	switch {
	case peaceful && unhealthy != "":
		s.logger.Warn("stopping the engine without a drain: it cannot finish its requests", "reason", unhealthy)
	case peaceful && state != Init && state != Standby: // else there is nothing to drain
		drainCtx, stopWaiting := context.WithCancel(ctx)
		go func() {
			select {
			case <-c.ended:
			case err := <-s.fatal:
				s.logger.Warn("the engine failed while it drained", "error", err)
			case <-drainCtx.Done():
			}
			stopWaiting()
		}()
		if err := s.Drain(drainCtx, s.cfg.DrainTimeout); err != nil && s.State() == Draining {
			s.logger.Warn("stopping the engine before its drain is complete", "error", err)
		}
		stopWaiting()
	case errors.Is(reason, ErrHandedOver), errors.Is(reason, ErrDrill):
		s.logger.Info("stopping the engine: its standby takes over", "reason", reason)
	case !peaceful:
		s.logger.Error("stopping the engine after a failure", "reason", reason)
	}
	if err := s.move(Dead); err != nil {
		return errors.Join(reason, err)
	}
	var wg sync.WaitGroup
	ended := time.Now()
	wg.Go(func() { s.recordEnd(reason, unhealthy, ended) })
	var removal error
	wg.Go(func() {
		// A Consul that is busy for a moment must not keep a dead engine; one
		// that is away takes it for dead after a TTL by itself.
		removal = retryFor(ctx, s.logger, s.cfg.TTL, s.deregister)
	})
	grace := s.cfg.StopTimeout
	if !peaceful {
		grace = 0
	}
	err := c.stop(ctx, grace)
	stopLife()
	wg.Wait()
	switch {
	case removal == nil:
	case s.life != nil && !errors.Is(removal, consul.ErrRefused):
		s.logger.Warn("cannot remove the engine's registration: lockd tries on", "error", removal)
	default:
		s.logger.Warn("cannot remove the engine's registration: its check becomes critical after the TTL", "ttl", s.cfg.TTL.String(), "error", removal)
	}
	if err != nil {
		return errors.Join(reason, fmt.Errorf("kill the engine's processes: %w", err))
	}
	s.logger.Info("all processes of the engine have exited", "state", Dead)
	return reason
}

// preflight removes what an earlier life may have left: its registration,
// and an engine that still answers where ours shall serve.
func (s *Shim) preflight(ctx context.Context) error {
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
			if h.AwaitEnd(ctx) == nil {
				cancel(ErrParentDied)
				return
			}
			_ = pause(ctx, time.Second) // it could not be waited for, or ctx has ended
		}
	}()
	return nil
}

// maxConns bounds the connections to the shim that are open at once. Its clients, which are the
// checks, the controllers, the gateways and a scraper, have a few each. Others wait; connections
// without a request are closed after maxSilence.
const (
	maxConns   = 1024
	maxSilence = 5 * time.Second
)

// serveHTTP starts the shim's own HTTP server and returns what stops it.
func (s *Shim) serveHTTP() (stop func(), err error) {
	ln, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: bodiesInTime(s.handler()), ReadHeaderTimeout: maxSilence, IdleTimeout: maxSilence,
		ErrorLog: s.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(netutil.LimitListener(ln, maxConns)); !errors.Is(err, http.ErrServerClosed) {
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

// bodiesInTime reads the body of a request, which none of the shim's routes does, in as long as its header may
// take: the server would wait for its end without a limit before it answers.
func bodiesInTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			conn := http.NewResponseController(w)
			_ = conn.SetReadDeadline(time.Now().Add(maxSilence))
			if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 64<<10)); err != nil {
				http.Error(w, "the body did not come, or is too long: send none", http.StatusBadRequest)
				return
			}
			_ = conn.SetReadDeadline(time.Time{})
		}
		h.ServeHTTP(w, r)
	})
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
