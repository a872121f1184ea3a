package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"remuda/lockd/cohort"
)

// child is the engine's process and its cohort.
type child struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	endErr error
}

// startChild starts command marked with the cohort's ID. The kernel kills the
// child should the shim die; its own children are the guard's business.
func startChild(command []string, cohortID string, extraEnv []string) (*child, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, fmt.Errorf("start engine: %w: the command after -- must be a program on PATH or a path to one", err)
	}
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Env = append(withoutEnv(os.Environ(), cohort.EnvVar), cohort.EnvVar+"="+cohortID)
	cmd.Env = append(cmd.Env, extraEnv...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	c := &child{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal fires when the thread that forked ends, so
		// that thread stays with this goroutine until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start engine: %w", err)
			return
		}
		started <- nil
		c.endErr = cmd.Wait()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// exit says how the child ended; call it after ended is closed.
func (c *child) exit() string {
	if c.endErr == nil {
		return "exit status 0"
	}
	return c.endErr.Error()
}

// stop asks the engine's process group to end, then kills what is left of the
// cohort, whatever comes of the asking. It returns once nothing is left.
func (c *child) stop(ctx context.Context, tracker *cohort.Tracker, grace time.Duration) error {
	select {
	case <-c.ended:
	default:
		asked := unix.Kill(-c.pid(), unix.SIGTERM)
		if asked != nil && !errors.Is(asked, unix.ESRCH) {
			return errors.Join(fmt.Errorf("ask the engine to end: %w", asked), tracker.Kill(ctx))
		}
		select {
		case <-c.ended:
		case <-time.After(grace):
		}
	}
	return tracker.Kill(ctx)
}
