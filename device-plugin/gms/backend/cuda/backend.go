package cuda

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
)

// Config names a GPU.
type Config struct {
	// Library is the path of the driver's library; empty for DefaultLibrary.
	Library string
	// GPU is its UUID.
	GPU string
}

// Backend makes the memory of one GPU.
type Backend struct {
	driver      *driver
	device      Device
	granularity uint64

	mu    sync.Mutex // guards what is below
	used  uint64
	live  map[*memory]struct{}
	ended bool
}

var _ backend.Backend = (*Backend)(nil)

// New loads the driver and finds the GPU. The error wraps ErrNoDriver or
// ErrNoGPU where they are not there.
func New(cfg Config) (*Backend, error) {
	d, err := load(cfg.Library)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	device, err := d.find(cfg.GPU)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	granularity, err := d.granularity(device.device)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	return &Backend{driver: d, device: device, granularity: granularity, live: map[*memory]struct{}{}}, nil
}

// Granularity is the driver's minimum, in bytes.
func (b *Backend) Granularity() uint64 { return b.granularity }

// Capacity is all memory of the GPU, in bytes. The driver and other processes
// take some of it.
func (b *Backend) Capacity() uint64 { return b.device.Memory }

// Used is what was made and restored here and not released. Only the driver
// knows what others use, and who still holds what was released.
func (b *Backend) Used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Allocate makes memory that can be shared.
func (b *Backend) Allocate(size uint64) (backend.Memory, error) {
	if size == 0 || size%b.granularity != 0 {
		return nil, fmt.Errorf("allocate GPU memory: %d bytes are no multiple of the granularity %d", size, b.granularity)
	}
	m := &memory{b: b, size: size, fd: -1}
	if err := b.driver.check("cuMemCreate", b.driver.MemCreate(&m.handle, uintptr(size), properties(b.device.device), 0)); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of GPU memory: %w", size, err) // an *Error knows when it is backend.ErrOutOfMemory
	}
	return b.adopt(m)
}

// Restore keeps the descriptor. It is the driver's own, so nothing can be
// checked about it before a client imports it.
func (b *Backend) Restore(fd int, size uint64) (backend.Memory, error) {
	if size == 0 || size%b.granularity != 0 {
		return nil, errors.Join(fmt.Errorf("restore GPU memory: %d bytes are no multiple of the granularity %d", size, b.granularity), unix.Close(fd))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("restore GPU memory: the descriptor: %w", err), unix.Close(fd))
	}
	return b.adopt(&memory{b: b, size: size, fd: fd})
}

// adopt counts m.
func (b *Backend) adopt(m *memory) (backend.Memory, error) {
	b.mu.Lock()
	if !b.ended {
		b.live[m] = struct{}{}
		b.used += m.size
		b.mu.Unlock()
		return m, nil
	}
	b.mu.Unlock()
	return nil, errors.Join(backend.ErrReleased, m.drop())
}

// Close releases all memory. What others hold lives on.
func (b *Backend) Close() error {
	b.mu.Lock()
	live := b.live
	b.live, b.used, b.ended = nil, 0, true
	b.mu.Unlock()
	var errs []error
	for m := range live {
		errs = append(errs, m.drop())
	}
	return errors.Join(errs...)
}

// memory is one allocation: a handle that was made here, or a descriptor that
// was restored.
type memory struct {
	b    *Backend
	size uint64

	mu      sync.Mutex // guards what is below, also during calls of the driver
	handle  uint64
	fd      int // -1: there is a handle
	dropped bool
}

// Size is in bytes.
func (m *memory) Size() uint64 { return m.size }

// Export makes a descriptor that another process can import.
func (m *memory) Export() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dropped {
		return -1, fmt.Errorf("export GPU memory: %w", backend.ErrReleased)
	}
	if m.fd >= 0 {
		fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("export GPU memory: duplicate the kept descriptor: %w", err)
		}
		return fd, nil
	}
	// No process may be started before the descriptor is marked.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd := int32(-1)
	err := m.b.driver.check("cuMemExportToShareableHandle", m.b.driver.MemExportToShareableHandle(&fd, m.handle, handlePosixFD, 0))
	if err != nil {
		return -1, fmt.Errorf("export GPU memory: %w", err)
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

// Release gives up the handle or the descriptor.
func (m *memory) Release() error {
	m.b.mu.Lock()
	_, ours := m.b.live[m]
	delete(m.b.live, m)
	m.b.mu.Unlock()
	if !ours {
		return nil
	}
	err := m.drop()
	m.b.mu.Lock()
	if !m.b.ended {
		m.b.used -= m.size
	}
	m.b.mu.Unlock()
	return err
}

// drop is Release without the bookkeeping.
func (m *memory) drop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped = true
	if m.fd >= 0 {
		if err := unix.Close(m.fd); err != nil {
			return fmt.Errorf("release GPU memory: %w", err)
		}
		return nil
	}
	if err := m.b.driver.check("cuMemRelease", m.b.driver.MemRelease(m.handle)); err != nil {
		return fmt.Errorf("release GPU memory: %w", err)
	}
	return nil
}
