package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/internal/unixsock"
)

const (
	// maxName is the longest name of a record, in bytes.
	maxName = 1024
	// maxBatch is how many descriptors travel at a time; the kernel's bound is 253.
	maxBatch = 250
	// maxPacket is more than any packet.
	maxPacket = 4096
)

// op is a packet's first byte.
type op byte

const (
	opBegin op = 'b' // number of descriptors, name
	opFDs   op = 'f' // descriptors; answered by opOK
	opEnd   op = 'e' // answered by opOK
	opDrop  op = 'd' // name; answered by opOK
	opDone  op = 'n' // keeper: these were all records; how often a service was started
	opReady op = 'r' // service: it serves
	opPing  op = 'p' // keeper; answered by opPong
	opPong  op = 'P'
	opOK    op = 'k'
	opNo    op = 'x' // why not
)

var (
	errEnded    = errors.New("the other process has ended")
	errProtocol = errors.New("protocol error between the keeper and its service")
)

// packet is one packet. Its descriptors are the receiver's.
type packet struct {
	op   op
	body []byte
	fds  []int
}

// link is one end of the socket pair. One goroutine may receive.
type link struct {
	c   *net.UnixConn
	buf []byte
	oob []byte

	sending sync.Mutex
}

// pair makes both ends. Both close on exec.
func pair() (own *link, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	own, err = newLink(fds[0])
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	return own, os.NewFile(uintptr(fds[1]), "keeper"), nil
}

// newLink takes over a descriptor.
func newLink(fd int) (*link, error) {
	f := os.NewFile(uintptr(fd), "keeper")
	c, err := net.FileConn(f)
	err = errors.Join(err, f.Close())
	if err != nil {
		return nil, fmt.Errorf("socket between the keeper and its service: %w", err)
	}
	unixConn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the descriptor is not a Unix socket"), c.Close())
	}
	return &link{c: unixConn, buf: make([]byte, maxPacket), oob: make([]byte, unix.CmsgSpace(unixsock.MaxFDs*4))}, nil
}

func (l *link) close() { _ = l.c.Close() }

// send sends one packet. The descriptors stay the caller's.
func (l *link) send(o op, body []byte, fds ...int) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	_, err := unixsock.Send(l.c, append([]byte{byte(o)}, body...), fds...)
	return err
}

// receive waits for one packet. Its body is valid until the next call.
func (l *link) receive() (packet, error) {
	n, oobn, flags, _, err := l.c.ReadMsgUnix(l.buf, l.oob)
	fds, rightsErr := unixsock.Rights(l.oob[:max(oobn, 0)])
	switch {
	case n == 0 && (err == nil || errors.Is(err, io.EOF)), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
		err = errEnded
	case err == nil && flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: a packet is too long", errProtocol)
	case err == nil:
		err = rightsErr
	}
	if err != nil {
		unixsock.CloseAll(fds)
		return packet{}, err
	}
	p := packet{op: op(l.buf[0]), body: l.buf[1:n], fds: fds}
	if flags&unix.MSG_CTRUNC != 0 { // this process may open no more: as if fewer had come
		unixsock.CloseAll(p.fds)
		p.fds = nil
	}
	return p, nil
}

// beginBody is the body of opBegin.
func beginBody(name string, fds int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(fds)), name...)
}

func parseBegin(body []byte) (name string, fds int, err error) {
	if len(body) < 5 || len(body) > 4+maxName {
		return "", 0, fmt.Errorf("%w: a record's name has %d bytes: must be 1 to %d", errProtocol, len(body)-4, maxName)
	}
	return string(body[4:]), int(binary.BigEndian.Uint32(body)), nil
}
