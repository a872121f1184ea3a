package rank

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"sync"
	"time"
)

// workerFD is the descriptor of a worker's connection to its engine.
const workerFD = 3

// Worker is what an engine asks of one of its workers, by net/rpc. A worker ends with the connection.
type Worker struct {
	ctx    context.Context
	cfg    Config
	lost   chan error
	loads  chan struct{} // closed by Load
	opened chan struct{} // closed once rank or err is there
	ready  chan struct{} // closed once it is connected to the GPU memory service

	rank *Rank
	err  error
}

// None is an argument without content.
type None struct{}

// SleepArgs are those of Worker.Sleep.
type SleepArgs struct {
	Level int
	Leak  int64
}

// Facts are what a worker holds.
type Facts struct {
	Size         int64
	Tensors      int
	Device, Host int64
}

// RunWorker serves the engine that has started this process, and returns once that is gone or the rank
// has failed. The memory is held for the teardown time longer, as a driver takes its time.
func RunWorker(ctx context.Context, cfg Config, teardown time.Duration) error {
	conn := os.NewFile(workerFD, "engine")
	if info, err := conn.Stat(); err != nil || info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("descriptor %d is not a socket: want a connection to an engine; do not run sim-worker by hand, run 'remuda sim -workers'", workerFD)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &Worker{ctx: ctx, lost: make(chan error, 1), loads: make(chan struct{}), opened: make(chan struct{}), ready: make(chan struct{})}
	cfg.Lost = func(err error) {
		select {
		case w.lost <- err:
		default:
		}
	}
	w.cfg = cfg
	server := rpc.NewServer()
	if err := server.Register(w); err != nil {
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(conn)
	}()
	var opening sync.WaitGroup
	opening.Go(func() {
		defer close(w.opened)
		w.rank, w.err = Open(ctx, cfg, func(ctx context.Context) error {
			close(w.ready)
			select {
			case <-w.loads:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	var err error
	select {
	case <-served:
	case err = <-w.lost:
	}
	cancel()
	opening.Wait()
	time.Sleep(teardown)
	if w.rank != nil {
		err = errors.Join(err, w.rank.Close())
	}
	return err
}

// Init waits until the worker holds its GPU and its session with the GPU memory service.
func (w *Worker) Init(None, *Facts) error {
	select {
	case <-w.ready:
		return nil
	case <-w.opened:
		return w.err
	}
}

// Load lets it load its weights, and waits until they are there.
func (w *Worker) Load(_ None, f *Facts) error {
	close(w.loads)
	<-w.opened
	if w.err != nil {
		return w.err
	}
	*f = w.facts()
	return nil
}

// Sleep is Rank.Sleep.
func (w *Worker) Sleep(a SleepArgs, f *Facts) error {
	err := w.rank.Sleep(a.Level, a.Leak)
	*f = w.facts()
	return err
}

// Wake is Rank.Wake.
func (w *Worker) Wake(corrupt bool, f *Facts) error {
	err := w.rank.Wake(w.ctx, corrupt)
	*f = w.facts()
	return err
}

// WakeCache is Rank.WakeCache.
func (w *Worker) WakeCache(_ None, f *Facts) error {
	err := w.rank.WakeCache()
	*f = w.facts()
	return err
}

func (w *Worker) facts() (f Facts) {
	f.Size, f.Tensors = w.rank.Size(), w.rank.Tensors()
	f.Device, f.Host = w.rank.Usage()
	return f
}

// Step is the worker's part of one step of the batch.
func (w *Worker) Step(None, *Facts) error { return nil }
