package conformance_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// rawConn is a client's end of a connection: frames and descriptors, nothing else.
type rawConn struct {
	c *net.UnixConn
	// opening: the answer to open_unit_request is to come.
	opening *bool
}

// answer is a message with the descriptors that rode along.
type answer struct {
	message
	fds []int
	// late is how many of them did not ride on the first byte of the frame.
	late int
}

func dialRaw(path string) (rawConn, error) {
	parts := strings.SplitN(path, "#", 3)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: parts[0], Net: "unix"})
	r := rawConn{c: c, opening: new(bool)}
	if err == nil && len(parts) == 3 {
		*r.opening = true
		if err = r.send(newMessage("open_unit_request", "gpu", parts[1], "tag", parts[2])); err != nil {
			c.Close()
		}
	}
	return r, err
}

// write sends bytes, with descriptors on the first of them.
func (r rawConn) write(b []byte, fds ...int) error {
	if err := r.c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := r.c.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = r.c.Write(b[n:])
	}
	return err
}

func (r rawConn) send(m message, fds ...int) error { return r.write(frame(encode(m)), fds...) }

// receive reads one frame. It returns io.EOF where the server closed the connection
// between two frames.
func (r rawConn) receive(within time.Duration) (answer, error) {
	if *r.opening { // the unit's own answer comes first
		a, err := r.receiveNext(within)
		if err != nil || a.kind() != "open_unit_response" {
			return a, err
		}
		*r.opening = false
	}
	return r.receiveNext(within)
}

func (r rawConn) receiveNext(within time.Duration) (answer, error) {
	var a answer
	if err := r.c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return a, err
	}
	var head [4]byte
	if err := r.fill(head[:1], &a, true); err != nil {
		return a, err
	}
	// The rest of a frame that has begun is waited for: half of it must not be lost.
	if err := r.c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return a, err
	}
	if err := r.fill(head[1:], &a, false); err != nil {
		return a, inFrame(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > 256<<20 {
		return a, fmt.Errorf("the server announces a body of %d bytes", size)
	}
	body := make([]byte, size)
	if err := r.fill(body, &a, false); err != nil {
		return a, inFrame(err)
	}
	var err error
	a.message, err = decode(body)
	return a, err
}

func (r rawConn) fill(b []byte, a *answer, first bool) error {
	oob := make([]byte, unix.CmsgSpace(64*4))
	for len(b) > 0 {
		n, oobn, flags, _, err := r.c.ReadMsgUnix(b, oob)
		if fds := rights(oob[:oobn]); len(fds) > 0 {
			a.fds = append(a.fds, fds...)
			if !first {
				a.late += len(fds)
			}
		}
		switch {
		case err != nil:
			return err
		case flags&unix.MSG_CTRUNC != 0:
			return errors.New("ancillary data is truncated")
		case n == 0:
			return io.EOF
		}
		b = b[n:]
	}
	return nil
}

// inFrame is the error of a connection that ended within a frame.
func inFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func rights(oob []byte) []int {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if got, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func (a answer) close() {
	for _, fd := range a.fds {
		_ = unix.Close(fd)
	}
}

// ended says that the server is done with a connection: closed, or reset because
// it closed with something of ours unread.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
