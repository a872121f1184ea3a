package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Config says what the keeper runs. Start from DefaultConfig.
type Config struct {
	// Args are the arguments of this program, and ServiceArgs those that make it the
	// service. Required.
	Args, ServiceArgs []string
	// Program is the path at which the next version of the program is found.
	// Required.
	Program string
	// Upgrade receives a value when the program is to be replaced by Program. Rearm,
	// if not nil, has it receive values again after a failed upgrade.
	Upgrade <-chan os.Signal
	Rearm   func()
	// Stdout and Stderr are the service's.
	Stdout, Stderr io.Writer
	// Ping is how often the service is asked whether it lives, and Hang how long it
	// may take to answer.
	Ping, Hang time.Duration
	// Start is how long a service may take until it serves.
	Start time.Duration
	// Stop is how long a service may take to end in order.
	Stop time.Duration
	// Retry is the pause before a service is started again; it doubles up to
	// RetryMax where services end soon.
	Retry, RetryMax time.Duration
	Logger          hclog.Logger
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Ping:   time.Second,
		Hang:   5 * time.Second, // no request of a service that lives takes long
		Start:  2 * time.Minute, // a driver that initialises many GPUs takes half a minute
		Stop:   4 * time.Second, // less than Nomad's kill_timeout; releases may take 2 s
		Retry:  5 * time.Millisecond, RetryMax: time.Second,
		Logger: hclog.NewNullLogger(),
	}
}

func (c Config) validate() error {
	var errs []error
	if len(c.ServiceArgs) == 0 || c.Program == "" {
		errs = append(errs, errors.New("ServiceArgs and Program must be set"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Ping", c.Ping}, {"Hang", c.Hang}, {"Start", c.Start}, {"Stop", c.Stop}, {"Retry", c.Retry}, {"RetryMax", c.RetryMax}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: must be more than 0", d.name, d.value))
		}
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("Logger must be set"))
	}
	return errors.Join(errs...)
}

// Keeper is the parent of the service. Create it with New and call Run once.
type Keeper struct {
	cfg   Config
	log   hclog.Logger
	store *store
	// starts counts services.
	starts uint64
}

// New checks the config; the error names every bad field.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gms keeper: %w", err)
	}
	return &Keeper{cfg: cfg, log: cfg.Logger, store: newStore()}, nil
}

// ExitError is the end of a service that never served.
type ExitError struct {
	// Code is its exit code, -1 after a signal.
	Code int
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("the service ended before it served (exit code %d): see its messages", e.Code)
}

// steady is how long a service has run that did not end soon.
const steady = time.Second

// self is the program of this process, whatever is at its path now.
const self = "/proc/self/exe"

// Run runs services until ctx ends. An error is that of the first one, where it ended
// before it served.
func (k *Keeper) Run(ctx context.Context) error {
	// The kernel ends a service with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { k.store.close() }()
	if err := k.takeOver(); err != nil {
		return fmt.Errorf("gms keeper: %w", err)
	}
	served := k.starts > 0
	program, delay := self, k.cfg.Retry
	for {
		trial, began := program != self, time.Now()
		s, err := k.run(ctx, program)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			k.log.Error("cannot start the service", "program", program, "error", err)
		case trial && s.ready:
			err := k.exec(k.cfg.Program) // returns after an error only
			k.log.Error("cannot replace the keeper: the old program goes on", "program", k.cfg.Program, "error", err)
		case trial:
			k.log.Error("the new program does not serve: the old one goes on", "program", k.cfg.Program, "reason", s.end)
		case s.upgrade:
			k.log.Info("trying the new program", "program", k.cfg.Program)
		case !s.ready && !served:
			return &ExitError{s.code}
		default:
			k.log.Error("the service ended: starting it again", "reason", s.end, "records", len(k.store.records))
		}
		served = served || s.ready
		program = self
		if s.upgrade {
			program = k.cfg.Program
		}
		if time.Since(began) > steady {
			delay = k.cfg.Retry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		delay = min(2*delay, k.cfg.RetryMax)
	}
}

// outcome is how a service has ended.
type outcome struct {
	// ready: it served.
	ready bool
	// upgrade: it was ended for an upgrade.
	upgrade bool
	end     string
	code    int
}

// run starts a service and tends it until it has ended. A new program is ended as soon
// as it serves.
func (k *Keeper) run(ctx context.Context, program string) (out outcome, err error) {
	l, other, err := pair()
	if err != nil {
		return out, err
	}
	defer l.close()
	cmd := exec.Command(program, k.cfg.ServiceArgs...)
	cmd.Args[0] = k.cfg.Program // for those who list processes
	cmd.Stdout, cmd.Stderr = k.cfg.Stdout, k.cfg.Stderr
	cmd.ExtraFiles = []*os.File{other} // at FD
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err = cmd.Start()
	_ = other.Close()
	if err != nil {
		return out, err
	}
	k.starts++
	heard := make(chan op, 16)
	finished := make(chan struct{}) // nothing of the service is to be read any more
	exited := make(chan struct{})
	go func() {
		defer close(finished)
		err := k.store.give(l, k.starts)
		if err == nil {
			err = k.store.serve(l, func(o op) {
				select {
				case heard <- o:
				case <-exited:
				}
			})
		}
		if err != nil && !errors.Is(err, errEnded) {
			k.log.Error("ending the service", "error", err)
			_ = cmd.Process.Kill()
		}
	}()
	go func() {
		defer close(exited)
		_ = cmd.Wait() //nolint:errcheck // ProcessState has it
	}()
	out = k.tend(ctx, l, cmd, heard, exited, program != self)
	<-finished
	state := cmd.ProcessState
	out.code = state.ExitCode()
	if out.end == "" {
		out.end = state.String()
	}
	return out, nil
}

// tend waits for the end of a service, and ends one that hangs, is to be replaced, or
// was only tried.
func (k *Keeper) tend(ctx context.Context, l *link, cmd *exec.Cmd, heard <-chan op, exited <-chan struct{}, trial bool) (out outcome) {
	ping := time.NewTicker(k.cfg.Ping)
	defer ping.Stop()
	patience := time.NewTimer(k.cfg.Start)
	defer patience.Stop()
	done, upgrade := ctx.Done(), k.cfg.Upgrade
	waits := false // for the answer to a ping
	stop := func() {
		done, upgrade, heard, waits = nil, nil, nil, true
		_ = cmd.Process.Signal(unix.SIGTERM)
		patience.Reset(k.cfg.Stop)
	}
	for {
		select {
		case <-exited:
			return out
		case <-done:
			stop()
		case <-upgrade:
			if trial || !out.ready {
				k.log.Warn("not replacing a service that does not serve yet")
				continue
			}
			out.upgrade, out.end = true, "it is replaced"
			stop()
		case o := <-heard:
			waits = false
			if o == opReady {
				out.ready = true
				if trial {
					out.end = "it serves"
					stop()
					continue
				}
			}
			if out.ready {
				patience.Stop()
			}
		case <-ping.C:
			if out.ready && !waits && heard != nil {
				waits = l.send(opPing, nil) == nil
				patience.Reset(k.cfg.Hang)
			}
		case <-patience.C:
			if out.end == "" {
				out.end = "it did not respond in time, and was killed"
			}
			_ = cmd.Process.Kill()
		}
	}
}
