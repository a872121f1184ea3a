package offload_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/offload"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
)

// BenchmarkWarm takes 1 GiB in 64 allocations to this process's memory and back: what a
// parked pair does when it goes to sleep, and before its engine wakes.
func BenchmarkWarm(b *testing.B) {
	const pieces, piece = 64, 16 * mib
	dir, err := os.MkdirTemp("", "warm")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	memory, err := host.New(host.Config{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, memory.Close()) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs = dir, []gms.GPU{{UUID: "GPU-0", Backend: memory}}
	gmsserve.Start(b, cfg)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	address := client.Address(gms.NodeSocketPath(dir), "GPU-0", "m@1", "g")
	c, err := client.New(client.Config{Socket: address, Space: host.NewSpace()})
	require.NoError(b, err)
	defer c.Close()
	_, err = c.Connect(ctx, wire.RW, nil)
	require.NoError(b, err)
	for i := range pieces {
		a, err := c.Session().Allocate(ctx, piece, "weights")
		require.NoError(b, err)
		m, err := c.Map(ctx, a.ID)
		require.NoError(b, err)
		copy(m.Bytes(), fmt.Sprint("piece ", i))
		for at := 0; at < piece; at += 4096 {
			m.Bytes()[at] |= 1
		}
	}
	_, err = c.Commit(ctx)
	require.NoError(b, err)
	require.NoError(b, c.Unmap(ctx))
	o, err := offload.New(offload.Config{Sockets: []string{address}, Space: hostSpace})
	require.NoError(b, err)
	var save, restore, remap time.Duration
	b.SetBytes(pieces * piece)
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		saved, err := o.Save(ctx)
		require.NoError(b, err)
		save += time.Since(began)
		_, err = o.Vacate(ctx)
		require.NoError(b, err)
		began = time.Now()
		require.NoError(b, o.Restore(ctx, saved))
		restore += time.Since(began)
		began = time.Now()
		require.NoError(b, c.Remap(ctx))
		remap += time.Since(began)
		require.NoError(b, c.Unmap(ctx))
		require.NoError(b, saved.Free())
	}
	n := float64(b.N)
	b.ReportMetric(save.Seconds()*1000/n, "save-ms")
	b.ReportMetric(restore.Seconds()*1000/n, "restore-ms")
	b.ReportMetric(remap.Seconds()*1000/n, "remap-ms")
}
