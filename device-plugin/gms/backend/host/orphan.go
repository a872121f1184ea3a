package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// retryFirst is when to look again after a close that was not the last, or
	// whose file the kernel has not let go of yet: it tells a moment before.
	retryFirst = time.Millisecond
	// blindFirst and blindMax are the same without inotify.
	blindFirst = 5 * time.Millisecond
	blindMax   = 250 * time.Millisecond
)

// retryMax is how often to look against lost events. Tests of the events make it longer.
var retryMax = 2 * time.Second

// orphanage watches memory that the backend has released and others still hold.
type orphanage struct {
	// freed is told the size of what nobody holds any more, with mu held, so that
	// whoever takes mu after a death sees its bytes free.
	freed func(size uint64)

	mu      sync.Mutex // guards what is below
	inotify *os.File   // nil before the first orphan, and without inotify
	started bool
	closed  bool
	orphans map[*orphan]struct{}
	watched map[int32]*orphan
	// wake shortens the wait of a watcher without inotify.
	wake    chan struct{}
	watcher sync.WaitGroup
}

// orphan is released memory.
type orphan struct {
	fd    int
	size  uint64
	watch int32 // inotify's number of it; -1 without
	// next is when to look again, and delay how long after that.
	next  time.Time
	delay time.Duration
}

func newOrphanage(freed func(size uint64)) *orphanage {
	return &orphanage{freed: freed, orphans: map[*orphan]struct{}{}, watched: map[int32]*orphan{}, wake: make(chan struct{}, 1)}
}

// add takes over an open file of released memory. The error is that of close.
func (h *orphanage) add(fd int, size uint64) error {
	if ok, err := alone(fd); ok || err != nil {
		h.freed(size)
		return errors.Join(err, unix.Close(fd))
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return unix.Close(fd)
	}
	if !h.started {
		h.start()
	}
	o := &orphan{fd: fd, size: size, watch: -1, delay: blindFirst}
	if wd, err := h.addWatch(fd); err == nil {
		// A look follows at once, for a close before the watch.
		o.watch, o.delay = wd, retryMax
		h.watched[wd] = o
	}
	o.next = time.Now()
	h.orphans[o] = struct{}{}
	h.check(o)
	h.mu.Unlock()
	h.nudge()
	return nil
}

// start makes the inotify instance and the watcher. mu is held.
func (h *orphanage) start() {
	h.started = true
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		h.inotify = os.NewFile(uintptr(fd), "inotify")
	}
	h.watcher.Go(h.run)
}

// addWatch has inotify tell when an open file of fd's memfd closes. mu is held.
func (h *orphanage) addWatch(fd int) (int32, error) {
	if h.inotify == nil {
		return -1, errors.ErrUnsupported
	}
	raw, err := h.inotify.SyscallConn()
	if err != nil {
		return -1, err
	}
	var wd int
	var werr error
	err = raw.Control(func(in uintptr) {
		wd, werr = unix.InotifyAddWatch(int(in), "/proc/self/fd/"+strconv.Itoa(fd), unix.IN_CLOSE)
	})
	return int32(wd), errors.Join(err, werr)
}

// check asks the kernel about o, and forgets it when it is free. mu is held.
func (h *orphanage) check(o *orphan) {
	ok, err := alone(o.fd)
	if !ok && err == nil {
		limit := retryMax
		if o.watch < 0 {
			limit = blindMax
		}
		o.next = time.Now().Add(o.delay)
		o.delay = min(2*o.delay, limit)
		return
	}
	h.forget(o)
	h.freed(o.size)
}

// forget closes o. mu is held.
func (h *orphanage) forget(o *orphan) {
	delete(h.orphans, o)
	if o.watch >= 0 {
		delete(h.watched, o.watch)
		if raw, err := h.inotify.SyscallConn(); err == nil {
			_ = raw.Control(func(in uintptr) { _, _ = unix.InotifyRmWatch(int(in), uint32(o.watch)) })
		}
	}
	_ = unix.Close(o.fd)
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
	h.mu.Lock()
	in, closed := h.inotify, h.closed
	h.mu.Unlock()
	if in != nil && !closed {
		_ = in.SetReadDeadline(time.Now())
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// due looks at the orphans whose time has come and says when the next is due;
// zero: when something happens. more is false at the end.
func (h *orphanage) due() (next time.Time, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return next, false
	}
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
	return next, true
}

// run is the watcher.
func (h *orphanage) run() {
	h.mu.Lock()
	in := h.inotify
	h.mu.Unlock()
	if in == nil {
		h.runBlind()
		return
	}
	buf := make([]byte, 64<<10)
	for {
		// A nudge that is overwritten below costs nothing: what it told about is
		// looked at when the older deadline is over, and inotify tells the rest.
		_ = in.SetReadDeadline(time.Time{})
		next, more := h.due()
		if !more {
			return
		}
		if !next.IsZero() {
			_ = in.SetReadDeadline(next)
		}
		n, err := in.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			h.runBlind() // it ends at once when the orphanage is closed
			return
		}
		h.events(buf[:n])
	}
}

// runBlind watches without inotify.
func (h *orphanage) runBlind() {
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

// events marks the orphans that inotify tells about as due.
func (h *orphanage) events(buf []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		name := binary.NativeEndian.Uint32(buf[12:])
		buf = buf[unix.SizeofInotifyEvent+int(name):]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for o := range h.orphans {
				o.next, o.delay = time.Time{}, retryFirst
			}
		} else if o := h.watched[wd]; o != nil && mask&unix.IN_CLOSE != 0 {
			o.next, o.delay = time.Time{}, retryFirst
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
	h.orphans, h.watched = nil, nil
	in := h.inotify
	h.mu.Unlock()
	if in != nil {
		errs = append(errs, in.Close()) // a read in progress ends
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	h.watcher.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close host memory: %w", err)
	}
	return nil
}
