// Package process supervises the programs that a test or a tool starts.
//
// Each process leads a process group and appends its output to a log file. The
// kernel kills it when the program that started it dies.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config describes the program to start.
type Config struct {
	// Path is the program and Args are its arguments.
	Path string
	Args []string
	// Env is added to the environment of this process, as "NAME=value".
	Env []string
	// Dir is the working directory; empty for the current one.
	Dir string
	// Log is the path of the file that receives standard output and error. An
	// existing file is appended to.
	Log string
}

// Process is a started program. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a program.
func Start(cfg Config) (*Process, error) {
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	defer log.Close() // the process has its own descriptor
	p := &Process{cmd: exec.Command(cfg.Path, cfg.Args...), log: cfg.Log, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Dir = cfg.Dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is bound to the thread that forks, so that
		// thread must live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return p, nil
}

// PID is the process ID and the ID of the process group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns its error, as exec.Cmd does, or the
// error of ctx.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s (process %d) does not end: %w", p.cmd.Path, p.PID(), ctx.Err())
	}
}

// ErrEnded is wrapped by the errors of Running.
var ErrEnded = errors.New("has ended")

// Running returns nil while the process runs, and then an error with the exit status
// and the last line of the output.
func (p *Process) Running() error {
	select {
	case <-p.done:
		out, _ := p.Output() // the exit status says more
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return fmt.Errorf("%s (process %d) %w (%s): %s", p.cmd.Path, p.PID(), ErrEnded, p.cmd.ProcessState, lines[len(lines)-1])
	default:
		return nil
	}
}

// Kill sends SIGKILL to the process group and waits for the process to end.
func (p *Process) Kill() {
	_ = unix.Kill(-p.PID(), unix.SIGKILL) // it fails if the group has ended
	<-p.done
}

// Stop sends SIGTERM to the process and waits for it to end. After grace it kills
// the process group and returns an error.
func (p *Process) Stop(grace time.Duration) error {
	_ = unix.Kill(p.PID(), unix.SIGTERM) // it fails if the process has ended
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s (process %d) did not end within %s of SIGTERM", p.cmd.Path, p.PID(), grace)
	}
}

// Output is the content of the log file.
func (p *Process) Output() (string, error) {
	raw, err := os.ReadFile(p.log)
	return string(raw), err
}

// WithEnv lists the running processes whose environment has the variable, given as
// "NAME=value". It finds every descendant of a process that was started with it.
// Processes of other users are not found.
func WithEnv(variable string) ([]int, error) {
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	var pids []int
	for _, path := range environs {
		// A process that has ended and was not waited for has an empty environment.
		raw, rerr := os.ReadFile(path)
		if rerr != nil || !strings.Contains("\x00"+string(raw), "\x00"+variable+"\x00") {
			continue
		}
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		err = errors.Join(err, perr)
		pids = append(pids, pid)
	}
	return pids, err
}
