// Package unixsock has what daemons need of Unix sockets: a path that one program
// has at a time, the credentials of the peer, and file descriptors as messages.
//
// What a Claim promises:
//   - A socket that a program serves is not taken over, also where two programs
//     start at once: a lock file beside it decides. A socket that no program serves
//     any more is replaced.
//   - Only the user may connect, from the socket's first moment on (mode 0600).
//   - A program that has lost its socket's file gets an error, as no client can
//     reach it any more, and it leaves alone what others have put in the place.
package unixsock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is wrapped where another program serves a socket.
var ErrInUse = errors.New("another program is using the socket")

// MaxPath is the longest path of a socket in bytes (sun_path of the kernel, less its
// NUL).
const MaxPath = 107

const (
	// probeLimit is how long a server that is there may take to be seen: connecting
	// needs nothing of it.
	probeLimit = 2 * time.Second
	// claimLimit is how long a socket that is in use is tried: a server that was
	// killed a moment ago may not be gone yet.
	claimLimit = 300 * time.Millisecond
	// watchPause is how often a socket's file is looked at.
	watchPause = time.Second
)

// Claim is a path that is ours until Close. One goroutine may use it at a time, but
// Watch may run beside the others once Listen is done.
type Claim struct {
	network, path string
	lock          *os.File
	// listener and file are set by Listen.
	listener *net.UnixListener
	file     identity
}

// Take makes sure that no other program has the path, and that no other Claim takes
// it before Close. The network is "unix" or "unixpacket". The error wraps ErrInUse
// where somebody has it.
func Take(ctx context.Context, network, path string) (*Claim, error) {
	c := &Claim{network: network, path: path}
	if len(path) > MaxPath {
		return nil, fmt.Errorf("socket %s: the path is %d bytes long: must be at most %d", path, len(path), MaxPath)
	}
	for deadline := time.Now().Add(claimLimit); ; {
		err := c.take()
		if err == nil {
			return c, nil
		}
		if err = fmt.Errorf("socket %s: %w", path, err); !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(claimLimit / 10):
		}
	}
}

func (c *Claim) take() error {
	lock, err := os.OpenFile(c.path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err == nil {
		err = c.probe() // a server that takes no such lock may have it
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	c.lock = lock
	return nil
}

// probe is nil where there is nothing, or a dead socket.
func (c *Claim) probe() error {
	info, err := os.Lstat(c.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return errors.New("the path is a file that is not a socket: choose another path")
	}
	conn, err := net.DialTimeout(c.network, c.path, probeLimit)
	switch {
	case err == nil:
		_ = conn.Close()
		return ErrInUse
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil
	default: // as when its queue is full, or it is a socket of another kind
		return fmt.Errorf("%w, as far as can be told: %w", ErrInUse, err)
	}
}

// Listen makes the socket, in place of a dead one. It is made under another name and
// renamed, so that who sees it can connect.
func (c *Claim) Listen() (*net.UnixListener, error) {
	fresh := filepath.Join(filepath.Dir(c.path), "."+rand.Text()[:7])
	l, file, err := listen(c.network, fresh)
	if err == nil {
		if err = os.Rename(fresh, c.path); err != nil {
			err = errors.Join(err, os.Remove(fresh), l.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.path, err)
	}
	c.listener, c.file = l, file
	return l, nil
}

func listen(network, path string) (*net.UnixListener, identity, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The file gets the mode that the socket has when it is bound (Linux).
		controlErr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(controlErr, err)
	}}
	made, err := lc.Listen(context.Background(), network, path)
	if err != nil {
		return nil, identity{}, err
	}
	l := made.(*net.UnixListener)
	l.SetUnlinkOnClose(false) // it would remove whatever is there then
	file, err := identify(path)
	if err != nil {
		return nil, identity{}, errors.Join(err, l.Close())
	}
	return l, file, nil
}

// Watch returns an error once the path is no longer the file that Listen made, and
// nil when ctx ends.
func (c *Claim) Watch(ctx context.Context) error {
	tick := time.NewTicker(watchPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := identify(c.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			continue // it cannot be told
		}
		if err != nil || now != c.file {
			return fmt.Errorf("socket %s was removed or replaced: clients can no longer connect", c.path)
		}
	}
}

// Stop removes the socket, unless it is another program's by now, and ends the
// listener. It may be called twice.
func (c *Claim) Stop() {
	if c.listener == nil {
		return
	}
	// In this order: the file of a listener that has ended may be anybody's next.
	if now, err := identify(c.path); err == nil && now == c.file {
		_ = os.Remove(c.path)
	}
	_ = c.listener.Close()
	c.listener = nil
}

// Close is Stop, and gives the path up.
func (c *Claim) Close() error {
	c.Stop()
	return c.lock.Close()
}

// identity tells one file of a path from another. A listener holds its file, so that
// no other file gets the same.
type identity struct{ dev, ino uint64 }

func identify(path string) (identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return identity{}, err
	}
	return identity{st.Dev, st.Ino}, nil
}
