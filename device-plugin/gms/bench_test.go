package gms_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
	"remuda/internal/testkit/gmstest"
)

// serve runs a service for a benchmark, and returns the path of a socket.
func serve(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir = dir
	cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(0)}}
	gmsserve.Start(b, cfg)
	return gms.SocketPath(dir, uuid)
}

func exchange(b *testing.B, c *wire.Conn, m wire.Message) wire.Message {
	b.Helper()
	require.NoError(b, c.Write(m, -1))
	got, _, err := c.Read(0, false)
	require.NoError(b, err)
	return got
}

// BenchmarkMetadata is small calls of one session, one after the other.
func BenchmarkMetadata(b *testing.B) {
	c, err := wire.Dial(serve(b))
	require.NoError(b, err)
	defer func() { _ = c.Close() }()
	exchange(b, c, &wire.HandshakeRequest{LockType: wire.RW})
	a := exchange(b, c, &wire.AllocateRequest{Size: 1}).(*wire.AllocateResponse)
	exchange(b, c, &wire.MetadataPutRequest{Key: "model.layers.0.weight", AllocationID: a.AllocationID, Value: make([]byte, 200)})
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		exchange(b, c, &wire.MetadataGetRequest{Key: "model.layers.0.weight"})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// BenchmarkSessions is readers that come and go.
func BenchmarkSessions(b *testing.B) {
	path := serve(b)
	c, err := wire.Dial(path)
	require.NoError(b, err)
	exchange(b, c, &wire.HandshakeRequest{LockType: wire.RW})
	exchange(b, c, &wire.CommitRequest{})
	require.NoError(b, c.Close())
	n := 0
	for b.Loop() {
		c, err := wire.Dial(path)
		require.NoError(b, err)
		exchange(b, c, &wire.HandshakeRequest{LockType: wire.RO})
		require.NoError(b, c.Close())
		n++
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "sessions/s")
}
