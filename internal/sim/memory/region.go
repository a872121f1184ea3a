package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deviceName is how device memory shows in /proc/PID/maps and /proc/PID/fd, followed by
// ":" and the GPU's UUID where the GPU is known.
const deviceName = "remuda-sim-device"

// region is memory outside the Go heap. The zero region is empty.
type region struct {
	data []byte
	base unsafe.Pointer
	// mapped is how many bytes of addresses it takes.
	mapped uintptr
	files  []file // none for host memory
	held   Held   // of the GPUs
}

// file is a memfd in a region.
type file struct {
	*os.File
	at, n int64 // where it is in the region, and its size
}

// newDevice makes device memory in a place, on each of its GPUs the same share of it.
func newDevice(size int64, at Place) (region, error) {
	if size == 0 {
		return region{}, nil
	}
	names := []string{deviceName}
	if len(at.GPUs) > 0 {
		names = nil
		for _, g := range at.GPUs {
			names = append(names, deviceName+":"+g)
		}
	}
	const page = 4096
	share := ((size+int64(len(names))-1)/int64(len(names)) + page - 1) &^ (page - 1)
	held, err := at.Take(share)
	if err != nil {
		return region{}, err
	}
	r, err := reserve(size, share*int64(len(names)), unix.PROT_NONE)
	if err != nil {
		return region{}, errors.Join(fmt.Errorf("reserve %d bytes of addresses: %w", size, err), held.Free())
	}
	r.held = held
	for i, name := range names {
		at := int64(i) * share
		n := min(share, size-at)
		if n <= 0 {
			break
		}
		if err := r.mapFile(name, at, n); err != nil {
			return region{}, errors.Join(fmt.Errorf("map %d bytes of device memory: %w", n, err), r.free())
		}
	}
	hugePages(r.data)
	return r, nil
}

// mapFile puts a memfd of n bytes at an offset of the region.
func (r *region) mapFile(name string, at, n int64) error {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	r.files = append(r.files, file{os.NewFile(uintptr(fd), name), at, n})
	if err := unix.Ftruncate(fd, n); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	_, err = unix.MmapPtr(fd, 0, unsafe.Add(r.base, at), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

func newHost(size int64) (region, error) {
	if size == 0 {
		return region{}, nil
	}
	r, err := reserve(size, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return region{}, fmt.Errorf("map %d bytes of host memory: %w", size, err)
	}
	hugePages(r.data)
	return r, nil
}

// TakeHost takes and fills host memory, which only the end of the process gives back.
func TakeHost(n int64) error {
	r, err := newHost(n)
	for at := 0; at < len(r.data); at += unix.Getpagesize() {
		r.data[at] = 1
	}
	return err
}

// reserve takes addresses: room for size bytes and more.
func reserve(size, room int64, protection int) (region, error) {
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(room), protection, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return region{}, err
	}
	return region{data: unsafe.Slice((*byte)(base), size), base: base, mapped: uintptr(room)}, nil
}

// hugePages asks for fewer page faults. A kernel without huge pages refuses,
// which is fine.
func hugePages(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }

// WriteAt and ReadAt copy to and from device memory through its files: no page is filled with zeros first, and this
// process takes no page faults.
func (r *region) WriteAt(from []byte, at int64) (int, error) {
	return r.copy(from, at, (*os.File).WriteAt)
}

func (r *region) ReadAt(to []byte, at int64) (int, error) { return r.copy(to, at, (*os.File).ReadAt) }

func (r *region) copy(b []byte, at int64, do func(f *os.File, b []byte, at int64) (int, error)) (done int, err error) {
	for _, f := range r.files {
		if done == len(b) || at >= f.at+f.n {
			continue
		}
		n, err := do(f.File, b[done:min(len(b), done+int(f.at+f.n-at))], at-f.at)
		done, at = done+n, at+int64(n)
		if err != nil {
			return done, fmt.Errorf("copy device memory: %w", err)
		}
	}
	if done < len(b) {
		return done, io.EOF
	}
	return done, nil
}

// free gives the memory back to the kernel.
func (r *region) free() error {
	if r.data == nil {
		return nil
	}
	errs := []error{unix.MunmapPtr(r.base, r.mapped)}
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	errs = append(errs, r.held.Free())
	*r = region{}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("free memory: %w", err)
	}
	return nil
}

func (r *region) size() int64 { return int64(len(r.data)) }
