// Package host makes GPU memory of memfds, so that sharing, leaks and late
// release are as real on any Linux machine as with a GPU.
//
// # What is like a GPU
//
// A memfd counts references as CUDA's memory does: descriptors, descriptors
// that sit unread in a socket, and mappings, in any process. Capacity,
// granularity, running out of memory and slow release are emulated.
//
// # When memory is free again
//
// Bytes are used until nobody can reach them: neither this backend nor any
// other process. The backend learns it from the kernel. Every export is an open
// file of its own on the same memfd, and a write lease on the backend's own
// open file (fcntl F_SETLEASE) is granted only where no other open file is left;
// a mapping and a queued descriptor hold theirs open. The backend asks for the lease
// of released memory whenever it allocates, and from time to time: after 5 ms at first,
// four times a second at last.
//
// Memory that clients of a crashed server still hold, and that the keeper does
// not, is not known to the next server's backend, as no descriptor of it is
// left. With a GPU the driver knows it.
//
// # Pages
//
// Pages come when they are first touched: a capacity may be larger than the
// machine's memory as long as what is written fits. The size is sealed, so that
// no client can shrink a memfd under the others.
package host

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/internal/vram"
)

// DefaultGranularity is that of current GPUs, in bytes.
const DefaultGranularity = 2 << 20

// memoryName is how the memory shows in /proc/PID/maps and /proc/PID/fd, followed by ":"
// and the GPU's UUID where Config says it.
const memoryName = "remuda-gms"

// seals fix a memfd's size, and that it stays fixed.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Config is how the emulated GPU behaves.
type Config struct {
	// GPU is the UUID of the GPU that is emulated; empty where nobody asks.
	GPU string
	// Dir is where the memory of the GPU is counted together with what engines take of it (see package
	// vram); empty where nothing counts it. The memory that clients of a crashed server hold is not counted
	// until the next one restores it.
	Dir string
	// Capacity in bytes; a multiple of Granularity. 0: no limit.
	Capacity uint64
	// Granularity in bytes; a multiple of the page size. 0: DefaultGranularity.
	Granularity uint64
	// SlowRelease is how long each Release takes. The memory is used until then.
	SlowRelease time.Duration
}

func (c *Config) validate() error {
	var errs []error
	if c.Granularity == 0 {
		c.Granularity = DefaultGranularity
	}
	if page := uint64(unix.Getpagesize()); c.Granularity%page != 0 {
		errs = append(errs, fmt.Errorf("Granularity: %d is no multiple of the page size %d", c.Granularity, page))
	} else if c.Capacity%c.Granularity != 0 {
		errs = append(errs, fmt.Errorf("Capacity: %d is no multiple of the granularity %d", c.Capacity, c.Granularity))
	}
	if c.SlowRelease < 0 {
		errs = append(errs, fmt.Errorf("SlowRelease: %s is negative", c.SlowRelease))
	}
	return errors.Join(errs...)
}

// Backend is one emulated GPU.
type Backend struct {
	cfg Config
	// closed ends slow releases.
	closed chan struct{}
	// releasing counts the Release calls in progress.
	releasing sync.WaitGroup
	orphans   *orphanage

	mu     sync.Mutex // guards what is below
	used   uint64
	live   map[*memory]struct{}
	ending bool
	// counted is what is taken in Dir, by size.
	counted map[uint64][]*vram.Taken
}

var _ backend.Backend = (*Backend)(nil)

// New checks the config; the error names every bad field. It also checks that
// this kernel can tell when memory is free, and fails where it cannot.
func New(cfg Config) (*Backend, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("host memory: %w", err)
	}
	if err := checkKernel(); err != nil {
		return nil, fmt.Errorf("host memory: %w", err)
	}
	b := &Backend{cfg: cfg, closed: make(chan struct{}), live: map[*memory]struct{}{}, counted: map[uint64][]*vram.Taken{}}
	b.orphans = newOrphanage(b.freed)
	return b, nil
}

// Granularity is what sizes are multiples of, in bytes.
func (b *Backend) Granularity() uint64 { return b.cfg.Granularity }

// Capacity is in bytes; 0 without a limit.
func (b *Backend) Capacity() uint64 { return b.cfg.Capacity }

// Used is how many bytes some process can still reach.
func (b *Backend) Used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Allocate makes a memfd.
func (b *Backend) Allocate(size uint64) (backend.Memory, error) {
	if size == 0 || size%b.cfg.Granularity != 0 {
		return nil, fmt.Errorf("allocate host memory: %d bytes are no multiple of the granularity %d", size, b.cfg.Granularity)
	}
	err := b.take(size)
	if errors.Is(err, backend.ErrOutOfMemory) {
		b.orphans.look() // the news of a death may be on its way
		err = b.take(size)
	}
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", size, err)
	}
	fd, err := create(b.name(), size)
	if err != nil {
		b.freed(size)
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", size, err)
	}
	return b.adopt(fd, size)
}

