// Package gmstest has what tests of the GPU memory service stand on: a GPU whose
// memory and faults the test commands, and a keeper in this process that can hang,
// die and come back. Both really hold what they are given.
package gmstest

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
)

// Page is the granularity of a Backend, in bytes.
const Page = 4096

// Backend is a GPU with memory of memfds. Memory is free once it was released: who
// holds descriptors does not count here.
type Backend struct {
	capacity uint64

	mu       sync.Mutex // guards what is below
	cond     *sync.Cond
	used     uint64
	live     int
	released int
	held     bool // releases wait
	// faults by operation: "allocate", "export", "restore", "release".
	faults map[string]error
	// allocations counts the calls of Allocate.
	allocations int
}

var _ backend.Backend = (*Backend)(nil)

// NewBackend is a GPU with so many bytes; 0: without end.
func NewBackend(capacity uint64) *Backend {
	b := &Backend{capacity: capacity, faults: map[string]error{}}
	b.cond = sync.NewCond(&b.mu)
	return b
}

// Fail makes every call of an operation fail from now on; nil ends that.
func (b *Backend) Fail(operation string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[operation] = err
}

// HoldReleases has releases wait until the function that it returns is called.
func (b *Backend) HoldReleases() (letGo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.held = false
		b.cond.Broadcast()
	}
}

// Take uses bytes up, as another program on the GPU does; less than 0 gives them
// back.
func (b *Backend) Take(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += uint64(bytes)
}

// Counts are how many allocations live, how many were released, and how often one
// was asked for.
func (b *Backend) Counts() (live, released, asked int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live, b.released, b.allocations
}

// Granularity is Page.
func (b *Backend) Granularity() uint64 { return Page }

// Capacity is in bytes.
func (b *Backend) Capacity() uint64 { return b.capacity }

// Used is in bytes.
func (b *Backend) Used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Allocate makes memory.
func (b *Backend) Allocate(size uint64) (backend.Memory, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allocations++
	if err := b.faults["allocate"]; err != nil {
		return nil, err
	}
	if size == 0 || size%Page != 0 {
		return nil, fmt.Errorf("allocate %d bytes: no multiple of %d", size, Page)
	}
	if b.capacity > 0 && b.used+size > b.capacity {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, backend.ErrOutOfMemory)
	}
	fd, err := unix.MemfdCreate("gmstest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return b.hold(fd, size), nil
}

// hold makes memory of a descriptor. mu is held.
func (b *Backend) hold(fd int, size uint64) *memory {
	b.used += size
	b.live++
	return &memory{b: b, fd: fd, size: size}
}

// Restore takes memory back. It owns fd.
func (b *Backend) Restore(fd int, size uint64) (backend.Memory, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var st unix.Stat_t
	err := errors.Join(b.faults["restore"], unix.Fstat(fd, &st))
	if err == nil && uint64(st.Size) != size {
		err = fmt.Errorf("the memory has %d bytes, not %d", st.Size, size)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return b.hold(fd, size), nil
}

// Close does nothing.
func (b *Backend) Close() error { return nil }

type memory struct {
	b    *Backend
	size uint64
	fd   int // -1 once it is released; guarded by b.mu
}

// Size is in bytes.
func (m *memory) Size() uint64 { return m.size }

// Export makes a descriptor.
func (m *memory) Export() (int, error) {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if err := m.b.faults["export"]; err != nil {
		return -1, err
	}
	if m.fd < 0 {
		return -1, backend.ErrReleased
	}
	return unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
}

// Release gives the memory up.
func (m *memory) Release() error {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	for m.b.held {
		m.b.cond.Wait()
	}
	if m.fd < 0 {
		return nil
	}
	err := errors.Join(m.b.faults["release"], unix.Close(m.fd))
	m.fd = -1
	m.b.used -= m.size
	m.b.live--
	m.b.released++
	return err
}
