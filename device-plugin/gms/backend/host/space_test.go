package host_test

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/host"
	"remuda/internal/testkit/long"
)

func TestSpaceKeepsAddresses(t *testing.T) {
	b := open(t, host.Config{})
	m := allocate(t, b, 4*mib)
	s := host.NewSpace()
	addr, err := s.Reserve(4 * mib)
	require.NoError(t, err)
	assert.Nil(t, s.Bytes(addr, 4*mib))
	require.ErrorContains(t, s.Read(addr, make([]byte, 1)), "nothing is mapped")
	fd := export(t, m)
	require.NoError(t, s.Map(addr, 4*mib, fd, true))
	require.ErrorContains(t, s.Map(addr, 4*mib, fd, true), "something is mapped")
	require.ErrorContains(t, s.Free(addr, 4*mib), "something is mapped")
	require.NoError(t, s.Write(addr+mib, []byte("weights")))
	require.NoError(t, s.Sync())
	assert.Equal(t, "weights", string(s.Bytes(addr, 4*mib)[mib:mib+7]))
	require.ErrorContains(t, s.Write(addr+4*mib-1, []byte("xy")), "no mapping", "over the end")
	require.NoError(t, s.Write(addr+4*mib-1, []byte("x")))
	require.NoError(t, s.Protect(addr, 4*mib, false))
	require.ErrorContains(t, s.Write(addr, []byte("x")), "may not be written")
	require.NoError(t, s.Unmap(addr, 4*mib))
	require.ErrorContains(t, s.Unmap(addr, 4*mib), "nothing is mapped")
	require.ErrorContains(t, s.Protect(addr, 4*mib, true), "nothing is mapped")

	// The addresses are still ours: nothing else is put there.
	other, err := unix.Mmap(-1, 0, 4*mib, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	require.NoError(t, unix.Munmap(other))
	require.NoError(t, s.Map(addr, 4*mib, fd, false))
	got := make([]byte, 7)
	require.NoError(t, s.Read(addr+mib, got))
	assert.Equal(t, "weights", string(got))
	require.NoError(t, s.Unmap(addr, 4*mib))
	require.NoError(t, s.Free(addr, 4*mib))
	require.Error(t, s.Free(addr, 4*mib))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, m.Release())
	assert.Zero(t, b.Used(), "nothing maps it any more")
}

func TestSpaceRefusesMemoryThatCouldKillTheProcess(t *testing.T) {
	s := host.NewSpace()
	addr, err := s.Reserve(2 * mib)
	require.NoError(t, err)
	fd, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.ErrorContains(t, s.Map(addr, 2*mib, fd, false), "0 bytes")
	require.NoError(t, unix.Ftruncate(fd, 2*mib))
	require.ErrorContains(t, s.Map(addr, 2*mib, fd, false), "not sealed")
	require.ErrorContains(t, s.Map(addr, mib, fd, false), "not what was reserved")
	require.NoError(t, s.Free(addr, 2*mib))
}

// A copy and an unmap at the same time: one waits for the other, and no access
// faults.
func TestNothingIsUnmappedUnderACopy(t *testing.T) {
	b := open(t, host.Config{})
	m := allocate(t, b, 4*mib)
	fd := export(t, m)
	s := host.NewSpace()
	addr, err := s.Reserve(4 * mib)
	require.NoError(t, err)
	stop := make(chan struct{})
	var copied atomic.Int64
	var copying sync.WaitGroup
	for _, f := range []func(uintptr, []byte) error{s.Write, s.Read} {
		copying.Go(func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() { assert.Nil(t, recover()) }()
			buf := make([]byte, 4*mib)
			for {
				select {
				case <-stop:
					return
				default:
					if f(addr, buf) == nil { // or nothing is mapped
						copied.Add(1)
					}
				}
			}
		})
	}
	copies := int64(long.Pick(100, 1000))
	for deadline := time.Now().Add(patience); copied.Load() < copies && time.Now().Before(deadline) && !t.Failed(); {
		require.NoError(t, s.Map(addr, 4*mib, fd, true))
		require.NoError(t, s.Write(addr, make([]byte, 1)))
		runtime.Gosched()
		require.NoError(t, s.Unmap(addr, 4*mib))
	}
	close(stop)
	copying.Wait()
	require.GreaterOrEqual(t, copied.Load(), copies)
	require.NoError(t, s.Free(addr, 4*mib))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, m.Release())
}
