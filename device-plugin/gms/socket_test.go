package gms_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmstest"
	"remuda/internal/testkit/proclog"
	"remuda/internal/unixsock"
)

func run(t *testing.T, cfg gms.Config) error {
	t.Helper()
	s, err := gms.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.Run(ctx)
}

func TestSocketIsPrivateAndGoesWithTheService(t *testing.T) {
	cfg := config(t)
	cfg.SocketDir = filepath.Join(cfg.SocketDir, "made")
	s := start(t, cfg)
	for _, tag := range []string{weights, kvCache, modelA} {
		info, err := os.Stat(s.path(tag))
		require.NoError(t, err)
		require.Equal(t, os.ModeSocket|0o600, info.Mode())
	}
	s.end()
	require.NoFileExists(t, s.path(weights))
}

// TestLiveSocketIsRefused: of a server with our lock and of one without it, for any
// of its sockets; and nothing of it is touched.
func TestLiveSocketIsRefused(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	id, _ := s.commitOne(weights, "x")
	other := cfg
	other.GPUs = []gms.GPU{{UUID: "GPU-2", Backend: gmstest.NewBackend(0)}, cfg.GPUs[0]}
	require.ErrorIs(t, run(t, other), unixsock.ErrInUse)
	require.NoFileExists(t, gms.SocketPath(cfg.SocketDir, "GPU-2"))
	s.holds(weights, id, "x")

	cfg = config(t)
	path := gms.SocketPath(cfg.SocketDir, uuid)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, run(t, cfg), unixsock.ErrInUse)
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "it is still there")
	require.NoError(t, c.Close())
}

func TestDeadSocketIsReplaced(t *testing.T) {
	cfg := config(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: gms.SocketPath(cfg.SocketDir, uuid), Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	s := start(t, cfg)
	require.Equal(t, wire.StateEmpty, s.state(weights).State)
}

func TestFileThatIsNoSocketIsLeftAlone(t *testing.T) {
	cfg := config(t)
	path := gms.SocketPath(cfg.SocketDir, uuid)
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	require.ErrorContains(t, run(t, cfg), "the path is a file that is not a socket")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(raw))
}

// TestOneOfManyServersWins: they start at the same time over a dead socket.
func TestOneOfManyServersWins(t *testing.T) {
	cfg := config(t)
	for range 5 {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: gms.SocketPath(cfg.SocketDir, uuid), Net: "unix"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		const n = 6
		ready, ended := make(chan struct{}, n), make(chan error, n)
		for range n {
			c := cfg
			c.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(0)}}
			c.OnReady = func() { ready <- struct{}{} }
			s, err := gms.New(c)
			require.NoError(t, err)
			all.Go(func() { ended <- s.Run(ctx) })
		}
		for range n - 1 {
			require.ErrorIs(t, <-ended, unixsock.ErrInUse)
		}
		<-ready
		conn, err := wire.Dial(gms.SocketPath(cfg.SocketDir, uuid))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		stop()
		all.Wait()
		require.NoError(t, <-ended)
		require.Empty(t, ready)
	}
}

// TestServiceEndsWhenASocketIsRemoved: nobody could reach it any more.
func TestServiceEndsWhenASocketIsRemoved(t *testing.T) {
	s := start(t, config(t))
	r := s.open(kvCache, wire.RW)
	require.NoError(t, os.Remove(s.path(weights)))
	require.ErrorContains(t, s.wait(), "was removed or replaced")
	r.closed()
}

// TestAnotherServiceIsLeftAlone: somebody has emptied the directory, and another
// service was started there before this one has noticed.
func TestAnotherServiceIsLeftAlone(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	for _, tag := range []string{weights, kvCache, modelA} {
		require.NoError(t, os.Remove(s.path(tag)))
		require.NoError(t, os.Remove(s.path(tag)+".lock"))
	}
	cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(0)}}
	other := start(t, cfg)
	require.ErrorContains(t, s.wait(), "was removed or replaced")
	for _, tag := range []string{weights, kvCache, modelA} {
		require.Equal(t, wire.StateEmpty, other.state(tag).State)
	}
}

func TestEndWithSessionsOfEveryKind(t *testing.T) {
	s := start(t, config(t))
	s.commitOne(weights, "x")
	reader := s.open(weights, wire.RO)
	waiter := s.hello(weights, wire.HandshakeRequest{LockType: wire.RW})
	writer := s.open(kvCache, wire.RW)
	writer.allocate(62, "x")
	writer.post(&wire.AllocateRequest{Size: 1}) // waits for room
	silent := s.dial(weights)
	eventually(t, "the waiter waits", func() bool { return s.state(weights).WaitingWriters == 1 })
	eventually(t, "there is no room", func() bool { return s.metric("remuda_gms_oom_total", map[string]string{"tag": kvCache}) == 1 })
	s.end()
	for _, c := range []*client{reader, waiter, writer, silent} {
		c.closed()
	}
	live, _, _ := s.gpu.Counts()
	require.Equal(t, 1, live, "what is committed stays until the process ends")
}

