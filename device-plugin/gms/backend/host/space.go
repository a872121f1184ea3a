package host

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Space maps a Backend's memory into this process, as package cuda's Space does
// on a GPU. Its methods are safe for concurrent use. The zero value is not
// ready: use NewSpace.
type Space struct {
	// mu guards ranges, and is held for reading during a copy: nothing is unmapped
	// under it.
	mu     sync.RWMutex
	ranges map[uintptr]*reserved
}

// reserved is a range of addresses. Where nothing is mapped, access to it
// faults.
type reserved struct {
	base     unsafe.Pointer
	size     uint64
	file     *os.File // what is mapped; nil for nothing
	writable bool
}

// NewSpace makes an empty space. It needs no Close: the kernel ends all mappings
// with the process.
func NewSpace() *Space { return &Space{ranges: map[uintptr]*reserved{}} }

// Reserve takes a range of addresses. Nothing is mapped there yet.
func (s *Space) Reserve(size uint64) (uintptr, error) {
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE, reserveFlags)
	if err != nil {
		return 0, fmt.Errorf("reserve %d bytes of addresses: %w", size, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranges[uintptr(base)] = &reserved{base: base, size: size}
	return uintptr(base), nil
}

// reserveFlags make a mapping that takes addresses and no memory.
const reserveFlags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// at finds a range that is mapped, or not, as wanted. mu is held.
func (s *Space) at(addr uintptr, size uint64, mapped bool) (*reserved, error) {
	r := s.ranges[addr]
	switch {
	case r == nil || r.size != size:
		return nil, fmt.Errorf("%d bytes at %#x are not what was reserved", size, addr)
	case r.file != nil && !mapped:
		return nil, fmt.Errorf("something is mapped at %#x", addr)
	case r.file == nil && mapped:
		return nil, fmt.Errorf("nothing is mapped at %#x", addr)
	}
	return r, nil
}

// Free gives a reserved range back.
func (s *Space) Free(addr uintptr, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(addr, size, false)
	if err == nil {
		err = unix.MunmapPtr(r.base, uintptr(size))
	}
	if err != nil {
		return fmt.Errorf("free reserved addresses: %w", err)
	}
	delete(s.ranges, addr)
	return nil
}

// Map maps the memory that fd was exported from, at a range of addresses that is
// reserved. fd stays the caller's and is not needed afterwards. Memory of
// another size, or whose size is not sealed, is refused: access to it could kill
// this process.
func (s *Space) Map(addr uintptr, size uint64, fd int, writable bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(addr, size, false)
	if err == nil {
		err = checkMemory(fd, size)
	}
	own := -1
	if err == nil {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		_, err = unix.MmapPtr(own, 0, r.base, uintptr(size), protection(writable), unix.MAP_SHARED|unix.MAP_FIXED)
		if err != nil {
			err = errors.Join(err, unix.Close(own))
		}
	}
	if err != nil {
		return fmt.Errorf("map %d bytes of host memory: %w", size, err)
	}
	// Fewer page faults, where the machine has huge pages for shared memory on
	// advice (transparent_hugepage/shmem_enabled). Others refuse, which is fine.
	_ = unix.Madvise(unsafe.Slice((*byte)(r.base), size), unix.MADV_HUGEPAGE)
	r.file, r.writable = os.NewFile(uintptr(own), "host memory"), writable
	return nil
}

func protection(writable bool) int {
	if writable {
		return unix.PROT_READ | unix.PROT_WRITE
	}
	return unix.PROT_READ
}

// Protect changes whether a mapping may be written.
func (s *Space) Protect(addr uintptr, size uint64, writable bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(addr, size, true)
	if err == nil {
		err = unix.Mprotect(unsafe.Slice((*byte)(r.base), size), protection(writable))
	}
	if err != nil {
		return fmt.Errorf("change the access to host memory: %w", err)
	}
	r.writable = writable
	return nil
}

// Unmap takes a mapping away. Its addresses stay reserved.
func (s *Space) Unmap(addr uintptr, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(addr, size, true)
	if err == nil {
		_, err = unix.MmapPtr(-1, 0, r.base, uintptr(size), unix.PROT_NONE, reserveFlags|unix.MAP_FIXED)
	}
	if err == nil {
		err = r.file.Close()
		r.file, r.writable = nil, false
	}
	if err != nil {
		return fmt.Errorf("unmap host memory: %w", err)
	}
	return nil
}

// Sync does nothing: no work is under way on host memory but the caller's own.
func (s *Space) Sync() error { return nil }

// Bytes are the bytes of a mapping, nil where nothing is mapped. They must not
// be used after Unmap, nor written where the mapping may not be.
func (s *Space) Bytes(addr uintptr, size uint64) []byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.at(addr, size, true)
	if err != nil {
		return nil
	}
	return unsafe.Slice((*byte)(r.base), size)
}

// Write copies to mapped memory. Both copy through the file: no page is filled with zeros first, and this process
// takes no page faults.
func (s *Space) Write(addr uintptr, from []byte) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, offset, err := s.part(addr, len(from), true)
	if err == nil {
		_, err = r.file.WriteAt(from, offset)
	}
	if err != nil {
		return fmt.Errorf("copy %d bytes to host memory: %w", len(from), err)
	}
	return nil
}

// Read copies from mapped memory.
func (s *Space) Read(addr uintptr, to []byte) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, offset, err := s.part(addr, len(to), false)
	if err == nil {
		_, err = r.file.ReadAt(to, offset)
	}
	if err != nil {
		return fmt.Errorf("copy %d bytes from host memory: %w", len(to), err)
	}
	return nil
}

// part finds n bytes within one mapping, and where they are in it. mu is held.
func (s *Space) part(addr uintptr, n int, writable bool) (*reserved, int64, error) {
	for base, r := range s.ranges {
		if addr < base || addr-base > uintptr(r.size) || uint64(n) > r.size-uint64(addr-base) {
			continue
		}
		switch {
		case r.file == nil:
			return nil, 0, fmt.Errorf("nothing is mapped at %#x", addr)
		case writable && !r.writable:
			return nil, 0, fmt.Errorf("the mapping at %#x may not be written", addr)
		}
		return r, int64(addr - base), nil
	}
	return nil, 0, fmt.Errorf("%d bytes at %#x are in no mapping", n, addr)
}

// checkMemory sees to it that fd is memory of a Backend.
func checkMemory(fd int, size uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if uint64(st.Size) != size || size == 0 {
		return fmt.Errorf("the descriptor has %d bytes", st.Size)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return errors.Join(errors.New("the descriptor is no memory of this service: its size is not sealed"), err)
	}
	return nil
}
