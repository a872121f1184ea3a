package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/lockd/cohort"
)

// GuardVerb is the hidden verb of the remuda binary that runs RunGuard.
const GuardVerb = "engine-guard"

const (
	// guardScan is how often the guard looks for new descendants of the shim,
	// as often as lockd scans a holder's.
	guardScan = time.Second
	// guardKill bounds the guard's work once the shim is dead. A process in
	// uninterruptible sleep can outlast it; that is said in the log.
	guardKill = 30 * time.Second
	// guardStart bounds how long the guard may take to report that it watches.
	guardStart = 10 * time.Second
)

// guardOrder is what the shim tells its guard.
type guardOrder struct {
	Shim     cohort.Process  `json:"shim"`
	Cohort   string          `json:"cohort"`
	Engine   replica.Engine  `json:"engine"`
	Consul   *consul.Address `json:"consul,omitempty"`
	LogLevel string          `json:"log_level"`
}

// guard is the shim's hold on its guard process. The guard outlives a shim
// that is killed: it removes the registration and ends the engine's processes.
type guard struct {
	order  guardOrder
	logger hclog.Logger
	exe    string

	// starting is waited for before a guard is told anything.
	starting sync.WaitGroup

	mu    sync.Mutex
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}
}

func newGuard(order guardOrder, logger hclog.Logger) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &guard{order: order, logger: logger, exe: exe}, nil
}

// start starts the guard process and waits until it watches.
func (g *guard) start() error {
	cmd := exec.Command(g.exe, GuardVerb)
	// lockd ends what descends from a dead holder; the guard is none of it.
	cmd.Env = append(withoutEnv(os.Environ(), cohort.EnvVar), foreignMark(g.order.Cohort))
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // Ctrl-C in a terminal is for the shim alone.
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	line := make(chan error, 1)
	go func() {
		if err := json.NewEncoder(in).Encode(g.order); err != nil {
			line <- err
			return
		}
		answer, err := bufio.NewReader(out).ReadString('\n')
		if err == nil && answer != "watching\n" {
			err = fmt.Errorf("unexpected response %q", answer)
		}
		line <- err
	}()
	select {
	case err = <-line:
	case <-time.After(guardStart):
		err = fmt.Errorf("no response within %s", guardStart)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return fmt.Errorf("start guard: %w", err)
	}
	ended := make(chan struct{})
	g.mu.Lock()
	g.cmd, g.in, g.ended = cmd, in, ended
	g.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// restart is start in the background.
func (g *guard) restart() <-chan error {
	result := make(chan error, 1)
	g.starting.Go(func() { result <- g.start() })
	return result
}

// pid is the guard's process ID.
func (g *guard) pid() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cmd.Process.Pid
}

// done is closed when the guard's process has ended.
func (g *guard) done() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

// dismiss tells the guard that the shim has cleaned up by itself.
func (g *guard) dismiss() {
	g.starting.Wait()
	g.mu.Lock()
	in, ended, cmd := g.in, g.ended, g.cmd
	g.mu.Unlock()
	_, _ = io.WriteString(in, "dismissed\n")
	_ = in.Close()
	select {
	case <-ended:
	case <-time.After(time.Second):
		_ = cmd.Process.Kill()
		<-ended
	}
}

// leave leaves the guard behind to finish what the shim could not: Consul has
// not been told yet that the engine is gone.
func (g *guard) leave() {
	g.starting.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.in.Close()
	g.logger.Warn("the guard process takes over the deregistration", "guard", g.cmd.Process.Pid)
}

// RunGuard is the guard process: it reads its order from in, answers on out,
// and waits until the shim is dead or dismisses it. Then it removes the
// engine's registration and kills what is left of the engine.
func RunGuard(in io.Reader, out io.Writer, logTo io.Writer) error {
	r := bufio.NewReader(in)
	raw, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the shim's order from standard input (remuda engine starts this command itself): %w", err)
	}
	var order guardOrder
	if err := json.Unmarshal(raw, &order); err != nil {
		return fmt.Errorf("read the shim's order: %w", err)
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "guard", Output: logTo, Level: hclog.LevelFromString(order.LogLevel)}).
		With("replica", order.Engine.Name.String())
	shim, err := cohort.Open(order.Shim)
	if err != nil {
		return fmt.Errorf("watch the shim: %w", err)
	}
	defer shim.Close()
	var registrar *consul.Registrar
	if order.Consul != nil {
		cfg := consul.DefaultRegistrarConfig()
		cfg.Address, cfg.Cohort, cfg.Logger = *order.Consul, order.Cohort, logger
		if registrar, err = consul.NewRegistrar(cfg); err != nil {
			return err
		}
		defer registrar.Close()
	}
	tracker := cohort.NewTracker(order.Cohort, order.Shim, os.Getpid())
	if _, err := io.WriteString(out, "watching\n"); err != nil {
		return fmt.Errorf("respond to the shim: %w", err)
	}
	dismissed := make(chan struct{})
	go func() {
		if line, _ := r.ReadString('\n'); line == "dismissed\n" {
			close(dismissed)
		}
	}()
	if wasDismissed, err := awaitShim(shim, tracker, dismissed, logger); wasDismissed || err != nil {
		return err
	}
	return cleanUp(order, tracker, registrar, logger)
}

// awaitShim returns when the shim is dead, or with true when it dismissed the
// guard. It scans meanwhile, so that orphans are known later.
func awaitShim(shim *cohort.Handle, tracker *cohort.Tracker, dismissed <-chan struct{}, logger hclog.Logger) (bool, error) {
	gone := make(chan error, 1)
	go func() {
		_, err := shim.Wait(-1)
		gone <- err
	}()
	tick := time.NewTicker(guardScan)
	defer tick.Stop()
	seen := -1
	failure := ""
	look := func() {
		alive, _, err := tracker.Scan()
		switch {
		case err != nil && failure != err.Error():
			failure = err.Error()
			logger.Warn("cannot scan for the engine's processes", "error", err)
		case err == nil && len(alive) != seen:
			seen, failure = len(alive), ""
			logger.Debug("watching", "processes", seen, "guard", os.Getpid())
		}
	}
	look()
	for {
		select {
		case <-dismissed:
			return true, nil
		case err := <-gone:
			if err != nil {
				return false, err
			}
			// A dismissal that raced with the shim's own exit still counts.
			select {
			case <-dismissed:
				return true, nil
			default:
				return false, nil
			}
		case <-tick.C:
			look()
		}
	}
}

func cleanUp(order guardOrder, tracker *cohort.Tracker, registrar *consul.Registrar, logger hclog.Logger) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), guardKill)
	defer cancel()
	var deregister error
	var wg sync.WaitGroup
	if registrar != nil {
		wg.Go(func() {
			deregister = insist(ctx, logger, guardKill, func(ctx context.Context) error {
				return registrar.DeregisterCohort(ctx, order.Engine)
			})
		})
	}
	kill := tracker.Kill(ctx)
	wg.Wait()
	if err := errors.Join(kill, deregister); err != nil {
		return fmt.Errorf("clean up after the shim died: %w", err)
	}
	logger.Warn("the shim died: engine killed and deregistered", "took", time.Since(start).Round(time.Microsecond).String())
	return nil
}

func withoutEnv(env []string, name string) []string {
	kept := make([]string, 0, len(env))
	for _, kv := range env {
		if len(kv) > len(name) && kv[:len(name)] == name && kv[len(name)] == '=' {
			continue
		}
		kept = append(kept, kv)
	}
	return kept
}
