package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse is wrapped where another program serves the socket.
var ErrSocketInUse = errors.New("another program serves the socket")

// listen makes the socket, unless somebody else serves it. What a dead keeper
// left behind is replaced. A lock file beside it decides between two keepers
// that start at once.
func listen(path string) (_ *net.UnixListener, unlock func(), err error) {
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("socket %s: %w", path, err)
	}
	fail := func(err error) (*net.UnixListener, func(), error) {
		return nil, nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), lock.Close())
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrSocketInUse
		}
		return fail(err)
	}
	if err := removeDead(path); err != nil {
		return fail(err)
	}
	// The socket is made under another name and renamed once its mode is set, so
	// that nobody else can connect in between.
	fresh := path + ".new"
	_ = os.Remove(fresh)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: fresh, Net: "unixpacket"})
	if err != nil {
		return fail(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return fail(errors.Join(err, l.Close()))
	}
	return l, func() { _ = os.Remove(path); _ = lock.Close() }, nil
}

// removeDead removes a socket that nobody serves. The error wraps
// ErrSocketInUse where somebody does.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return errors.New("there is a file that is no socket: choose another path")
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		_ = c.Close()
		return ErrSocketInUse
	}
	// Other errors, as of a stream socket, mean that somebody is there.
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrSocketInUse, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