func (b *Backend) name() string {
	if b.cfg.GPU == "" {
		return memoryName
	}
	return memoryName + ":" + b.cfg.GPU
}

// take counts size as used, if there is room.
func (b *Backend) take(size uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending {
		return backend.ErrReleased
	}
	if c := b.cfg.Capacity; c != 0 && (b.used > c || size > c-b.used) {
		return fmt.Errorf("%w: %d of %d bytes are used", backend.ErrOutOfMemory, b.used, c)
	}
	if err := b.count(size); err != nil {
		return err
	}
	b.used += size
	return nil
}

// count takes size in Dir; b.mu is held.
func (b *Backend) count(size uint64) error {
	if b.cfg.Dir == "" {
		return nil
	}
	t, err := vram.Take(b.cfg.Dir, b.cfg.GPU, int64(size))
	if errors.Is(err, vram.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %w", backend.ErrOutOfMemory, err)
	}
	if err == nil {
		b.counted[size] = append(b.counted[size], t)
	}
	return err
}

// freed takes size off what is used.
func (b *Backend) freed(size uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(size)
}

// forget takes size off what is used; b.mu is held.
func (b *Backend) forget(size uint64) {
	b.used -= size
	if n := len(b.counted[size]); n > 0 {
		_ = b.counted[size][n-1].Free() // a descriptor to which nothing was written
		b.counted[size] = b.counted[size][:n-1]
	}
}

// adopt makes Memory of the open file fd, whose size is counted as used already.
func (b *Backend) adopt(fd int, size uint64) (backend.Memory, error) {
	m := &memory{b: b, size: size, fd: fd}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending {
		b.forget(size)
		return nil, errors.Join(backend.ErrReleased, unix.Close(fd))
	}
	b.live[m] = struct{}{}
	return m, nil
}

// Restore takes back a memfd that an earlier Backend made. It is counted as
// used even where that is more than the capacity: the memory is there.
func (b *Backend) Restore(fd int, size uint64) (backend.Memory, error) {
	own, err := restore(fd, size)
	if err != nil {
		return nil, fmt.Errorf("restore %d bytes of host memory: %w", size, err)
	}
	b.mu.Lock()
	b.used += size
	_ = b.count(size) // fails if an engine took that memory meanwhile; then only used counts it
	b.mu.Unlock()
	return b.adopt(own, size)
}

// Close ends slow releases and gives up all memory.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.ending {
		b.mu.Unlock()
		return nil
	}
	b.ending = true
	close(b.closed)
	live := b.live
	b.live = nil
	b.mu.Unlock()
	b.releasing.Wait()
	var errs []error
	for m := range live {
		if fd := m.takeFD(); fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	errs = append(errs, b.orphans.close())
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, all := range b.counted {
		for _, t := range all {
			errs = append(errs, t.Free())
		}
	}
	b.counted = nil
	return errors.Join(errs...)
}

// memory is one memfd.
type memory struct {
	b    *Backend
	size uint64

	mu sync.Mutex // guards fd
	fd int        // the backend's own open file; -1 once it is given up
}

// Size is in bytes.
func (m *memory) Size() uint64 { return m.size }

// Export opens the memfd once more.
func (m *memory) Export() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return -1, fmt.Errorf("export host memory: %w", backend.ErrReleased)
	}
	fd, err := reopen(m.fd)
	if err != nil {
		return -1, fmt.Errorf("export host memory: %w", err)
	}
	return fd, nil
}

// takeFD gives the open file to the caller, once.
func (m *memory) takeFD() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	fd := m.fd
	m.fd = -1
	return fd
}

// Release gives up the backend's share after the emulated delay.
func (m *memory) Release() error {
	m.b.mu.Lock()
	if _, ours := m.b.live[m]; !ours {
		m.b.mu.Unlock()
		return nil
	}
	delete(m.b.live, m)
	m.b.releasing.Add(1)
	m.b.mu.Unlock()
	defer m.b.releasing.Done()
	fd := m.takeFD()
	if d := m.b.cfg.SlowRelease; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-m.b.closed:
		}
	}
	if err := m.b.orphans.add(fd, m.size); err != nil {
		return fmt.Errorf("release host memory: %w", err)
	}
	return nil
}
