package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/offload"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
	"remuda/lockd/engine"
)

func TestGMSClearUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"a", "b"}, {"-timeout", "0s", "a"}} {
		r := remuda(t, append([]string{"gms", "clear"}, args...)...)
		require.Equal(t, exitUsage, r.code, r.errout)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("{"), 0o600))
	r := remuda(t, "gms", "clear", bad)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.errout, "read the record")
	r = remuda(t, "gms", "clear", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitOK, r.code, r.errout)
}

func TestGMSClear(t *testing.T) {
	dir, err := os.MkdirTemp("", "clear") // a short path
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := host.New(host.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs = dir, []gms.GPU{{UUID: "GPU-1", Backend: b}}
	gmsserve.Start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	socket := filepath.Join(dir, "gms_GPU-1_weights.sock")
	c, err := client.New(client.Config{Socket: socket, Space: host.NewSpace()})
	require.NoError(t, err)
	_, err = c.Connect(ctx, wire.RW, nil)
	require.NoError(t, err)
	_, err = c.Session().Allocate(ctx, 2<<20, "weights")
	require.NoError(t, err)
	hash, err := c.Commit(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	note := filepath.Join(dir, "note")
	raw, err := json.Marshal(engine.Record{Wanted: engine.Hot, Layouts: []offload.Layout{{Socket: filepath.Join(dir, "gone.sock"), Hash: hash}, {Socket: socket, Hash: hash}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(note, raw, 0o600))

	require.NotZero(t, b.Used())
	r := remuda(t, "gms", "clear", note)
	require.Equal(t, exitOK, r.code, r.errout)
	require.Equal(t, socket+": cleared\n", r.out)
	require.Contains(t, r.errout, "gone.sock: not cleared")
	require.Eventually(t, func() bool { return b.Used() == 0 }, 10*time.Second, time.Millisecond)
}
