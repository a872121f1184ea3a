package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"remuda/internal/unixsock"
)

const (
	// MaxRequest is the longest body of a request in bytes. Replies may be longer.
	MaxRequest = 1 << 20
	// headerSize is the length of a frame's length.
	headerSize = 4
	// firstRead bounds what is allocated for a body before any of it has come.
	firstRead = 64 << 10
)

// Errors of ReadFrame, beside io.EOF (the end between two frames),
// io.ErrUnexpectedEOF (the end within one) and those of the socket.
var (
	// ErrTooLarge: a frame's body is longer than allowed.
	ErrTooLarge = errors.New("frame too large")
	// ErrDescriptors: a frame has more descriptors than the one that the protocol
	// allows, or one on its body. They are closed. (A descriptor on another byte of
	// the length than its first is let pass: the kernel may hand out both at once.)
	ErrDescriptors = errors.New("misplaced descriptors")
	// ErrTruncated: the kernel dropped descriptors or other ancillary data, as it
	// does when this process has no room for them.
	ErrTruncated = errors.New("truncated ancillary data")
)

// Conn is one connection. One goroutine may read while another writes; Close,
// SetReadDeadline and SetWriteDeadline may be called at any time.
type Conn struct {
	raw *net.UnixConn
	oob []byte

	// FrameTimeout is how long a frame may take once its first byte has come; 0
	// for ever. It must be set before the first read.
	FrameTimeout time.Duration

	// mu guards deadline, the caller's deadline for reads, and the socket's.
	mu       sync.Mutex
	deadline time.Time
}

// NewConn takes over a connected socket.
func NewConn(raw *net.UnixConn) *Conn {
	return &Conn{raw: raw, oob: make([]byte, unix.CmsgSpace(unixsock.MaxFDs*4))}
}

// Dial connects to a server's socket.
func Dial(path string) (*Conn, error) {
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return NewConn(raw), nil
}

// Close ends the connection, and with it the session.
func (c *Conn) Close() error { return c.raw.Close() }

// SetReadDeadline bounds reads that are under way and those to come; zero for no
// bound.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.raw.SetReadDeadline(t)
}

// SetWriteDeadline bounds writes that are under way and those to come; zero for
// no bound.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.raw.SetWriteDeadline(t) }

