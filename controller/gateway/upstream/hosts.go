package upstream

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An engine that is not passing any more may be draining, and must lose no request then. So its port is not asked
// whether it lives: an engine that drains may have closed it, and one that is busy drops new connections while its
// backlog is full. The kernel of its host is asked, on each connection to it.
const (
	// askEvery is how often keep-alive probes a silent connection to such an engine, and how often the
	// acknowledgements are looked at.
	askEvery = time.Second
	// A host is lost that was silent for lostAfter and left lostPackets in a row without an acknowledgement: probes or
	// retransmissions, so that the loss of one packet or two decides nothing.
	lostAfter   = 4 * time.Second
	lostPackets = 4
)

// errLost is the error of a connection to a lost host, in a *net.OpError.
var errLost = errors.New("the engine is not passing any more, and its host does not answer")

// hosts ends the connections to lost hosts.
type hosts struct {
	mu   sync.Mutex // guards what follows, and asked of the connections; held for system calls that do not wait
	open map[*conn]struct{}
	// passing are the addresses of engines that pass; nil before the first list.
	passing map[string]bool
	// timer runs look; it is armed while looking is set, which is as long as hosts are asked.
	timer   *time.Timer
	looking bool
}

// SetPassing takes the addresses ("host:port") of all engines that pass their checks, and keeps the map. A connection
// to another engine ends if the engine's host acknowledges nothing for 4 s; before the first call, and to an engine that
// passes, it does after 15 s. An engine that drains loses no request, whatever its port does with new connections.
func (t *Transport) SetPassing(addresses map[string]bool) {
	h := &t.hosts
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passing = addresses
	for c := range h.open {
		h.check(c)
	}
}

// add takes a connection.
func (h *hosts) add(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[*conn]struct{}{}
	}
	h.open[c] = struct{}{}
	h.check(c)
}

// remove forgets a connection that is closed.
func (h *hosts) remove(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, c)
}

// check sets how often the host of a connection is asked. mu is held.
func (h *hosts) check(c *conn) {
	asked := h.passing != nil && !h.passing[c.addr]
	if asked == c.asked {
		return
	}
	c.asked = asked
	if !asked {
		c.setKeepAlive(keepAlive.Idle, keepAlive.Interval)
		return
	}
	c.setKeepAlive(askEvery, askEvery)
	if !h.looking {
		h.looking = true
		h.timer = time.AfterFunc(askEvery, h.look)
	}
}

// look ends the connections to hosts that are lost.
func (h *hosts) look() {
	var ended []*conn
	h.mu.Lock()
	h.looking = false
	for c := range h.open {
		if !c.asked {
			continue
		}
		h.looking = true
		if c.hostLost() {
			ended = append(ended, c)
		}
	}
	if h.looking {
		h.timer.Reset(askEvery)
	}
	h.mu.Unlock()
	for _, c := range ended {
		c.lost.Store(true)
		_ = c.nc.Close()
	}
}

// setKeepAlive sets after what silence, and how often from then on, the kernel probes the host.
func (c *conn) setKeepAlive(idle, interval time.Duration) {
	_ = c.raw.Control(func(fd uintptr) { // it fails if the connection is closed
		// The interval comes first: with the idle time the first probe is due at once.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(interval.Seconds()))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(idle.Seconds()))
	})
}

// hostLost reads TCP_INFO of the connection and applies lost to it. A connection that is closed is not lost.
func (c *conn) hostLost() bool {
	gone := false
	err := c.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && lost(info)
	})
	return err == nil && gone
}

// lost reports whether nothing came from the host for lostAfter and lostPackets packets have no acknowledgement.
func lost(info *unix.TCPInfo) bool {
	heard := time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
	return heard >= lostAfter && int(info.Probes)+int(info.Retransmits) >= lostPackets
}

// reason returns why a read or a write failed: errLost if the connection was ended for that.
func (c *conn) reason(op string, err error) error {
	if err == nil || !c.lost.Load() {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.nc.LocalAddr(), Addr: c.nc.RemoteAddr(), Err: errLost}
}
