package memory

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// deviceName is how device memory shows in /proc/PID/maps.
const deviceName = "remuda-sim-device"

// region is memory outside the Go heap. The zero region is empty.
type region struct {
	data []byte
	fd   int // of the memfd, or -1
}

func newDevice(size int64) (region, error) {
	if size == 0 {
		return region{fd: -1}, nil
	}
	fd, err := unix.MemfdCreate(deviceName, unix.MFD_CLOEXEC)
	if err != nil {
		return region{}, fmt.Errorf("create device memory: memfd_create: %w", err)
	}
	err = unix.Ftruncate(fd, size)
	var data []byte
	if err == nil {
		data, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return region{}, errors.Join(fmt.Errorf("map %d bytes of device memory: %w", size, err), unix.Close(fd))
	}
	hugePages(data)
	return region{data: data, fd: fd}, nil
}

func newHost(size int64) (region, error) {
	if size == 0 {
		return region{fd: -1}, nil
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return region{}, fmt.Errorf("map %d bytes of host memory: %w", size, err)
	}
	hugePages(data)
	return region{data: data, fd: -1}, nil
}

// hugePages asks for fewer page faults. A kernel without huge pages refuses,
// which is fine.
func hugePages(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }

// free gives the memory back to the kernel.
func (r *region) free() error {
	if r.data == nil {
		return nil
	}
	err := unix.Munmap(r.data)
	if r.fd >= 0 {
		err = errors.Join(err, unix.Close(r.fd))
	}
	*r = region{fd: -1}
	if err != nil {
		return fmt.Errorf("free memory: %w", err)
	}
	return nil
}

func (r *region) size() int64 { return int64(len(r.data)) }
