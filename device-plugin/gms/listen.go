package gms

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse: another server has the socket.
var ErrSocketInUse = errors.New("another server serves the socket")

// probeLimit is how long a server that is there may take to be seen: connecting
// needs nothing of it.
const probeLimit = 2 * time.Second

// claimLimit is how long a socket that is in use is tried: a server that was
// killed a moment ago may not be gone yet.
const claimLimit = 300 * time.Millisecond

// claim makes sure that no other server has a socket, and that none of ours takes
// it until the claim's file is closed.
func claim(ctx context.Context, path string) (*os.File, error) {
	for deadline := time.Now().Add(claimLimit); ; {
		file, err := tryClaim(path)
		if !errors.Is(err, ErrSocketInUse) || time.Now().After(deadline) {
			return file, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(claimLimit / 10):
		}
	}
}

func tryClaim(path string) (*os.File, error) {
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	fail := func(err error) (*os.File, error) {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), file.Close())
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrSocketInUse
		}
		return fail(err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return file, nil
	case err != nil:
		return fail(err)
	case info.Mode()&os.ModeSocket == 0:
		return fail(errors.New("there is a file that is no socket: choose another directory"))
	}
	// A server that takes no such lock may have it.
	if err := probe(path); err != nil {
		return fail(err)
	}
	return file, nil
}

// probe is ErrSocketInUse unless a socket is dead.
func probe(path string) error {
	c, err := net.DialTimeout("unix", path, probeLimit)
	switch {
	case err == nil:
		_ = c.Close()
		return ErrSocketInUse
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil
	default: // as when its queue is full
		return fmt.Errorf("%w, as far as can be told: %w", ErrSocketInUse, err)
	}
}

// listen makes a socket that is claimed, in place of a dead one, with mode 0600
// from its first moment on.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the dead socket: %w", err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The file gets the mode that the socket has when it is bound (Linux).
		controlErr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(controlErr, err)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// makeDir makes the directory of the sockets.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the sockets: %w", err)
	}
	return nil
}

// identity is what tells one file of a path from another.
func identity(path string) (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, err
	}
	return st.Dev, st.Ino, nil
}

// watchPath returns an error once the path is no longer the file that it was: a
// socket that was removed or replaced is served to nobody.
func watchPath(ctx context.Context, path string, every time.Duration) error {
	dev, ino, err := identity(path)
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d, i, err := identity(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			continue // it cannot be told
		}
		if err != nil || d != dev || i != ino {
			return fmt.Errorf("socket %s was removed or replaced", path)
		}
	}
}
