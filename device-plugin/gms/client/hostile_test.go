package client_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

// fakeServer answers each request as told; nil: not at all. A descriptor is closed
// once it was sent.
func fakeServer(t *testing.T, answer func(m wire.Message) (wire.Message, int)) (socket string) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	done := make(chan struct{})
	var conns []*wire.Conn
	go func() {
		defer close(done)
		for {
			raw, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(raw)
			conns = append(conns, conn)
			go func() {
				for {
					m, _, err := conn.Read(wire.MaxRequest, false)
					if err != nil {
						_ = conn.Close()
						return
					}
					if r, fd := answer(m); r != nil {
						_ = conn.Write(r, fd)
						if fd >= 0 {
							_ = unix.Close(fd)
						}
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return socket
}

func null(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	assert.NoError(t, err)
	return fd
}

// nulls counts what is open of null.
func nulls(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "/dev/null" {
			n++
		}
	}
	return n
}

func granted() *wire.HandshakeResponse {
	return &wire.HandshakeResponse{Success: true, GrantedLockType: wire.RW}
}

func TestAServerThatNeverAnswers(t *testing.T) {
	for name, answerHandshake := range map[string]bool{"the handshake": false, "a request": true} {
		t.Run(name, func(t *testing.T) {
			socket := fakeServer(t, func(m wire.Message) (wire.Message, int) {
				if _, ok := m.(*wire.HandshakeRequest); ok && answerHandshake {
					return granted(), -1
				}
				return nil, -1
			})
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			var err error
			if !answerHandshake {
				_, err = client.Open(ctx, socket, client.Options{Lock: wire.RW})
			} else {
				s, opened := client.Open(testContext(t), socket, client.Options{Lock: wire.RW})
				require.NoError(t, opened)
				_, err = s.Allocate(ctx, 1, "")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				<-s.Done()
				_, err2 := s.Allocate(testContext(t), 1, "")
				require.ErrorIs(t, err2, client.ErrClosed, "the answer could no longer be told from the next")
			}
			require.ErrorIs(t, err, client.ErrTimeout)

			canceled, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			_, err = client.RuntimeState(canceled, socket)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, client.ErrTimeout)
		})
	}
}

func TestAServerThatBreaksTheProtocol(t *testing.T) {
	for name, tc := range map[string]struct {
		answer wire.Message
		fd     bool
		ask    func(ctx context.Context, s *client.Session) error
	}{
		"another answer": {
			answer: &wire.CommitResponse{Success: true},
			ask:    func(ctx context.Context, s *client.Session) error { _, err := s.Allocate(ctx, 1, ""); return err },
		},
		"a descriptor that nobody wants": {
			answer: &wire.CommitResponse{Success: true}, fd: true,
			ask: func(ctx context.Context, s *client.Session) error { return s.Commit(ctx) },
		},
		"a descriptor on another answer": {
			answer: &wire.CommitResponse{Success: true}, fd: true,
			ask: func(ctx context.Context, s *client.Session) error { _, _, err := s.Export(ctx, "a"); return err },
		},
		"an export without a descriptor": {
			answer: &wire.ExportAllocationResponse{AllocationID: "a", Size: 1, AlignedSize: 1},
			ask:    func(ctx context.Context, s *client.Session) error { _, _, err := s.Export(ctx, "a"); return err },
		},
		"a request instead of an answer": {
			answer: &wire.CommitRequest{},
			ask:    func(ctx context.Context, s *client.Session) error { _, err := s.LayoutHash(ctx); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			socket := fakeServer(t, func(m wire.Message) (wire.Message, int) {
				if _, ok := m.(*wire.HandshakeRequest); ok {
					return granted(), -1
				}
				if tc.fd {
					return tc.answer, null(t)
				}
				return tc.answer, -1
			})
			before := nulls(t)
			s, err := client.Open(ctx, socket, client.Options{Lock: wire.RW})
			require.NoError(t, err)
			require.ErrorIs(t, tc.ask(ctx, s), client.ErrClosed)
			<-s.Done()
			require.NoError(t, s.Close())
			require.Eventually(t, func() bool { return nulls(t) == before }, deadline, tick, "no descriptor is left open")
		})
	}
	t.Run("a lock that was not asked for", func(t *testing.T) {
		socket := fakeServer(t, func(wire.Message) (wire.Message, int) { return granted(), -1 })
		_, err := client.Open(testContext(t), socket, client.Options{Lock: wire.RO})
		require.ErrorContains(t, err, "granted")
	})
	t.Run("a mapping of something else", func(t *testing.T) {
		socket := fakeServer(t, func(m wire.Message) (wire.Message, int) {
			if _, ok := m.(*wire.HandshakeRequest); ok {
				return granted(), -1
			}
			return &wire.ExportAllocationResponse{AllocationID: "a", Size: 1, AlignedSize: 2 * mib}, null(t)
		})
		w := newWorld(t, "", 0)
		c, err := client.New(client.Config{Socket: socket, Space: w.space})
		require.NoError(t, err)
		defer c.Close()
		before := nulls(t)
		_, err = c.Connect(testContext(t), wire.RW, nil)
		require.NoError(t, err)
		_, err = c.Map(testContext(t), "a")
		require.ErrorContains(t, err, "0 bytes")
		require.Eventually(t, func() bool { return nulls(t) == before }, deadline, tick)
	})
}

// Dynamo's server knows nothing of nonces, hashes in handshakes and codes.
func TestAServerWithoutExtensions(t *testing.T) {
	var hash atomic.Value
	hash.Store("aa")
	var refuse atomic.Bool
	socket := fakeServer(t, func(m wire.Message) (wire.Message, int) {
		switch m := m.(type) {
		case *wire.HandshakeRequest:
			assert.Empty(t, m.ExpectedNonce)
			if refuse.Load() {
				return &wire.HandshakeResponse{}, -1
			}
			return &wire.HandshakeResponse{Success: true, Committed: true, GrantedLockType: wire.RO}, -1
		case *wire.GetMemoryLayoutHashRequest:
			return &wire.GetMemoryLayoutHashResponse{MemoryLayoutHash: hash.Load().(string)}, -1
		case *wire.ListAllocationsRequest:
			return &wire.ListAllocationsResponse{}, -1
		}
		return nil, -1
	})
	w := newWorld(t, "", 0)
	c, err := client.New(client.Config{Socket: socket, Space: w.space})
	require.NoError(t, err)
	defer c.Close()
	ctx := testContext(t)
	_, err = c.Connect(ctx, wire.Auto, nil)
	require.NoError(t, err)
	assert.Equal(t, "aa", c.Hash())
	require.NoError(t, c.Unmap(ctx))
	require.NoError(t, c.Remap(ctx))
	require.NoError(t, c.Unmap(ctx))
	hash.Store("bb")
	require.ErrorIs(t, c.Remap(ctx), client.ErrStaleLayout)
	refuse.Store(true)
	require.ErrorIs(t, c.Remap(ctx), client.ErrTimeout)
}

// A server that dies while it is asked for a lock is asked again, at its next
// life.
func TestAServerThatDiesDuringTheHandshake(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		_, _ = io.ReadFull(c, make([]byte, 4))
		_ = c.Close()
		c, err = l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		conn := wire.NewConn(c.(*net.UnixConn))
		_, _, _ = conn.Read(wire.MaxRequest, false)
		_ = conn.Write(granted(), -1)
		_, _, _ = conn.Read(wire.MaxRequest, false) // until the client closes
		_ = conn.Close()
	}()
	s, err := client.Open(testContext(t), socket, client.Options{Lock: wire.RW})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	<-done
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err = client.Open(ctx, socket, client.Options{Lock: wire.RW})
	require.ErrorIs(t, err, client.ErrTimeout)
	require.ErrorContains(t, err, "no such file", "it tells what it has seen")
}

func TestCloseEndsCallsThatWait(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	connect(t, w.client(nil), wire.RW, wire.RW)
	c := w.client(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Connect(context.Background(), wire.RO, nil)
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return c.Session() == nil && !t.Failed()
	}, deadline, tick, "looking does not wait for it")
	require.NoError(t, c.Close())
	select {
	case err := <-failed:
		require.ErrorIs(t, err, client.ErrState)
	case <-time.After(deadline):
		t.Fatal("it waits on")
	}
}

