package rank

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// ErrFixed is returned by Crew.Move.
var ErrFixed = errors.New("the workers hold their GPUs")

// Crew is an engine's ranks, each a process of its own. Its methods are safe for concurrent use.
type Crew struct {
	log     hclog.Logger
	workers []*worker
	ended   sync.WaitGroup

	mu      sync.Mutex // guards what is below
	facts   []Facts    // by worker, as of its last answer
	closing bool
}

// worker is one of the processes.
type worker struct {
	name string
	cmd  *exec.Cmd
	rpc  *rpc.Client
}

// Start starts a worker with each of the commands, and waits until all have loaded their weights: each
// goes on to that once all hold their GPUs, as ranks do that meet in a collective. died is called when a
// worker ends that was not told to.
func Start(ctx context.Context, commands []*exec.Cmd, log hclog.Logger, died func(error)) (_ *Crew, err error) {
	c := &Crew{log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for i, cmd := range commands {
		w := &worker{name: fmt.Sprintf("worker %d", i), cmd: cmd}
		if err := w.start(); err != nil {
			return nil, err
		}
		c.workers = append(c.workers, w)
		c.ended.Go(func() {
			err := cmd.Wait()
			if err == nil {
				err = errors.New("exit status 0")
			}
			c.mu.Lock()
			closing := c.closing
			c.mu.Unlock()
			if !closing {
				died(fmt.Errorf("%s (process %d) has ended: %w", w.name, cmd.Process.Pid, err))
			}
		})
		log.Info("worker started", "worker", i, "pid", cmd.Process.Pid)
	}
	c.facts = make([]Facts, len(c.workers))
	for _, phase := range []string{"Worker.Init", "Worker.Load"} {
		if err := c.change(ctx, phase, None{}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// start starts the process with its end of a connection.
func (w *worker) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), w.name), os.NewFile(uintptr(pair[1]), w.name)
	defer ours.Close()   //nolint:errcheck // net.FileConn has a copy
	defer theirs.Close() //nolint:errcheck // the worker has a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	w.cmd.ExtraFiles = []*os.File{theirs}
	if err := w.cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", w.name, err), conn.Close())
	}
	w.rpc = rpc.NewClient(conn)
	return nil
}

// change calls a method of all workers after which they hold something else.
func (c *Crew) change(ctx context.Context, method string, args any) error {
	return c.all(ctx, method, args, func(worker int, f Facts) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.facts[worker] = f
	})
}

// all calls a method of all workers at once and joins the errors. A worker that hangs holds it up until
// ctx is done.
func (c *Crew) all(ctx context.Context, method string, args any, answered func(worker int, f Facts)) error {
	calls := make([]*rpc.Call, len(c.workers))
	for i, w := range c.workers {
		calls[i] = w.rpc.Go(method, args, new(Facts), make(chan *rpc.Call, 1))
	}
	var errs []error
	for i, call := range calls {
		select {
		case <-call.Done:
			if call.Error != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.workers[i].name, call.Error))
			} else {
				answered(i, *call.Reply.(*Facts))
			}
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// Step is one step of the batch: no worker goes on before all have done their part.
func (c *Crew) Step(ctx context.Context) error {
	return c.all(ctx, "Worker.Step", None{}, func(int, Facts) {})
}

// Sleep is Rank.Sleep on all workers; each leaks its share.
func (c *Crew) Sleep(level int, leak int64) error {
	return c.change(context.Background(), "Worker.Sleep", SleepArgs{level, leak / int64(len(c.workers))})
}

// Wake is Rank.Wake on all workers.
func (c *Crew) Wake(ctx context.Context, corrupt bool) error {
	return c.change(ctx, "Worker.Wake", corrupt)
}

// WakeCache is Rank.WakeCache on all workers.
func (c *Crew) WakeCache() error {
	return c.change(context.Background(), "Worker.WakeCache", None{})
}

// Move fails: a worker has the context of its GPU.
func (c *Crew) Move([]string) error { return ErrFixed }

// Size is how many bytes the weights take.
func (c *Crew) Size() int64 { return c.sum().Size }

// Tensors is how many tensors the weights have.
func (c *Crew) Tensors() int { return c.sum().Tensors }

// Usage is how many bytes are on the GPUs and in host memory. It waits for no worker.
func (c *Crew) Usage() (device, host int64) {
	f := c.sum()
	return f.Device, f.Host
}

// sum adds up what the workers held last.
func (c *Crew) sum() (sum Facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.facts {
		sum.Size += f.Size
		sum.Tensors += f.Tensors
		sum.Device += f.Device
		sum.Host += f.Host
	}
	return sum
}

// Close ends the workers and waits for them.
func (c *Crew) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	var errs []error
	for _, w := range c.workers {
		if err := w.rpc.Close(); !errors.Is(err, rpc.ErrShutdown) {
			errs = append(errs, err)
		}
	}
	c.ended.Wait()
	return errors.Join(errs...)
}
