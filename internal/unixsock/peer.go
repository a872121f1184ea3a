package unixsock

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors the kernel passes in one message (its
// SCM_MAX_FD).
const MaxFDs = 253

// PeerCred returns the process ID, user and group of the peer, as the kernel noted
// them when it connected.
func PeerCred(c *net.UnixConn) (*unix.Ucred, error) {
	control, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = control.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return cred, nil
}

// Send sends bytes with descriptors, which stay the caller's. A stream socket may
// take a part of the bytes: n of them, and the descriptors with the first one.
func Send(c *net.UnixConn, b []byte, fds ...int) (n int, err error) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	n, _, err = c.WriteMsgUnix(b, rights, nil)
	return n, err
}

// Rights returns the descriptors of a message's ancillary data, which are the
// caller's, also after an error.
func Rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, rightsErr := unix.ParseUnixRights(&m)
		fds = append(fds, got...)
		err = errors.Join(err, rightsErr)
	}
	return fds, err
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
