package sim

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/sim/engine"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/metrics"
	"remuda/internal/sim/responses"
)

// deathGrace is how long a process with a fatal error lives on, so that the
// answer to the request that brought it about gets out.
const deathGrace = 200 * time.Millisecond

// headerTimeout is how long a request's header may take to arrive.
const headerTimeout = 10 * time.Second

// Server is one simulated engine.
type Server struct {
	cfg     Config
	log     hclog.Logger
	engine  *engine.Engine
	faults  *fault.Box
	metrics *metrics.Metrics
	routes  []route
	created int64 // Unix seconds

	bank  atomic.Pointer[bank] // nil until the weights are loaded
	gpus  atomic.Pointer[[]string]
	ready atomic.Bool
	dead  atomic.Bool
	// generations counts the generation requests for fault.Set.Error500Every.
	generations atomic.Int64
	counters    counters
	responses   responses.Store
	sleep       sleeper
	fatal       chan error
	handlers    sync.WaitGroup
	unused      unusedConns
}

// New checks the configuration. Nothing starts before Run.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, faults: fault.NewBox(cfg.Faults), created: time.Now().Unix(), fatal: make(chan error, 1)}
	err := cfg.validate()
	if err == nil {
		s.sleep.busy = make(chan struct{}, 1)
		s.gpus.Store(&cfg.GPUs)
		s.metrics, err = metrics.New(metrics.Config{
			Model: cfg.Model, MaxModelLen: cfg.MaxModelLen, BlockSize: cfg.BlockSize, Blocks: cfg.NumGPUBlocks,
			Stats:      s.batchStats,
			SleepState: s.sleep.metric,
			Memory:     s.memoryUsage,
			Faults:     func() bool { return s.faults.Get() != fault.Set{} },
		})
	}
	// The engine is checked in any case, so that every bad field is named.
	eng, eerr := engine.New(engine.Config{
		Batch: cfg.batch(), Rates: cfg.Rates, Faults: s.faults, Observer: s.metrics, Crash: s.crash,
	})
	if err = errors.Join(err, eerr); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	s.engine = eng
	s.routes = s.table()
	if cfg.API == APISGLang {
		s.routes = s.sglangTable()
	}
	return s, nil
}

// Run serves on ln until ctx is done and then lets running requests finish, up
// to the drain timeout. It returns an error when the weights cannot be loaded
// or prove damaged, or after a sleep with requests in flight. It closes ln and
// leaves no goroutine behind.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       s.cfg.BodyTimeout, // lifted once the body is there
		IdleTimeout:       s.cfg.KeepAlive,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnState:         s.unused.follow,
		ErrorLog:          log.New(s.log.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
	}
	var running sync.WaitGroup
	running.Go(func() { s.engine.Run(base) })
	running.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.die(fmt.Errorf("serve HTTP on %s: %w", ln.Addr(), err))
		}
	})
	starting, stopStart := context.WithCancel(ctx)
	running.Go(func() { s.start(starting) })

	var err error
	select {
	case <-ctx.Done():
		s.log.Info("stopping", "requests", s.engine.Stats().Running+s.engine.Stats().Waiting, "drain_timeout", s.cfg.DrainTimeout)
		drain, done := context.WithTimeout(base, s.cfg.DrainTimeout)
		s.unused.closeAll()
		if serr := srv.Shutdown(drain); serr != nil {
			s.log.Warn("requests cut off", "reason", "drain timeout", "requests", s.engine.Stats().Running+s.engine.Stats().Waiting)
		}
		done()
	case err = <-s.fatal:
		s.dead.Store(true)
		s.log.Error("engine failed", "error", err)
		grace := time.NewTimer(deathGrace)
		select {
		case <-grace.C:
		case <-ctx.Done():
			grace.Stop()
		}
	}
	stopStart()
	// The connections go before the requests' contexts do, so that no answer
	// that was cut off looks like a complete one.
	cerr := srv.Close()
	if errors.Is(cerr, net.ErrClosed) {
		cerr = nil
	}
	cancel()
	running.Wait()
	s.handlers.Wait()
	if bank := s.bank.Load(); bank != nil {
		if len(s.cfg.Workers) == 0 { // they take their own time
			time.Sleep(s.cfg.Teardown)
		}
		cerr = errors.Join(cerr, bank.Close())
	}
	if err == nil && cerr != nil {
		err = fmt.Errorf("stop: %w", cerr)
	}
	return err
}

// unusedConns are connections on which no request has come. Shutdown would wait
// for each of them as for a request.
type unusedConns struct {
	mu      sync.Mutex
	conns   map[net.Conn]bool
	closing bool
}

// follow is an http.Server's ConnState.
func (u *unusedConns) follow(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.conns, c)
	case u.closing:
		_ = c.Close()
	default:
		if u.conns == nil {
			u.conns = map[net.Conn]bool{}
		}
		u.conns[c] = true
	}
}

func (u *unusedConns) closeAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closing = true
	for c := range u.conns {
		_ = c.Close()
	}
}

// start loads the weights and gets ready.
func (s *Server) start(ctx context.Context) {
	begin := time.Now()
	bank, err := s.openBank(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.die(err)
		}
		return
	}
	s.bank.Store(bank)
	if s.cfg.Asleep {
		s.engine.Sleep()
		s.sleep.deepen(memory.LevelOffload)
	}
	if s.cfg.Weights != "" {
		s.log.Info("weights loaded", "file", s.cfg.Weights, "bytes", bank.Size(), "tensors", bank.Tensors(), "took", time.Since(begin))
	}
	delay := time.NewTimer(s.cfg.InitDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
		return
	}
	if s.faults.Get().Crash {
		s.crash("fault crash")
		return
	}
	s.ready.Store(true)
	s.log.Info("ready", "model", s.cfg.Model, "slots", s.cfg.MaxNumSeqs, "kv_tokens", s.cfg.NumGPUBlocks*s.cfg.BlockSize,
		"max_model_len", s.cfg.MaxModelLen, "took", time.Since(begin))
}

// die makes Run end with err; only the first error counts.
func (s *Server) die(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// crash ends the process without a word to anyone.
func (s *Server) crash(reason string) {
	s.log.Error("crashing on demand", "reason", reason, "exit_code", ExitCrash)
	s.dead.Store(true)
	s.cfg.Exit(ExitCrash)
}
