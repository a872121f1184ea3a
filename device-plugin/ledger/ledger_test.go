package ledger_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/wire"
	"remuda/device-plugin/ledger"
)

// serve listens at a socket and answers each connection with handle.
func serve(t *testing.T, path string, handle func(*wire.Conn)) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			raw, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.NewConn(raw)
			if handle != nil {
				handle(c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

func answer(t *testing.T, reply wire.Message) func(*wire.Conn) {
	return func(c *wire.Conn) {
		m, _, err := c.Read(1<<16, false)
		if err == nil {
			require.IsType(t, &wire.GetRuntimeStateRequest{}, m)
			require.NoError(t, c.Write(reply, -1))
		}
	}
}

func TestRead(t *testing.T) {
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	serve(t, filepath.Join(dir, "gms_GPU-1_weights.sock"), answer(t, &wire.GetRuntimeStateResponse{
		State: wire.StateRO, ROSessionCount: 2, WaitingWriters: 1, Committed: true, AllocationCount: 7}))
	serve(t, filepath.Join(dir, "gms_GPU-1_kv_cache.sock"), answer(t, &wire.GetRuntimeStateResponse{State: wire.StateEmpty}))
	serve(t, filepath.Join(dir, "gms_GPU-2_weights.sock"), answer(t, &wire.ErrorResponse{Error: "no"}))
	hang := make(chan struct{})
	serve(t, filepath.Join(dir, "gms_GPU-3_weights.sock"), func(*wire.Conn) { <-hang })
	defer close(hang)
	// A socket whose server is gone, a file that is none, and what is no name.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "gms_GPU-4_weights.sock"), Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	for _, name := range []string{"gms_GPU-5_weights.sock", "gms_.sock", "gms_GPU.sock", "other"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	got, err := ledger.Read(t.Context(), dir) // which waits for the one that hangs, but not for ever
	require.NoError(t, err)
	require.Len(t, got, 6)
	require.Equal(t, ledger.State{GPU: "GPU-1", Tag: "kv_cache", Lock: "EMPTY"}, got[0])
	require.Equal(t, ledger.State{GPU: "GPU-1", Tag: "weights", Lock: "RO", Committed: true, Readers: 2, Waiting: 1, Allocations: 7}, got[1])
	for i, want := range []string{"no", "deadline", "refused", "refused"} {
		require.Contains(t, got[2+i].Err, want)
		require.Empty(t, got[2+i].Lock)
	}
}

func TestReadWithoutDirectory(t *testing.T) {
	got, err := ledger.Read(context.Background(), filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	require.Empty(t, got)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = ledger.Read(context.Background(), file)
	require.Error(t, err)
}

func TestSocketName(t *testing.T) {
	gpu, tag, ok := ledger.ParseSocketName(ledger.SocketName("GPU-1", "kv_cache"))
	require.True(t, ok)
	require.Equal(t, "GPU-1 kv_cache", gpu+" "+tag)
	_, _, ok = ledger.ParseSocketName(ledger.SocketName("GPU-1", "\xff"))
	require.False(t, ok, "a name that is no UTF-8 would make a metric's label that panics")
}
