package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// ErrClosed is what a closed Space answers.
var ErrClosed = errors.New("the GPU's address space has been closed")

// Space maps shared memory into the primary context of one GPU in this process.
// Its methods are safe for concurrent use; they run one after the other on one
// thread, to which the context is bound.
type Space struct {
	driver      *driver
	device      Device
	granularity uint64
	context     uintptr

	mu    sync.Mutex // guards what is below, also during calls of the driver
	ended bool
	calls chan func()
	done  chan struct{}
}

// NewSpace retains the GPU's primary context.
func NewSpace(cfg Config) (*Space, error) {
	d, err := load(cfg.Library)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	s := &Space{driver: d, calls: make(chan func()), done: make(chan struct{})}
	s.device, err = d.find(cfg.GPU)
	if err == nil {
		s.granularity, err = d.granularity(s.device.device)
	}
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	began := make(chan error, 1)
	go s.run(began)
	if err := <-began; err != nil {
		<-s.done
		return nil, fmt.Errorf("GPU %s: %w", cfg.GPU, err)
	}
	return s, nil
}

// run is the thread that the context is bound to.
func (s *Space) run(began chan<- error) {
	// The thread ends with the goroutine, as it is never unlocked: no other
	// goroutine gets a thread with our context.
	runtime.LockOSThread()
	defer close(s.done)
	err := s.driver.check("cuDevicePrimaryCtxRetain", s.driver.DevicePrimaryCtxRetain(&s.context, s.device.device))
	if err == nil {
		if err = s.driver.check("cuCtxSetCurrent", s.driver.CtxSetCurrent(s.context)); err != nil {
			err = errors.Join(err, s.release())
		}
	}
	began <- err
	if err != nil {
		return
	}
	for call := range s.calls {
		call()
	}
}

func (s *Space) release() error {
	return s.driver.check("cuDevicePrimaryCtxRelease_v2", s.driver.DevicePrimaryCtxRelease(s.device.device))
}

// do runs f on the thread.
func (s *Space) do(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.locked(f)
}

// locked is do with mu held.
func (s *Space) locked(f func() error) error {
	if s.ended {
		return ErrClosed
	}
	result := make(chan error, 1)
	s.calls <- func() { result <- f() }
	return <-result
}

// Granularity is what sizes and addresses are multiples of, in bytes.
func (s *Space) Granularity() uint64 { return s.granularity }

// Reserve takes a range of addresses. Nothing is mapped there yet.
func (s *Space) Reserve(size uint64) (addr uintptr, err error) {
	err = s.do(func() error {
		var a uint64
		defer func() { addr = uintptr(a) }()
		return s.driver.check("cuMemAddressReserve", s.driver.MemAddressReserve(&a, uintptr(size), 0, 0, 0))
	})
	if err != nil {
		return 0, fmt.Errorf("reserve %d bytes of addresses: %w", size, err)
	}
	return addr, nil
}

// Free gives a reserved range back.
func (s *Space) Free(addr uintptr, size uint64) error {
	err := s.do(func() error {
		return s.driver.check("cuMemAddressFree", s.driver.MemAddressFree(uint64(addr), uintptr(size)))
	})
	if err != nil {
		return fmt.Errorf("free reserved addresses: %w", err)
	}
	return nil
}

// Map maps the memory that fd was exported from, at a range of addresses that is
// reserved. fd stays the caller's and is not needed afterwards.
func (s *Space) Map(addr uintptr, size uint64, fd int, writable bool) error {
	if err := s.do(func() error { return s.mapped(uint64(addr), uintptr(size), fd, writable) }); err != nil {
		return fmt.Errorf("map %d bytes of GPU memory: %w", size, err)
	}
	return nil
}

// mapped runs on the thread.
func (s *Space) mapped(addr uint64, size uintptr, fd int, writable bool) error {
	d := s.driver
	var handle uint64
	if err := d.check("cuMemImportFromShareableHandle", d.MemImportFromShareable(&handle, uintptr(fd), handlePosixFD)); err != nil {
		return err
	}
	err := d.check("cuMemMap", d.MemMap(addr, size, 0, handle, 0))
	// The mapping keeps the memory from here on.
	released := d.check("cuMemRelease", d.MemRelease(handle))
	if err != nil {
		return errors.Join(err, released)
	}
	if err = errors.Join(released, s.access(addr, size, writable)); err != nil {
		return errors.Join(err, d.check("cuMemUnmap", d.MemUnmap(addr, size)))
	}
	return nil
}

// access runs on the thread.
func (s *Space) access(addr uint64, size uintptr, writable bool) error {
	desc := &accessDesc{location: location{kind: locationDevice, id: s.device.device}, flags: accessRead}
	if writable {
		desc.flags = accessReadWrite
	}
	return s.driver.check("cuMemSetAccess", s.driver.MemSetAccess(addr, size, desc, 1))
}

// Protect changes whether a mapping may be written.
func (s *Space) Protect(addr uintptr, size uint64, writable bool) error {
	if err := s.do(func() error { return s.access(uint64(addr), uintptr(size), writable) }); err != nil {
		return fmt.Errorf("change the access to GPU memory: %w", err)
	}
	return nil
}

// Unmap takes a mapping away. Its addresses stay reserved.
func (s *Space) Unmap(addr uintptr, size uint64) error {
	err := s.do(func() error { return s.driver.check("cuMemUnmap", s.driver.MemUnmap(uint64(addr), uintptr(size))) })
	if err != nil {
		return fmt.Errorf("unmap GPU memory: %w", err)
	}
	return nil
}

// Sync waits until the GPU has done all work of the context.
func (s *Space) Sync() error {
	return s.do(func() error { return s.driver.check("cuCtxSynchronize", s.driver.CtxSynchronize()) })
}

// Write copies from the host to mapped memory.
func (s *Space) Write(addr uintptr, from []byte) error {
	if len(from) == 0 {
		return nil
	}
	err := s.do(func() error {
		return s.driver.check("cuMemcpyHtoD_v2", s.driver.MemcpyHtoD(uint64(addr), unsafe.Pointer(&from[0]), uintptr(len(from))))
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes to the GPU: %w", len(from), err)
	}
	return nil
}

// Read copies from mapped memory to the host.
func (s *Space) Read(addr uintptr, to []byte) error {
	if len(to) == 0 {
		return nil
	}
	err := s.do(func() error {
		return s.driver.check("cuMemcpyDtoH_v2", s.driver.MemcpyDtoH(unsafe.Pointer(&to[0]), uint64(addr), uintptr(len(to))))
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes from the GPU: %w", len(to), err)
	}
	return nil
}

// Info is how much memory the GPU has free and in all, in bytes, whoever uses it.
func (s *Space) Info() (free, total uint64, err error) {
	err = s.do(func() error {
		var f, t uintptr
		defer func() { free, total = uint64(f), uint64(t) }()
		return s.driver.check("cuMemGetInfo_v2", s.driver.MemGetInfo(&f, &t))
	})
	return free, total, err
}

// Close gives the context back. What is still mapped stays until the process ends.
func (s *Space) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	err := s.locked(func() error {
		return errors.Join(s.driver.check("cuCtxSetCurrent", s.driver.CtxSetCurrent(0)), s.release())
	})
	s.ended = true
	close(s.calls)
	<-s.done
	return err
}
