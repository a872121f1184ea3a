package client

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Mapping is an allocation at an address of this process, which never changes.
// Between Unmap and Remap there is no memory there.
type Mapping struct {
	c *Client
	// allocation is as the server last told; the client's mu guards it.
	allocation Allocation
	addr       uintptr
	// size is what was asked for and aligned what is mapped, in bytes.
	size, aligned uint64
	asleep        atomic.Bool
}

// Address is where the allocation begins, in this process or on the GPU.
func (m *Mapping) Address() uintptr { return m.addr }

// Size is the allocation's in bytes, as it was asked for.
func (m *Mapping) Size() uint64 { return m.size }

// Allocation is what the server knows of it. Its ID is another one after a wake
// on a layout that was loaded anew.
func (m *Mapping) Allocation() Allocation {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.allocation
}

// Bytes are the allocation's, where this process can read them itself (host
// memory), else nil; nil as well while the memory sleeps. They must not be used
// after Unmap or Close, nor written but by a writer before its Commit: access to
// what is not there ends the process.
func (m *Mapping) Bytes() []byte {
	d, ok := m.c.cfg.Space.(direct)
	if !ok || m.asleep.Load() {
		return nil
	}
	b := d.Bytes(m.addr, m.aligned)
	if b == nil {
		return nil
	}
	return b[:m.size:m.size]
}

// within checks a part of the allocation.
func (m *Mapping) within(offset uint64, n int) error {
	switch {
	case offset > m.size || uint64(n) > m.size-offset:
		return fmt.Errorf("%d bytes at %d are over the end of %d", n, offset, m.size)
	case m.asleep.Load():
		return fmt.Errorf("%w: the memory sleeps", ErrState)
	}
	return nil
}

// Write copies to the allocation. from must not be changed after a call that
// ended with its context.
func (m *Mapping) Write(ctx context.Context, offset uint64, from []byte) error {
	return m.copy(ctx, "write", offset, from, m.c.cfg.Space.Write)
}

// Read copies from the allocation. to must not be used after a call that ended
// with its context.
func (m *Mapping) Read(ctx context.Context, offset uint64, to []byte) error {
	return m.copy(ctx, "read", offset, to, m.c.cfg.Space.Read)
}

func (m *Mapping) copy(ctx context.Context, what string, offset uint64, b []byte, do func(uintptr, []byte) error) error {
	ctx, done, err := m.c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%s GPU memory: %w", what, err)
	}
	defer done()
	err = m.within(offset, len(b))
	if err == nil {
		err = m.c.in(ctx, func() error { return do(m.addr+uintptr(offset), b) })
	}
	if err != nil {
		return fmt.Errorf("%s GPU memory: %w", what, err)
	}
	return nil
}