// A commit that is done stays done, whatever happens before the writer is a
// reader.
func TestACommitWithoutAReadersSessionIsTakenUpAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		after string // the allocation's ID then
		want  error
	}{
		"the layout is there":   {"a", nil},
		"another was committed": {"b", client.ErrStaleLayout},
	} {
		t.Run(name, func(t *testing.T) {
			var committed, refused atomic.Bool
			socket := fakeServer(t, func(m wire.Message) (wire.Message, int) {
				switch m := m.(type) {
				case *wire.HandshakeRequest:
					if m.LockType == wire.RW {
						return granted(), -1
					}
					if refused.CompareAndSwap(false, true) {
						return &wire.HandshakeResponse{Code: wire.CodeTimeout}, -1
					}
					return &wire.HandshakeResponse{Success: true, Committed: true, GrantedLockType: wire.RO, MemoryLayoutHash: "aa"}, -1
				case *wire.ListAllocationsRequest:
					id := "a"
					if committed.Load() {
						id = tc.after
					}
					return &wire.ListAllocationsResponse{Allocations: []wire.GetAllocationResponse{{AllocationID: id, Size: 1, AlignedSize: 2}}}, -1
				case *wire.CommitRequest:
					committed.Store(true)
					return &wire.CommitResponse{Success: true}, -1
				}
				return nil, -1
			})
			w := newWorld(t, "", 0)
			c, err := client.New(client.Config{Socket: socket, Space: w.space})
			require.NoError(t, err)
			defer c.Close()
			ctx := testContext(t)
			_, err = c.Connect(ctx, wire.RW, nil)
			require.NoError(t, err)
			_, err = c.Commit(ctx)
			require.ErrorIs(t, err, client.ErrCommitted)
			require.ErrorIs(t, err, client.ErrTimeout)
			require.ErrorIs(t, c.Unmap(ctx), client.ErrState, "nobody knows the hash yet")
			err = c.Reconnect(ctx)
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "aa", c.Hash())
			require.NoError(t, c.Unmap(ctx))
			require.NoError(t, c.Remap(ctx))
		})
	}
}
