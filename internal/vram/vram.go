// Package vram is the memory of simulated GPUs: how much there is, and who has taken how much of it.
//
// A GPU's memory is an empty file whose size is the capacity. To take n bytes is to lock n bytes of the
// file, by open file description (F_OFD_SETLK in fcntl(2)). The kernel keeps the count: two takers never
// get the same byte, and what a process has taken is free when it is gone, however it ended, and not
// before. So waking an engine while the old one lives fails for want of memory, as on a GPU.
package vram

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"remuda/internal/bytesize"
)

// EnvDir is the environment variable with the directory of a node's simulated GPUs.
const EnvDir = "REMUDA_SIM_GPU_DIR"

// ErrOutOfMemory is wrapped by what Take returns where less is free than was asked for.
var ErrOutOfMemory = errors.New("out of GPU memory")

// span is a range of bytes: from start to before end.
type span struct{ start, end int64 }

// MakeDir makes a directory for GPUs that only its user can reach, or checks that it is one.
func MakeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s must be a directory of user %d with mode 0700: remove it, or name another one", dir, os.Getuid())
	}
	return nil
}

// Create makes a GPU of so many bytes in dir. One that is there keeps what is taken, and gets the capacity.
func Create(dir, uuid string, capacity int64) error {
	if capacity < 1 {
		return fmt.Errorf("memory of GPU %s: %d bytes, must be at least 1", uuid, capacity)
	}
	f, err := os.OpenFile(filepath.Join(dir, uuid), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("memory of GPU %s: %w", uuid, err)
	}
	if err := errors.Join(f.Truncate(capacity), f.Close()); err != nil {
		return fmt.Errorf("memory of GPU %s: %w", uuid, err)
	}
	return nil
}

// Taken is memory of one GPU that belongs to the process, until Free or its end.
type Taken struct {
	f     *os.File
	bytes int64
}

// Bytes is how much it is.
func (t *Taken) Bytes() int64 {
	if t == nil {
		return 0
	}
	return t.bytes
}

// Free gives the memory back. On nil and the second time it does nothing.
func (t *Taken) Free() error {
	if t == nil || t.f == nil {
		return nil
	}
	f := t.f
	t.f, t.bytes = nil, 0
	return f.Close() // with the last descriptor of the open file its locks go
}

// Take takes n bytes of a GPU. The error wraps ErrOutOfMemory where less is free, and fs.ErrNotExist
// where dir has no such GPU.
func Take(dir, uuid string, n int64) (*Taken, error) {
	f, err := os.OpenFile(filepath.Join(dir, uuid), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("memory of GPU %s: %w", uuid, err)
	}
	if err := take(f, n); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of GPU %s: %w", uuid, err), f.Close())
	}
	return &Taken{f, n}, nil
}

// take locks n bytes of f. Another taker may come between the look and the lock: then it looks again.
func take(f *os.File, n int64) error {
	for {
		used, capacity, err := taken(f)
		if err != nil {
			return err
		}
		free := gaps(used, capacity)
		if have := total(free); have < n {
			return fmt.Errorf("%w: %s asked for, %s of %s free", ErrOutOfMemory, bytesize.Text(n), bytesize.Text(have), bytesize.Text(capacity))
		}
		for left := n; left > 0; free = free[1:] {
			s := free[0]
			s.end = min(s.end, s.start+left)
			err = lock(f, unix.F_WRLCK, s)
			if err != nil {
				break
			}
			left -= s.end - s.start
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return err
		}
		if err := lock(f, unix.F_UNLCK, span{0, capacity}); err != nil {
			return err
		}
	}
}

// Used is how much of a GPU's memory is taken, and how much there is.
func Used(dir, uuid string) (used, capacity int64, err error) {
	f, err := os.OpenFile(filepath.Join(dir, uuid), os.O_RDWR, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("memory of GPU %s: %w", uuid, err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	spans, capacity, err := taken(f)
	if err != nil {
		return 0, 0, fmt.Errorf("memory of GPU %s: %w", uuid, err)
	}
	return total(spans), capacity, nil
}

// taken lists what others than f have locked, in order, and the capacity.
func taken(f *os.File) ([]span, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	used, err := within(f, span{0, info.Size()}, nil)
	return used, info.Size(), err
}

// within adds to used what is locked within s. The kernel names one lock for each question, not the first.
func within(f *os.File, s span, used []span) ([]span, error) {
	if s.start >= s.end {
		return used, nil
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: s.start, Len: s.end - s.start}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return nil, fmt.Errorf("read its locks: %w", err)
	}
	if l.Type == unix.F_UNLCK {
		return used, nil
	}
	found := span{max(l.Start, s.start), min(l.Start+l.Len, s.end)}
	used, err := within(f, span{s.start, found.start}, used)
	if err != nil {
		return nil, err
	}
	return within(f, span{found.end, s.end}, append(used, found))
}

func lock(f *os.File, kind int16, s span) error {
	l := unix.Flock_t{Type: kind, Start: s.start, Len: s.end - s.start}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
}

// gaps are what is left of the capacity.
func gaps(used []span, capacity int64) (free []span) {
	at := int64(0)
	for _, s := range used {
		if s.start > at {
			free = append(free, span{at, s.start})
		}
		at = s.end
	}
	if at < capacity {
		free = append(free, span{at, capacity})
	}
	return free
}

func total(spans []span) (n int64) {
	for _, s := range spans {
		n += s.end - s.start
	}
	return n
}