// frameDeadline bounds the rest of a frame that has begun, at most by the
// caller's own deadline. end takes it back.
func (c *Conn) frameDeadline() (end func(), err error) {
	if c.FrameTimeout <= 0 {
		return func() {}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(c.FrameTimeout)
	if !c.deadline.IsZero() && c.deadline.Before(at) {
		return func() {}, nil
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.raw.SetReadDeadline(c.deadline)
	}, c.raw.SetReadDeadline(at)
}

// Frame is one frame as it came.
type Frame struct {
	Body []byte
	// FD is the descriptor that came with the frame, -1 if none did or none was
	// wanted. Its owner is the reader; it closes on exec.
	FD int
	// Closed counts descriptors that came unasked and were closed.
	Closed int
}

// ReadFrame reads one frame. A body longer than limit is refused before it is
// read; 0 allows any. Only where wantFD is set a descriptor is kept: it must be
// on the frame's first byte, and alone. After an error the connection is of no
// more use, and no descriptor is left open.
func (c *Conn) ReadFrame(limit uint32, wantFD bool) (frame Frame, err error) {
	r := reader{c: c, wantFD: wantFD, fd: -1}
	defer func() {
		if err != nil && r.fd >= 0 {
			_ = unix.Close(r.fd)
		}
	}()
	var header [headerSize]byte
	got, err := r.read(header[:])
	if err != nil {
		return Frame{}, err
	}
	end, err := c.frameDeadline()
	if err != nil {
		return Frame{}, err
	}
	defer end()
	if err := r.full(header[got:]); err != nil {
		return Frame{}, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if limit > 0 && size > limit {
		return Frame{}, fmt.Errorf("%w: a body of %d bytes, at most %d are allowed", ErrTooLarge, size, limit)
	}
	body := make([]byte, 0, min(int64(size), firstRead))
	for int64(len(body)) < int64(size) {
		// Twice what has come, so that memory follows the bytes and not the claim.
		step := min(int64(size)-int64(len(body)), max(int64(len(body)), firstRead))
		at := len(body)
		body = append(body, make([]byte, step)...)
		if err := r.full(body[at:]); err != nil {
			return Frame{}, err
		}
	}
	return Frame{Body: body, FD: r.fd, Closed: r.closed}, nil
}

// reader reads the bytes of one frame.
type reader struct {
	c      *Conn
	wantFD bool
	begun  bool
	fd     int
	closed int
}

// full reads until p is full.
func (r *reader) full(p []byte) error {
	for len(p) > 0 {
		n, err := r.read(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// read reads what is there, at least one byte, and takes care of descriptors.
func (r *reader) read(p []byte) (int, error) {
	first := !r.begun
	n, oobn, flags, _, err := r.c.raw.ReadMsgUnix(p, r.c.oob)
	fds, parseErr := unixsock.Rights(r.c.oob[:max(oobn, 0)])
	keep := err == nil && parseErr == nil && r.wantFD && first && len(fds) == 1 && flags&unix.MSG_CTRUNC == 0
	if keep {
		r.fd = fds[0]
	} else {
		unixsock.CloseAll(fds)
		r.closed += len(fds)
	}
	switch {
	case n == 0 && (err == nil || errors.Is(err, io.EOF)):
		if first {
			return 0, io.EOF
		}
		return 0, io.ErrUnexpectedEOF
	case err != nil:
		return 0, err
	case flags&unix.MSG_CTRUNC != 0:
		return 0, ErrTruncated
	case parseErr != nil:
		return 0, fmt.Errorf("%w: %w", ErrTruncated, parseErr)
	case r.wantFD && len(fds) > 0 && !keep:
		return 0, fmt.Errorf("%w: %d, first byte: %t", ErrDescriptors, len(fds), first)
	}
	r.begun = true
	return n, nil
}

// WriteFrame writes one frame. fd rides on its first byte unless it is negative;
// the caller keeps it, and may close it once WriteFrame is back.
func (c *Conn) WriteFrame(body []byte, fd int) error {
	if int64(len(body)) > int64(^uint32(0)) {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, len(body))
	}
	frame := make([]byte, headerSize+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	copy(frame[headerSize:], body)
	if fd >= 0 {
		// A stream socket may take a part. The descriptor went with the first byte.
		n, err := unixsock.Send(c.raw, frame, fd)
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	if len(frame) == 0 {
		return nil
	}
	_, err := c.raw.Write(frame)
	return err
}

// Write encodes and writes a message; see WriteFrame for fd.
func (c *Conn) Write(m Message, fd int) error {
	body, err := Encode(m)
	if err != nil {
		return err
	}
	return c.WriteFrame(body, fd)
}

// Read reads and decodes a message. A descriptor is kept where wantFD is set, and
// is -1 otherwise; see ReadFrame for limit.
func (c *Conn) Read(limit uint32, wantFD bool) (Message, int, error) {
	frame, err := c.ReadFrame(limit, wantFD)
	if err != nil {
		return nil, -1, err
	}
	m, err := Decode(frame.Body)
	if err != nil {
		if frame.FD >= 0 {
			_ = unix.Close(frame.FD)
		}
		return nil, -1, err
	}
	return m, frame.FD, nil
}

// Gone tells whether the peer has closed the connection or its writing side,
// whatever it sent before and nobody has read yet.
func (c *Conn) Gone() bool {
	gone := false
	control, err := c.raw.SyscallConn()
	if err == nil {
		err = control.Control(func(fd uintptr) { gone = hungUp(fd) })
	}
	return gone || err != nil
}

func hungUp(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(poll, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err != nil || n > 0
	}
}

// WatchGone watches for the peer's end while nobody reads: gone is closed when
// Gone is true or the connection was closed here. stop ends the watch and must be
// called before the next read; it returns once the watch is over.
func (c *Conn) WatchGone() (gone <-chan struct{}, stop func()) {
	seen, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		control, err := c.raw.SyscallConn()
		if err == nil {
			// The runtime polls for the end of the peer too, and calls back at each
			// event of the socket: this neither reads nor spins.
			err = control.Read(func(fd uintptr) bool { return hungUp(fd) })
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			close(seen)
		}
	}()
	var once sync.Once
	return seen, func() {
		once.Do(func() {
			c.mu.Lock()
			_ = c.raw.SetReadDeadline(time.Unix(1, 0))
			c.mu.Unlock()
			<-done
			c.mu.Lock()
			_ = c.raw.SetReadDeadline(c.deadline)
			c.mu.Unlock()
		})
	}
}

// Peer is the process at the other end as the kernel knew it when it connected.
func (c *Conn) Peer() (pid int32, uid uint32, err error) {
	cred, err := unixsock.PeerCred(c.raw)
	if err != nil {
		return 0, 0, err
	}
	return cred.Pid, cred.Uid, nil
}