// TestConnectionsAreBounded: those that are too many wait for their turn.
func TestConnectionsAreBounded(t *testing.T) {
	cfg := config(t)
	cfg.MaxConns = 2
	s := start(t, cfg)
	first, second := s.open(weights, wire.RW), s.open(kvCache, wire.RW)
	third := s.dial(weights).post(&wire.GetRuntimeStateRequest{})
	third.silent(30 * time.Millisecond)
	require.NotEmpty(t, second.allocate(1, "x").AllocationID, "who is in goes on")
	require.NoError(t, first.Close())
	require.IsType(t, &wire.GetRuntimeStateResponse{}, third.next())
}

// TestTenThousandConnections: as many as the limit are served at once, the log says so once, and
// who is in goes on.
func TestTenThousandConnections(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < 1<<14 { // both ends of a connection are in this process
		limit.Cur = 1 << 14
		limit.Max = max(limit.Max, limit.Cur)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), "it needs 16,384 open files")
	}
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	const full = "as many connections as are allowed"
	cfg, log := config(t), &proclog.Buffer{}
	cfg.Logger, cfg.FirstMessage = log.Logger(), time.Hour
	s := start(t, cfg)
	w := s.open(weights, wire.RW)
	before := descriptors()
	var open []net.Conn
	closeAll := func() {
		for _, c := range open {
			_ = c.Close()
		}
		open = nil
	}
	defer closeAll()
	for range 10_000 {
		c, err := net.Dial("unix", s.path(kvCache))
		for errors.Is(err, unix.EAGAIN) && !strings.Contains(log.String(), full) { // those before it are not accepted yet
			time.Sleep(time.Millisecond)
			c, err = net.Dial("unix", s.path(kvCache))
		}
		if errors.Is(err, unix.EAGAIN) { // as many wait as the kernel allows
			continue
		}
		require.NoError(t, err)
		open = append(open, c)
	}
	require.Greater(t, len(open), cfg.MaxConns)
	require.LessOrEqual(t, descriptors()-before-len(open), cfg.MaxConns)
	require.NotEmpty(t, w.allocate(1, "x").AllocationID)
	closeAll()
	require.NotNil(t, s.state(kvCache))
	require.Equal(t, 1, strings.Count(log.String(), full), log.String())
	require.Less(t, strings.Count(log.String(), "\n"), 100)
}

func TestSilentAndSlowClientsAreCutOff(t *testing.T) {
	cfg := config(t)
	cfg.FirstMessage, cfg.Frame = 50*time.Millisecond, time.Hour
	start(t, cfg).dial(weights).closed() // says nothing

	cfg = config(t)
	cfg.FirstMessage, cfg.Frame = time.Hour, 500*time.Millisecond // whole frames of clients here come in time
	s := start(t, cfg)
	half := s.dial(weights)
	_, err := half.raw.Write([]byte{0, 0})
	require.NoError(t, err)
	half.closed()

	w := s.open(weights, wire.RW)
	w.allocate(1, "x")
	w.silent(600 * time.Millisecond) // a session may be idle for as long as it likes
	_, err = w.raw.Write([]byte{0, 0, 0, 9, 0x81})
	require.NoError(t, err)
	w.closed() // but not within a frame
	eventually(t, "the layout is cleared", func() bool { return s.state(weights).AllocationCount == 0 })
}

// TestClientThatDoesNotReadHoldsUpNobody: and is cut off in the end, which aborts
// its layout.
func TestClientThatDoesNotReadHoldsUpNobody(t *testing.T) {
	cfg := config(t)
	cfg.Write = time.Second
	s := start(t, cfg)
	w := s.open(weights, wire.RW)
	a := w.allocate(1, "x")
	value := make([]byte, 1<<19)
	for _, key := range []string{"a", "b"} {
		ask[*wire.MetadataPutResponse](w, &wire.MetadataPutRequest{Key: key, AllocationID: a.AllocationID, Value: value})
	}
	began := time.Now()
	for range 20 {
		w.post(&wire.MetadataGetRequest{Key: "a"})
	}
	for range 10 { // others are served meanwhile, on the same layout too
		if !s.state(weights).HasRWSession {
			require.GreaterOrEqual(t, time.Since(began), cfg.Write, "it is cut off too early")
		}
		s.open(kvCache, wire.RW).commit()
	}
	eventually(t, "it is cut off", func() bool { return s.state(weights).State == wire.StateEmpty })
	require.Equal(t, 1.0, s.metric("remuda_gms_connections_cut_total", map[string]string{"reason": "timeout"}))
}

func TestReleaseErrorsAreNoEnd(t *testing.T) {
	s := start(t, config(t))
	s.gpu.Fail("release", errors.New("the driver is cross"))
	s.commitOne(weights, "x")
	s.open(weights, wire.RW).commit()
	eventually(t, "it was released", func() bool { _, released, _ := s.gpu.Counts(); return released == 1 })
}
