package host_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/host"
)

const (
	mib = 1 << 20
	// patience bounds every wait of these tests; none is expected to come near it.
	patience = time.Minute
)

// childEnv makes this program a client that maps descriptor 3.
const childEnv = "REMUDA_TEST_HOST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

// child maps its descriptor, closes it, says so and stays until its input ends.
func child() {
	data, err := unix.Mmap(3, 0, 4*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		os.Exit(1)
	}
	data[0]++
	_ = unix.Close(3)
	_, _ = os.Stdout.WriteString("mapped\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startChild starts a process that maps what fd is of. fd is closed here.
func startChild(t *testing.T, fd int) *exec.Cmd {
	t.Helper()
	f := os.NewFile(uintptr(fd), "export")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.ExtraFiles = []*os.File{f}
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.NoError(t, f.Close())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "mapped\n", line)
	return cmd
}

func open(t *testing.T, cfg host.Config) *host.Backend {
	t.Helper()
	b, err := host.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func allocate(t *testing.T, b backend.Backend, size uint64) backend.Memory {
	t.Helper()
	m, err := b.Allocate(size)
	require.NoError(t, err)
	require.Equal(t, size, m.Size())
	return m
}

func export(t *testing.T, m backend.Memory) int {
	t.Helper()
	fd, err := m.Export()
	require.NoError(t, err)
	return fd
}

func mapped(t *testing.T, fd int, size int) []byte {
	t.Helper()
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	return data
}

// falls waits until b uses want bytes.
func falls(t *testing.T, b backend.Backend, want uint64) {
	t.Helper()
	began := time.Now()
	require.Eventually(t, func() bool { return b.Used() == want }, patience, 200*time.Microsecond, "used: %d, want %d", b.Used(), want)
	t.Logf("noticed within %s", time.Since(began).Round(10*time.Microsecond))
}

// descriptors counts this process's open files.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := host.New(host.Config{Capacity: 3 * mib, SlowRelease: -1})
	require.ErrorContains(t, err, "Capacity")
	require.ErrorContains(t, err, "SlowRelease")
	_, err = host.New(host.Config{Granularity: 1000})
	require.ErrorContains(t, err, "Granularity")
}

func TestCapacity(t *testing.T) {
	b := open(t, host.Config{Capacity: 8 * mib})
	assert.EqualValues(t, host.DefaultGranularity, b.Granularity())
	assert.EqualValues(t, 8*mib, b.Capacity())
	for _, size := range []uint64{0, 1, 3 * mib} {
		_, err := b.Allocate(size)
		require.Error(t, err, "%d bytes", size)
		require.NotErrorIs(t, err, backend.ErrOutOfMemory)
	}
	whole := allocate(t, b, 8*mib)
	_, err := b.Allocate(2 * mib)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.NoError(t, whole.Release())
	require.NoError(t, whole.Release(), "a second release does nothing")
	assert.Zero(t, b.Used())
	_, err = whole.Export()
	require.ErrorIs(t, err, backend.ErrReleased)
	_, err = b.Allocate(1 << 63)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	allocate(t, b, 8*mib)
}

func TestConcurrentAllocationsStayWithinCapacity(t *testing.T) {
	b := open(t, host.Config{Capacity: 16 * mib})
	var got, refused sync.Map
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if m, err := b.Allocate(2 * mib); err == nil {
				got.Store(i, m)
			} else {
				refused.Store(i, err)
			}
		})
	}
	wg.Wait()
	count := func(m *sync.Map) (n int) {
		m.Range(func(any, any) bool { n++; return true })
		return n
	}
	assert.Equal(t, 8, count(&got))
	assert.Equal(t, 24, count(&refused))
	assert.EqualValues(t, 16*mib, b.Used())
}

func TestExportsShareBytesAndCannotBeShrunk(t *testing.T) {
	b := open(t, host.Config{})
	assert.Zero(t, b.Capacity())
	m := allocate(t, b, 4*mib)
	one, two := export(t, m), export(t, m)
	a, c := mapped(t, one, 4*mib), mapped(t, two, 4*mib)
	a[3*mib] = 42
	assert.EqualValues(t, 42, c[3*mib])
	require.ErrorIs(t, unix.Ftruncate(one, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(one, 8*mib), unix.EPERM)
	flags, err := unix.FcntlInt(uintptr(one), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.NotZero(t, flags&unix.FD_CLOEXEC)
	require.NoError(t, unix.Munmap(a))
	require.NoError(t, unix.Munmap(c))
	require.NoError(t, unix.Close(one))
	require.NoError(t, unix.Close(two))
}

func TestMemoryIsUsedUntilTheLastProcessIsGone(t *testing.T) {
	b := open(t, host.Config{Capacity: 4 * mib})
	m := allocate(t, b, 4*mib)
	first, second := startChild(t, export(t, m)), startChild(t, export(t, m))
	require.NoError(t, m.Release())
	assert.EqualValues(t, 4*mib, b.Used())
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	_, err := b.Allocate(2 * mib)
	require.ErrorIs(t, err, backend.ErrOutOfMemory, "the second process still has it")
	require.NoError(t, second.Process.Kill())
	_ = second.Wait()
	falls(t, b, 0)
	allocate(t, b, 4*mib)
}

func TestAllocateSeesADeathAtOnce(t *testing.T) {
	b := open(t, host.Config{Capacity: 4 * mib})
	for range 50 {
		m := allocate(t, b, 4*mib)
		fd := export(t, m)
		require.NoError(t, m.Release())
		require.NoError(t, unix.Close(fd))
		require.NoError(t, allocate(t, b, 4*mib).Release())
	}
}

func TestMappingsAndQueuedDescriptorsAreUse(t *testing.T) {
	b := open(t, host.Config{})
	m := allocate(t, b, 2*mib)
	fd := export(t, m)
	data := mapped(t, fd, 2*mib)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fd), nil, 0))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, m.Release())
	assert.EqualValues(t, 2*mib, b.Used(), "mapped and queued")
	require.NoError(t, unix.Munmap(data))
	assert.EqualValues(t, 2*mib, b.Used(), "queued")
	require.NoError(t, unix.Close(pair[0]))
	require.NoError(t, unix.Close(pair[1]))
	falls(t, b, 0)
}

func TestSlowRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = time.Minute
		b := open(t, host.Config{SlowRelease: slow})
		one, two := allocate(t, b, 2*mib), allocate(t, b, 4*mib)
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, one.Release()) })
		wg.Go(func() { assert.NoError(t, two.Release()) })
		synctest.Wait()
		assert.EqualValues(t, 6*mib, b.Used(), "used while it is being released")
		allocate(t, b, 2*mib)
		assert.Zero(t, time.Since(began), "it does not wait")
		wg.Wait()
		assert.Equal(t, slow, time.Since(began), "releases run side by side")
		assert.EqualValues(t, 2*mib, b.Used())
	})
}

func TestCloseEndsSlowReleases(t *testing.T) {
	before := descriptors(t)
	b, err := host.New(host.Config{SlowRelease: time.Hour})
	require.NoError(t, err)
	m := allocate(t, b, 2*mib)
	held := export(t, allocate(t, b, 2*mib))
	done := make(chan error, 1)
	go func() { done <- m.Release() }()
	require.Eventually(t, func() bool {
		fd, err := m.Export()
		if err == nil {
			_ = unix.Close(fd)
		}
		return err != nil
	}, patience, time.Millisecond, "the release has begun")
	require.NoError(t, b.Close())
	require.NoError(t, <-done)
	_, err = b.Allocate(2 * mib)
	require.ErrorIs(t, err, backend.ErrReleased)
	data := mapped(t, held, 2*mib)
	data[0] = 1
	require.NoError(t, unix.Munmap(data), "what others hold lives on")
	require.NoError(t, unix.Close(held))
	require.NoError(t, b.Close(), "a second close does nothing")
	assert.Equal(t, before, descriptors(t))
}

func TestRestore(t *testing.T) {
	before := descriptors(t)
	crashed, err := host.New(host.Config{})
	require.NoError(t, err)
	m := allocate(t, crashed, 4*mib)
	kept := export(t, m)
	data := mapped(t, kept, 4*mib)
	data[5] = 55
	require.NoError(t, unix.Munmap(data))
	require.NoError(t, crashed.Close())

	b, err := host.New(host.Config{Capacity: 4 * mib})
	require.NoError(t, err)
	dup := func() int {
		fd, err := unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		return fd
	}
	m, err = b.Restore(dup(), 4*mib)
	require.NoError(t, err)
	_, err = b.Allocate(2 * mib)
	require.ErrorIs(t, err, backend.ErrOutOfMemory, "what is restored is used")
	fd := export(t, m)
	data = mapped(t, fd, 4*mib)
	assert.EqualValues(t, 55, data[5])
	require.NoError(t, unix.Munmap(data))
	require.NoError(t, unix.Close(fd))

	_, err = b.Restore(dup(), 2*mib)
	require.ErrorContains(t, err, "4194304 bytes", "the wrong size")
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(plain, 2*mib))
	_, err = b.Restore(plain, 2*mib)
	require.ErrorContains(t, err, "not sealed")
	assert.EqualValues(t, 4*mib, b.Used(), "what fails is not counted")

	require.NoError(t, m.Release())
	assert.EqualValues(t, 4*mib, b.Used(), "the keeper still has it")
	require.NoError(t, unix.Close(kept))
	falls(t, b, 0)
	require.NoError(t, b.Close())
	assert.Equal(t, before, descriptors(t), "no descriptor is left open")
}

func TestThousandsOfOrphansAreNoticed(t *testing.T) {
	const count = 4000
	b := open(t, host.Config{Granularity: 4096})
	fds := make([]int, count)
	for i := range fds {
		m := allocate(t, b, 4096)
		fds[i] = export(t, m)
		require.NoError(t, m.Release())
	}
	assert.EqualValues(t, count*4096, b.Used())
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
	falls(t, b, 0)
}
