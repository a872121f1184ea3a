package host

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// create makes a memfd and returns an open file of it that leases can be taken
// on. (The one that memfd_create returns is not counted as a writer, so the
// kernel grants no lease on it.)
func create(name string, size uint64) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return -1, fmt.Errorf("ftruncate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return -1, fmt.Errorf("seal the size: %w", err)
	}
	return reopen(fd)
}

// restore checks a descriptor of a memfd that create made, and replaces it by an
// open file of our own. It closes fd in any case.
func restore(fd int, size uint64) (own int, err error) {
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := checkMemory(fd, size); err != nil {
		return -1, err
	}
	return reopen(fd)
}

// reopen makes a new open file of the same memfd.
func reopen(fd int) (int, error) {
	for {
		own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return -1, fmt.Errorf("reopen the memfd: %w", err)
		}
		return own, nil
	}
}

// alone tells whether fd is the only open file of its memfd: no other
// descriptor and no mapping is left in any process. An error means that the
// kernel cannot tell. The lease that may be left on fd ends when it is closed,
// and disturbs nobody, as there is nobody.
func alone(fd int) (bool, error) {
	for {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("lease: %w", err)
		}
		return true, nil
	}
}

// checkKernel checks that alone can tell what it says.
func checkKernel() error {
	// A child between its fork and its exec has all descriptors of this process.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := create(memoryName, uint64(unix.Getpagesize()))
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	other, err := reopen(fd)
	if err != nil {
		return err
	}
	shared, err := alone(fd)
	if err = errors.Join(err, unix.Close(other)); err != nil {
		return fmt.Errorf("this kernel cannot tell when memory is free: %w", err)
	}
	left, err := alone(fd)
	if err != nil || shared || !left {
		return errors.Join(errors.New("this kernel cannot tell when memory is free: file leases do not work on memfds"), err)
	}
	return nil
}
