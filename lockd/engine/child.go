package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"remuda/lockd/cohort"
)

// child is the engine's process and its cohort.
type child struct {
	cmd *exec.Cmd
	// began and ended are closed when the process has started and when it has
	// ended, endErr is set then.
	began, ended chan struct{}
	endErr       error
	// oomBefore is what oomKills returned before the process was started.
	oomBefore int
	// loaded: it has loaded its model once.
	loaded atomic.Bool
	// mu is held while the process is started; nothing starts once stopped.
	mu      sync.Mutex
	stopped bool
}

var errStopping = errors.New("start engine: the shim is stopping")

// newChild prepares the process of command, marked with the cohort's ID.
func newChild(command []string, cohortID string) (*child, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, fmt.Errorf("start engine: %w: the command after -- must be a program on PATH or its path", err)
	}
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Env = append(withoutEnv(withoutEnv(os.Environ(), EnvShimSecret), cohort.EnvVar), cohort.EnvVar+"="+cohortID)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	return &child{cmd: cmd, began: make(chan struct{}), ended: make(chan struct{})}, nil
}

// start starts the process; call it once. The kernel kills the child should the
// shim die; its own children are lockd's business.
func (c *child) start(extraEnv ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopping
	}
	c.cmd.Env = append(c.cmd.Env, extraEnv...)
	c.oomBefore = oomKills("/")
	started := make(chan error, 1)
	go func() {
		// The parent-death signal fires when the thread that forked ends, so
		// that thread stays with this goroutine until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := c.cmd.Start(); err != nil {
			started <- fmt.Errorf("start engine: %w", err)
			return
		}
		close(c.began)
		started <- nil
		c.endErr = c.cmd.Wait()
		close(c.ended)
	}()
	return <-started
}

// pid is the process's ID, 0 until it has started.
func (c *child) pid() int {
	select {
	case <-c.began:
		return c.cmd.Process.Pid
	default:
		return 0
	}
}

// processPhase is how far the engine's process has come.
type processPhase int

const (
	processAbsent processPhase = iota // it is yet to be started
	processLoading
	processReady // it has loaded its model
)

func (c *child) phase() processPhase {
	switch {
	case c.pid() == 0:
		return processAbsent
	case c.loaded.Load():
		return processReady
	}
	return processLoading
}

// exit says how the child ended; call it after ended is closed.
func (c *child) exit() string {
	switch {
	case c.endErr == nil:
		return "exit status 0"
	case oomKills("/") > c.oomBefore:
		return c.endErr.Error() + ": out of memory: the kernel killed a process of the task's cgroup"
	}
	return c.endErr.Error()
}

// stop asks the engine's process group to end, then kills everything that descends from
// the shim, whatever comes of the asking. It returns once nothing is left.
func (c *child) stop(ctx context.Context, grace time.Duration) error {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	select {
	case <-c.ended:
	default:
		if c.pid() == 0 {
			break
		}
		asked := unix.Kill(-c.pid(), unix.SIGTERM)
		if asked != nil && !errors.Is(asked, unix.ESRCH) {
			return errors.Join(fmt.Errorf("stop the engine: %w", asked), cohort.KillDescendants(ctx, c.pid()))
		}
		select {
		case <-c.ended:
		case <-time.After(grace):
		}
	}
	return cohort.KillDescendants(ctx, c.pid())
}
