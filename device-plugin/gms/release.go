package gms

import (
	"context"
	"sync"

	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/gms/backend"
)

// releaseWorkers is how many allocations of a GPU are released at once: enough
// that some that take long do not hold up the rest.
const releaseWorkers = 8

// releaser gives memory of one GPU back in the background.
type releaser struct {
	logger hclog.Logger

	mu sync.Mutex // guards what is below
	// queue is what is to be released, pending its bytes with those under way.
	queue   []backend.Memory
	pending uint64
	workers int
	closed  bool
	running sync.WaitGroup
}

// add releases memory soon. It never waits.
func (r *releaser) add(memory ...backend.Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // the end of the process gives it back
	}
	for _, m := range memory {
		r.pending += m.Size()
	}
	r.queue = append(r.queue, memory...)
	for r.workers < min(releaseWorkers, len(r.queue)) {
		r.workers++
		r.running.Go(r.work)
	}
}

func (r *releaser) work() {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 || r.closed {
			r.workers--
			r.mu.Unlock()
			return
		}
		next := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		r.mu.Unlock()
		if err := next.Release(); err != nil {
			r.logger.Error("cannot release memory", "bytes", next.Size(), "error", err)
		}
		r.mu.Lock()
		r.pending -= next.Size()
		r.mu.Unlock()
	}
}

// bytes is how much is on its way back.
func (r *releaser) bytes() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// close ends the work, what is under way no later than ctx.
func (r *releaser) close(ctx context.Context) {
	r.mu.Lock()
	r.closed = true
	r.queue = nil
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.running.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
