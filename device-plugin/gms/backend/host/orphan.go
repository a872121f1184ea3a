package host

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookFirst is how soon after its release memory is looked at again, and lookMax
	// how often at last; the pause doubles between them.
	lookFirst = 5 * time.Millisecond
	lookMax   = 250 * time.Millisecond
)

// orphanage watches memory that the backend has released and others still hold.
type orphanage struct {
	// freed is told the size of what nobody holds any more, with mu held, so that
	// whoever takes mu after a death sees its bytes free.
	freed func(size uint64)

	mu      sync.Mutex // guards what is below
	started bool
	closed  bool
	orphans map[*orphan]struct{}
	// wake shortens the watcher's wait.
	wake    chan struct{}
	watcher sync.WaitGroup
}

// orphan is released memory.
type orphan struct {
	fd   int
	size uint64
	// next is when to look again, and delay how long after that.
	next  time.Time
	delay time.Duration
}

func newOrphanage(freed func(size uint64)) *orphanage {
	return &orphanage{freed: freed, orphans: map[*orphan]struct{}{}, wake: make(chan struct{}, 1)}
}

// add takes over an open file of released memory. The error is that of close.
func (h *orphanage) add(fd int, size uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok, err := alone(fd); ok || err != nil {
		h.freed(size)
		return errors.Join(err, unix.Close(fd))
	}
	if h.closed {
		return unix.Close(fd)
	}
	if !h.started {
		h.started = true
		h.watcher.Go(h.run)
	}
	h.orphans[&orphan{fd: fd, size: size, next: time.Now().Add(lookFirst), delay: 2 * lookFirst}] = struct{}{}
	h.nudge()
	return nil
}

// check asks the kernel about o, and forgets it when it is free. mu is held.
func (h *orphanage) check(o *orphan) {
	ok, err := alone(o.fd)
	if !ok && err == nil {
		o.next = time.Now().Add(o.delay)
		o.delay = min(2*o.delay, lookMax)
		return
	}
	delete(h.orphans, o)
	_ = unix.Close(o.fd)
	h.freed(o.size)
}

// look asks about every orphan now.
func (h *orphanage) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for o := range h.orphans {
		h.check(o)
	}
}

// nudge has the watcher compute its wait again.
func (h *orphanage) nudge() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// due looks at the orphans whose time has come and returns when the next is due;
// zero for never. more is false at the end.
func (h *orphanage) due() (next time.Time, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for o := range h.orphans {
		if !o.next.After(now) {
			h.check(o)
		}
	}
	for o := range h.orphans {
		if next.IsZero() || o.next.Before(next) {
			next = o.next
		}
	}
	return next, !h.closed
}

// run is the watcher.
func (h *orphanage) run() {
	for {
		next, more := h.due()
		if !more {
			return
		}
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
		case <-h.wake:
		}
	}
}

// close ends the watcher and closes all orphans.
func (h *orphanage) close() error {
	h.mu.Lock()
	h.closed = true
	var errs []error
	for o := range h.orphans {
		errs = append(errs, unix.Close(o.fd))
	}
	h.orphans = nil
	h.mu.Unlock()
	h.nudge()
	h.watcher.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close host memory: %w", err)
	}
	return nil
}
