package wire_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/wire"
)

// pair is both ends of a connection, one of them raw.
func pair(t *testing.T) (*wire.Conn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return wire.NewConn(ends[0]), ends[1]
}

func framed(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// gift is a descriptor to send, and a pipe that ends once every copy is closed.
func gift(t *testing.T) (fd int, end int) {
	t.Helper()
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() { _ = unix.Close(p[0]) })
	return p[1], p[0]
}

// closed tells whether every copy of a gift is closed.
func closed(t *testing.T, end int) bool {
	t.Helper()
	n, err := unix.Read(end, make([]byte, 1))
	return n == 0 && err == nil
}

func send(t *testing.T, raw *net.UnixConn, data []byte, fds ...int) {
	t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := raw.WriteMsgUnix(data, oob, nil)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

func TestFramesDrippedAndCoalesced(t *testing.T) {
	c, raw := pair(t)
	whole := append(framed([]byte("one")), framed([]byte("second"))...)
	go func() {
		for _, b := range whole {
			_, _ = raw.Write([]byte{b})
		}
		_, _ = raw.Write(append(bytes.Clone(whole), framed(nil)...))
		_ = raw.Close()
	}()
	for _, want := range []string{"one", "second", "one", "second", ""} {
		f, err := c.ReadFrame(wire.MaxRequest, false)
		require.NoError(t, err)
		require.Equal(t, want, string(f.Body))
		require.Equal(t, -1, f.FD)
	}
	_, err := c.ReadFrame(wire.MaxRequest, false)
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestFrameThatIsCutOff(t *testing.T) {
	whole := framed([]byte("body"))
	for n := 1; n < len(whole); n++ {
		c, raw := pair(t)
		send(t, raw, whole[:n])
		require.NoError(t, raw.Close())
		_, err := c.ReadFrame(wire.MaxRequest, false)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
	}
}

// TestFrameLimit: the cap is on the body, and what a length claims costs nothing.
func TestFrameLimit(t *testing.T) {
	c, raw := pair(t)
	body := bytes.Repeat([]byte{7}, wire.MaxRequest)
	go func() { _, _ = raw.Write(framed(body)) }()
	f, err := c.ReadFrame(wire.MaxRequest, false)
	require.NoError(t, err)
	require.Equal(t, body, f.Body)
	go func() { _, _ = raw.Write(framed(append(body, 1))) }()
	_, err = c.ReadFrame(wire.MaxRequest, false)
	require.ErrorIs(t, err, wire.ErrTooLarge)

	c, raw2 := pair(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	send(t, raw2, []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	require.NoError(t, raw2.Close())
	_, err = c.ReadFrame(0, false)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(10<<20))
}

func TestDescriptorOnTheFirstByteIsKeptWhereItIsWanted(t *testing.T) {
	c, raw := pair(t)
	fd, end := gift(t)
	send(t, raw, framed([]byte("x")), fd)
	require.NoError(t, unix.Close(fd))
	f, err := c.ReadFrame(0, true)
	require.NoError(t, err)
	require.GreaterOrEqual(t, f.FD, 0)
	flags, err := unix.FcntlInt(uintptr(f.FD), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	require.False(t, closed(t, end))
	require.NoError(t, unix.Close(f.FD))
	require.True(t, closed(t, end))
}

func TestDescriptorsThatAreNotWantedAreClosed(t *testing.T) {
	for _, n := range []int{1, 2, 50, 253} {
		for _, at := range []int{0, 2, 5} {
			c, raw := pair(t)
			var fds, ends []int
			for range n {
				fd, end := gift(t)
				fds, ends = append(fds, fd), append(ends, end)
			}
			whole := framed([]byte("body"))
			if at > 0 {
				send(t, raw, whole[:at])
			}
			send(t, raw, whole[at:], fds...)
			for _, fd := range fds {
				require.NoError(t, unix.Close(fd))
			}
			f, err := c.ReadFrame(wire.MaxRequest, false)
			require.NoError(t, err)
			require.Equal(t, n, f.Closed)
			require.Equal(t, -1, f.FD)
			for _, end := range ends {
				require.True(t, closed(t, end))
			}
		}
	}
}

func TestMisplacedDescriptorsAreAnError(t *testing.T) {
	whole := framed([]byte("body"))
	for name, c := range map[string]struct{ first, second, at int }{
		"two on the first byte":          {2, 0, 0},
		"one on the body":                {0, 1, 4},
		"one on the first, one after it": {1, 1, 6},
	} {
		t.Run(name, func(t *testing.T) {
			conn, raw := pair(t)
			var ends []int
			some := func(n int) (fds []int) {
				for range n {
					fd, end := gift(t)
					fds, ends = append(fds, fd), append(ends, end)
				}
				return fds
			}
			first, second := some(c.first), some(c.second)
			if c.at > 0 {
				send(t, raw, whole[:c.at], first...)
				send(t, raw, whole[c.at:], second...)
			} else {
				send(t, raw, whole, first...)
			}
			for _, fd := range append(first, second...) {
				require.NoError(t, unix.Close(fd))
			}
			_, err := conn.ReadFrame(0, true)
			require.ErrorIs(t, err, wire.ErrDescriptors)
			for _, end := range ends {
				require.True(t, closed(t, end))
			}
		})
	}
}

// TestWritesThatNeedSeveralCalls: a body larger than the socket's buffer, with a
// descriptor on its first byte.
func TestWritesThatNeedSeveralCalls(t *testing.T) {
	c, raw := pair(t)
	peer := wire.NewConn(raw)
	fd, end := gift(t)
	keys := make([]string, 50_000)
	for i := range keys {
		keys[i] = "a key of some length, as engines have them"
	}
	sent := make(chan error, 1)
	go func() { sent <- c.Write(&wire.MetadataListResponse{Keys: keys}, fd) }()
	m, got, err := peer.Read(0, true)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.Len(t, m.(*wire.MetadataListResponse).Keys, len(keys))
	require.NoError(t, unix.Close(fd))
	require.False(t, closed(t, end))
	require.NoError(t, unix.Close(got))
	require.True(t, closed(t, end))
}

func TestDeadlines(t *testing.T) {
	c, _ := pair(t)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := c.ReadFrame(0, false)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	// A frame that has begun has its own deadline; the next frame does not.
	c, raw := pair(t)
	c.FrameTimeout = 500 * time.Millisecond // a whole frame comes in time on any machine
	send(t, raw, framed([]byte("x")))
	_, err = c.ReadFrame(0, false)
	require.NoError(t, err)
	read := make(chan error, 1)
	go func() {
		_, err := c.ReadFrame(0, false)
		read <- err
	}()
	select {
	case err := <-read:
		require.Fail(t, "no frame has begun", "%v", err)
	case <-time.After(600 * time.Millisecond):
	}
	send(t, raw, []byte{0, 0})
	require.ErrorIs(t, <-read, os.ErrDeadlineExceeded)

	// A peer that does not read.
	c, _ = pair(t)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	require.ErrorIs(t, c.WriteFrame(make([]byte, 8<<20), -1), os.ErrDeadlineExceeded)
}

// TestPeerThatIsGoneIsSeenBehindWhatItSent: nothing is read for it.
func TestPeerThatIsGoneIsSeenBehindWhatItSent(t *testing.T) {
	for name, leave := range map[string]func(*net.UnixConn) error{
		"closed":      (*net.UnixConn).Close,
		"half closed": (*net.UnixConn).CloseWrite,
	} {
		t.Run(name, func(t *testing.T) {
			c, raw := pair(t)
			send(t, raw, framed([]byte("unread")))
			require.False(t, c.Gone())
			gone, stop := c.WatchGone()
			send(t, raw, framed([]byte("more")))
			select {
			case <-gone:
				require.Fail(t, "the peer is there")
			case <-time.After(20 * time.Millisecond):
			}
			stop()
			require.False(t, c.Gone())
			f, err := c.ReadFrame(0, false)
			require.NoError(t, err)
			require.Equal(t, "unread", string(f.Body))

			gone, stop = c.WatchGone()
			defer stop()
			require.NoError(t, leave(raw))
			select {
			case <-gone:
			case <-time.After(10 * time.Second):
				require.Fail(t, "the end was not seen")
			}
			require.True(t, c.Gone())
		})
	}
}

func TestWatchEndsWithTheConnection(t *testing.T) {
	c, _ := pair(t)
	gone, stop := c.WatchGone()
	defer stop()
	require.NoError(t, c.Close())
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the end was not seen")
	}
}

func TestPeerIsThisProcess(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := wire.Dial(path); err == nil {
			defer c.Close()
			_, _ = c.ReadFrame(0, false)
		}
	}()
	raw, err := l.AcceptUnix()
	require.NoError(t, err)
	c := wire.NewConn(raw)
	defer c.Close()
	pid, uid, err := c.Peer()
	require.NoError(t, err)
	require.EqualValues(t, os.Getpid(), pid)
	require.EqualValues(t, os.Getuid(), uid)
}

// FuzzReadFrame feeds the reader anything in pieces of any size. It must neither
// hang nor make up bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add(framed([]byte("body")), uint8(1))
	f.Add(append(framed(nil), framed([]byte{1, 2, 3})...), uint8(2))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, uint8(5))
	f.Add([]byte{0, 0}, uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		c, raw := pair(t)
		go func() {
			defer raw.Close()
			for rest := stream; len(rest) > 0; {
				n := min(len(rest), int(step)+1)
				if _, err := raw.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		}()
		defer c.Close()
		var read []byte
		for {
			frame, err := c.ReadFrame(wire.MaxRequest, false)
			if err != nil {
				break
			}
			read = append(read, framed(frame.Body)...)
			_, _ = wire.Decode(frame.Body)
		}
		require.True(t, bytes.HasPrefix(stream, read))
		rest := stream[len(read):]
		if len(rest) >= 4 {
			size := binary.BigEndian.Uint32(rest)
			require.True(t, size > wire.MaxRequest || uint64(len(rest)-4) < uint64(size), "a whole frame was not read")
		}
	})
}
