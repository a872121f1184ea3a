package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// version is the protocol's.
	version = 1
	// maxChunk is how many bytes of a blob travel at a time.
	maxChunk = 60 << 10
	// maxBatch is how many descriptors do; the kernel's SCM_MAX_FD is 253.
	maxBatch = 250
	// kernelBatch is SCM_MAX_FD: room for as many as a peer can send.
	kernelBatch = 253
	// maxPacket is more than any packet.
	maxPacket = 64 << 10
	// MaxName is the longest name of a record, in bytes.
	MaxName = 255
)

// op is a packet's first byte.
type op byte

const (
	opHello   op = 'H' // keeper: version, instance
	opSave    op = 'S' // client: size, count, name; answered by opOK
	opDrop    op = 'X' // client: name; answered by opOK
	opLoad    op = 'L' // client: name; answered by opFound or opMissing
	opData    op = 'D' // the next bytes and descriptors; a client's is answered by opOK
	opNext    op = 'N' // client, after opFound: answered by opData
	opOK      op = 'k'
	opFound   op = 'f' // keeper: size, count
	opMissing op = 'n'
	opRefused op = 'e' // keeper: why
)

// errProtocol is wrapped where the other side does not keep to the protocol.
var errProtocol = errors.New("protocol error")

// packet is one packet.
type packet struct {
	op   op
	body []byte
	fds  []int
}

// close closes the descriptors.
func (p *packet) close() { closeAll(p.fds); p.fds = nil }

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// extent is how large a record is.
type extent struct {
	size  uint64
	count uint32
}

const extentLen = 12

func (e extent) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, e.size), e.count)
}

// cutExtent reads an extent from the front of b.
func cutExtent(b []byte) (e extent, rest []byte, err error) {
	if len(b) < extentLen {
		return e, nil, fmt.Errorf("%w: a packet is too short", errProtocol)
	}
	return extent{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}, b[extentLen:], nil
}

// checkName says whether a record can have the name.
func checkName(name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("a record's name has 1 to %d bytes, not %d", MaxName, len(name))
	}
	return nil
}

// part is what the next packet of a transfer carries of blob and fds.
func part(blob []byte, fds []int) (chunk, restBlob []byte, batch, restFDs []int) {
	n, m := min(len(blob), maxChunk), min(len(fds), maxBatch)
	return blob[:n], blob[n:], fds[:m], fds[m:]
}

// link is one connection. Only one goroutine may read and only one may write.
type link struct {
	c    *net.UnixConn
	buf  []byte
	oob  []byte
	uid  uint32
	peer int // process ID
}

// newLink takes over c. The error is about the peer.
func newLink(c *net.UnixConn) (*link, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return nil, fmt.Errorf("ask who the peer is: %w", err)
	}
	return &link{c: c, uid: cred.Uid, peer: int(cred.Pid)}, nil
}

// send sends one packet with descriptors, which stay the caller's.
func (l *link) send(o op, body []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := l.c.WriteMsgUnix(append([]byte{byte(o)}, body...), rights, nil)
	return err
}

// receive waits for one packet. Its body is valid until the next receive; its
// descriptors are the caller's. No descriptor is left open after an error.
func (l *link) receive() (packet, error) {
	if l.buf == nil {
		l.buf, l.oob = make([]byte, maxPacket), make([]byte, unix.CmsgSpace(kernelBatch*4))
	}
	n, oobn, flags, _, err := l.c.ReadMsgUnix(l.buf, l.oob)
	// Descriptors come with an empty packet, too, which looks like the end.
	fds, rightsErr := rights(l.oob[:max(oobn, 0)])
	switch {
	case n == 0 && (err == nil || errors.Is(err, io.EOF)), errors.Is(err, unix.ECONNRESET):
		err = errEnd
	case err != nil:
	case rightsErr != nil:
		err = rightsErr
	case flags&unix.MSG_CTRUNC != 0:
		// The sender sent more than it may, or this process has no room for more.
		err = errTruncated
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: a packet is too long", errProtocol)
	}
	if err != nil {
		closeAll(fds)
		return packet{}, err
	}
	return packet{op(l.buf[0]), l.buf[1:n], fds}, nil
}

var (
	// errTruncated: the kernel could not hand over all descriptors of a packet.
	errTruncated = errors.New("descriptors were cut off: this process may open no more, or the peer sent too many")
	// errEnd: the peer has closed the connection (or sent an empty packet, which
	// looks the same).
	errEnd = errors.New("the connection has ended")
)

// waits tells whether the peer still has the connection open.
func (l *link) waits() bool {
	raw, err := l.c.SyscallConn()
	if err != nil {
		return false
	}
	waits := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, perr := unix.Poll(poll, 0)
		for errors.Is(perr, unix.EINTR) {
			n, perr = unix.Poll(poll, 0)
		}
		waits = perr == nil && n == 0
	})
	return err == nil && waits
}

// rights are the descriptors of a packet's ancillary data, also after an error.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	var all []int
	for i := range messages {
		fds, ferr := unix.ParseUnixRights(&messages[i])
		all = append(all, fds...)
		err = errors.Join(err, ferr)
	}
	return all, err
}

// ask sends one packet and waits for the answer.
func (l *link) ask(o op, body []byte, fds []int) (packet, error) {
	if err := l.send(o, body, fds); err != nil {
		return packet{}, err
	}
	return l.receive()
}

// within bounds what is read and written from now on; 0: unbounded.
func (l *link) within(d time.Duration) error {
	if d == 0 {
		return l.c.SetDeadline(time.Time{})
	}
	return l.c.SetDeadline(time.Now().Add(d))
}
