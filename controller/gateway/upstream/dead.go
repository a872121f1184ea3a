package upstream

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is after how long without an acknowledgement of its kernel an engine's host counts as
// dead: for bytes that were sent, and for keep-alive probes while an answer is awaited. It also
// bounds how long an engine may leave its receive buffer full, so it is longer than a busy event
// loop takes.
const userTimeout = 15 * time.Second

// keepAlive probes an engine that says nothing. With a user timeout Linux does not count probes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// setUserTimeout is for net.Dialer.Control.
func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
