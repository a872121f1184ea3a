package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restartDelay doubles up to restartMax while a daemon keeps dying, and
	// starts over once it has run for restartMax.
	restartDelay = 250 * time.Millisecond
	restartMax   = 10 * time.Second
	// stopGrace is how long a daemon gets between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
)

// daemon is a supervised child: it is started again when it dies by itself.
type daemon struct {
	name string
	path string
	args []string
	env  []string
	log  string
	// say reports restarts to the user.
	say func(format string, args ...any)

	mu      sync.Mutex
	cmd     *exec.Cmd
	stopped bool
	// held is not nil while the daemon is kept down; closing it starts the daemon again.
	held chan struct{}
	// ended is closed when the present life ends, started when the next one begins.
	ended, started chan struct{}
	// firstEnd is closed when the first life has ended.
	firstEnd chan struct{}
	endErr   error
	done     chan struct{}
	wake     chan struct{}
}

// start starts the first life. The daemon is supervised until stop.
func (d *daemon) start() error {
	d.firstEnd, d.done, d.wake = make(chan struct{}), make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go d.supervise(first)
	return <-first
}

// supervise runs on one locked thread for the daemon's whole life: the
// kernel's parent-death signal is bound to the thread that forked.
func (d *daemon) supervise(first chan<- error) {
	defer close(d.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	delay := restartDelay
	for life := 1; ; life++ {
		started := time.Now()
		cmd, err := d.launch()
		if life == 1 {
			first <- err
			if err != nil {
				return
			}
		}
		if err == nil {
			err = cmd.Wait()
		}
		// end waits for this, and again may follow at once: whether the daemon is held is
		// read before its end is announced.
		d.mu.Lock()
		stopped, held := d.stopped, d.held
		if cmd != nil {
			close(d.ended)
		}
		d.mu.Unlock()
		if life == 1 {
			d.mu.Lock()
			d.endErr = err
			d.mu.Unlock()
			close(d.firstEnd)
		}
		if time.Since(started) > restartMax {
			delay = restartDelay
		}
		if stopped {
			return
		}
		if held != nil {
			select {
			case <-d.wake:
				return
			case <-held:
			}
			delay = restartDelay
			continue
		}
		if err == nil {
			err = errors.New("exit status 0")
		}
		d.say("%s ended (%v): starting it again; its log is %s", d.name, err, d.log)
		select {
		case <-d.wake:
			return
		case <-time.After(delay):
		}
		delay = min(delay*2, restartMax)
	}
}

func (d *daemon) launch() (*exec.Cmd, error) {
	logFile, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", d.name, err)
	}
	defer logFile.Close()
	cmd := exec.Command(d.path, d.args...)
	cmd.Env = d.env
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// A group of its own: Ctrl-C in the terminal is for remuda dev, which
	// takes things down in order.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return nil, context.Canceled
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", d.name, err)
	}
	d.cmd, d.ended = cmd, make(chan struct{})
	if d.started != nil {
		close(d.started)
		d.started = nil
	}
	return cmd, nil
}

// end ends the daemon with a signal and keeps it down until again.
func (d *daemon) end(sig os.Signal) error {
	d.mu.Lock()
	if d.held == nil {
		d.held = make(chan struct{})
	}
	cmd, ended := d.cmd, d.ended
	d.mu.Unlock()
	_ = cmd.Process.Signal(sig) // it may have ended by itself
	select {
	case <-ended:
		return nil
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("%s did not end within 30 s of %s", d.name, sig)
	}
}

// again starts a daemon that end has ended, and returns once its process runs.
func (d *daemon) again() error {
	d.mu.Lock()
	if d.held == nil {
		d.mu.Unlock()
		return fmt.Errorf("%s was not ended", d.name)
	}
	started := make(chan struct{})
	d.started = started
	close(d.held)
	d.held = nil
	d.mu.Unlock()
	select {
	case <-started:
		return nil
	case <-d.done:
		return fmt.Errorf("%s is not started again: the cluster ends", d.name)
	}
}

// pid is the process ID of the present life, 0 between two lives.
func (d *daemon) pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.ended:
		return 0
	default:
		return d.cmd.Process.Pid
	}
}

// died returns an error once the first life has ended, nil while it runs. It
// turns "did not come up in time" into "ended at once, and here is its log".
func (d *daemon) died() error {
	select {
	case <-d.firstEnd:
		d.mu.Lock()
		defer d.mu.Unlock()
		how := "exit status 0"
		if d.endErr != nil {
			how = d.endErr.Error()
		}
		return fmt.Errorf("%s ended (%s); the end of its log %s:\n%s", d.name, how, d.log, tail(d.log, 12))
	default:
		return nil
	}
}

// stop ends the daemon: SIGTERM, then SIGKILL after stopGrace.
func (d *daemon) stop() {
	d.mu.Lock()
	if d.stopped || d.done == nil {
		d.mu.Unlock()
		return
	}
	d.stopped = true
	close(d.wake)
	cmd := d.cmd
	d.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Signal(unix.SIGTERM)
	}
	select {
	case <-d.done:
		return
	case <-time.After(stopGrace):
	}
	if cmd != nil {
		_ = cmd.Process.Kill()
	}
	<-d.done
}

// tail returns the last n lines of a log file, for an error message.
func tail(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	end := len(raw)
	for i := end - 1; i >= 0; i-- {
		if raw[i] == '\n' && i != end-1 {
			if n--; n == 0 {
				return string(raw[i+1 : end])
			}
		}
	}
	return string(raw)
}
