package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

const (
	gib = 1 << 30
	// piece is how large one allocation is, as a layer of a large model.
	piece = 64 * mib
	page  = 4096
	// benchTime is far more than a benchmark takes.
	benchTime = 10 * time.Minute
)

// benchServer starts a server in a process of its own.
func benchServer(b *testing.B) (socket string) {
	b.Helper()
	dir := shortDir(b)
	start(b, "server", dir, "")
	return gms.SocketPath(dir, uuid)
}

// needMemory skips where the machine has less to give, in bytes.
func needMemory(b *testing.B, bytes uint64) {
	b.Helper()
	f, err := os.Open("/proc/meminfo")
	require.NoError(b, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib uint64
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); err == nil {
			if have := kib << 10; have < bytes+2*gib {
				b.Skipf("%.1f GiB of memory are available, %.1f and 2 to spare are needed", float64(have)/gib, float64(bytes)/gib)
			}
			return
		}
	}
	b.Fatal("/proc/meminfo does not tell what is available")
}

// needCached skips where the kernel does not keep the whole file in memory, as
// under the memory limit of a cgroup.
func needCached(b *testing.B, f *os.File, size int) {
	b.Helper()
	var stat unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: uint64(size)}, &stat, 0); err != nil {
		b.Skipf("cannot tell whether the file is cached: %v", err)
	}
	if have := stat.Cache * uint64(os.Getpagesize()); have < uint64(size) {
		b.Skipf("only %.1f of %.1f GiB of the file stay in the page cache", float64(have)/gib, float64(size)/gib)
	}
}

// touch reads a byte of every page on all CPUs, as who uses the weights does.
func touch(all [][]byte) (sum uint64) {
	var wg sync.WaitGroup
	sums := make([]uint64, runtime.GOMAXPROCS(0))
	for i := range sums {
		wg.Go(func() {
			for j := i; j < len(all); j += len(sums) {
				for at := 0; at < len(all[j]); at += page {
					sums[i] += uint64(all[j][at])
				}
			}
		})
	}
	wg.Wait()
	for _, s := range sums {
		sum += s
	}
	return sum
}

// mark writes a byte to every page, and tells what touch will find.
func mark(b []byte) (sum uint64) {
	for at := 0; at < len(b); at += page {
		b[at] = byte(at/page) | 1
		sum += uint64(b[at])
	}
	return sum
}

// BenchmarkImport measures how long an engine takes to have committed weights
// that it can read: "mapped" until the last mapping is there, "touched" until
// every page was read as well. "pagecache" is what an engine does without the
// service: it reads the file, which is cached, into private memory on all CPUs.
func BenchmarkImport(b *testing.B) {
	for _, size := range []int{1 * gib, 8 * gib} {
		name := fmt.Sprintf("%dGiB", size/gib)
		b.Run("gms/mapped/"+name, func(b *testing.B) { benchmarkImport(b, size, false) })
		b.Run("gms/touched/"+name, func(b *testing.B) { benchmarkImport(b, size, true) })
		b.Run("pagecache/"+name, func(b *testing.B) { benchmarkPageCache(b, size) })
	}
}

func benchmarkImport(b *testing.B, size int, touched bool) {
	needMemory(b, uint64(size))
	ctx, cancel := context.WithTimeout(context.Background(), benchTime)
	defer cancel()
	socket := benchServer(b)
	space := host.NewSpace()
	open := func(lock wire.LockType) *client.Client {
		c, err := client.New(client.Config{Socket: socket, Space: space})
		require.NoError(b, err)
		_, err = c.Connect(ctx, lock, nil)
		require.NoError(b, err)
		return c
	}
	writer := open(wire.RW)
	want := uint64(0)
	for range size / piece {
		a, err := writer.Session().Allocate(ctx, piece, "weights")
		require.NoError(b, err)
		m, err := writer.Map(ctx, a.ID)
		require.NoError(b, err)
		want += mark(m.Bytes())
	}
	_, err := writer.Commit(ctx)
	require.NoError(b, err)
	require.NoError(b, writer.Close())

	b.SetBytes(int64(size))
	b.ResetTimer()
	for range b.N {
		c := open(wire.RO)
		list, err := c.Session().List(ctx, "")
		require.NoError(b, err)
		all := make([][]byte, len(list))
		for i, a := range list {
			m, err := c.Map(ctx, a.ID)
			require.NoError(b, err)
			all[i] = m.Bytes()
		}
		if touched {
			require.Equal(b, want, touch(all))
		}
		b.StopTimer()
		require.NoError(b, c.Close())
		b.StartTimer()
	}
}

func benchmarkPageCache(b *testing.B, size int) {
	needMemory(b, 2*uint64(size))
	path := filepath.Join(b.TempDir(), "weights")
	f, err := os.Create(path)
	require.NoError(b, err)
	defer f.Close()
	buf, want := make([]byte, piece), uint64(0)
	sum := mark(buf)
	for range size / piece {
		_, err := f.Write(buf)
		require.NoError(b, err)
		want += sum
	}
	_, err = f.Seek(0, io.SeekStart)
	require.NoError(b, err)
	require.NoError(b, f.Sync()) // no writing back while it is measured
	for {                        // the last reader leaves it in the cache
		if _, err := f.Read(buf); err != nil {
			break
		}
	}

	b.SetBytes(int64(size))
	b.ResetTimer()
	for range b.N {
		needCached(b, f, size)
		data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		require.NoError(b, err)
		var wg sync.WaitGroup
		n := runtime.GOMAXPROCS(0)
		for i := range n {
			wg.Go(func() {
				from, to := size/n*i, size/n*(i+1)
				for at := from; at < to; {
					m, err := f.ReadAt(data[at:min(at+16*mib, to)], int64(at))
					if err != nil {
						b.Error(err)
						return
					}
					at += m
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		require.Equal(b, want, touch([][]byte{data}))
		needCached(b, f, size) // all along
		require.NoError(b, unix.Munmap(data))
		b.StartTimer()
	}
}

// BenchmarkMetadataGet measures small requests of one session, each after the
// answer to the last.
func BenchmarkMetadataGet(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), benchTime)
	defer cancel()
	s, err := client.Open(ctx, benchServer(b), client.Options{Lock: wire.RW})
	require.NoError(b, err)
	defer s.Close()
	a, err := s.Allocate(ctx, 1, "")
	require.NoError(b, err)
	const keys = 1000
	for i := range keys {
		require.NoError(b, s.PutMetadata(ctx, fmt.Sprintf("model.layers.%d.weight", i), client.Metadata{AllocationID: a.ID, Value: []byte(strings.Repeat("x", 64))}))
	}
	times := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		_, found, err := s.GetMetadata(ctx, fmt.Sprintf("model.layers.%d.weight", i%keys))
		times = append(times, time.Since(began))
		if err != nil || !found {
			b.Fatal(found, err)
		}
	}
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkSession measures a reader's session, from the connection to its end.
func BenchmarkSession(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), benchTime)
	defer cancel()
	socket := benchServer(b)
	writer, err := client.Open(ctx, socket, client.Options{Lock: wire.RW})
	require.NoError(b, err)
	require.NoError(b, writer.Commit(ctx))
	b.ResetTimer()
	for range b.N {
		s, err := client.Open(ctx, socket, client.Options{Lock: wire.RO})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sessions/s")
}
