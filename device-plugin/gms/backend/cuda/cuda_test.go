package cuda_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/internal/testkit/cudatest"
)

const mib = 1 << 20

// childEnv makes this program a client of the library that it names: it imports
// descriptor 3, answers with what is there and, when told, writes.
const childEnv = "REMUDA_TEST_CUDA_CHILD"

func TestMain(m *testing.M) {
	if library := os.Getenv(childEnv); library != "" {
		if err := child(library); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(library string) error {
	s, err := cuda.NewSpace(cuda.Config{Library: library, GPU: cudatest.UUIDs[0]})
	if err != nil {
		return err
	}
	addr, err := s.Reserve(2 * mib)
	if err != nil {
		return err
	}
	if err := s.Map(addr, 2*mib, 3, true); err != nil {
		return err
	}
	_ = unix.Close(3)
	got := make([]byte, 16)
	if err := s.Read(addr, got); err != nil {
		return err
	}
	fmt.Printf("%s\n", got)
	if err := s.Write(addr, []byte("from the child  ")); err != nil {
		return err
	}
	return s.Close()
}

// fake is the library as the tests steer it.
type fake struct {
	path  string
	fail  func(name string, code int32)
	count func(what int32) int32
}

func build(t *testing.T) *fake {
	t.Helper()
	f := &fake{path: cudatest.Build(t)}
	library, err := purego.Dlopen(f.path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	purego.RegisterLibFunc(&f.fail, library, "fake_fail")
	purego.RegisterLibFunc(&f.count, library, "fake_count")
	return f
}

func (f *fake) config() cuda.Config { return cuda.Config{Library: f.path, GPU: cudatest.UUIDs[1]} }

// left checks what is open in the driver.
func (f *fake) left(t *testing.T, handles, reservations, mappings, contexts int) {
	t.Helper()
	assert.EqualValues(t, handles, f.count('h'), "handles")
	assert.EqualValues(t, reservations, f.count('r'), "reservations")
	assert.EqualValues(t, mappings, f.count('m'), "mappings")
	assert.EqualValues(t, contexts, f.count('c'), "contexts")
}

func openBackend(t *testing.T, f *fake) *cuda.Backend {
	t.Helper()
	b, err := cuda.New(f.config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func openSpace(t *testing.T, f *fake) *cuda.Space {
	t.Helper()
	s, err := cuda.NewSpace(f.config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func export(t *testing.T, m backend.Memory) int {
	t.Helper()
	fd, err := m.Export()
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	return fd
}

func TestNoDriver(t *testing.T) {
	for name, do := range map[string]func(library string) error{
		"devices": func(l string) error { _, err := cuda.Devices(l); return err },
		"server":  func(l string) error { _, err := cuda.New(cuda.Config{Library: l, GPU: cudatest.UUIDs[0]}); return err },
		"client": func(l string) error {
			_, err := cuda.NewSpace(cuda.Config{Library: l, GPU: cudatest.UUIDs[0]})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "libcuda.so.1")
			err := do(path)
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "must be installed")

			err = do(cudatest.Build(t, "-DWITHOUT_INFO"))
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorContains(t, err, "lacks cuMemGetInfo_v2")

			t.Setenv("FAKECUDA_GPUS", "0")
			err = do(cudatest.Build(t))
			require.ErrorIs(t, err, cuda.ErrNoDriver)
			require.ErrorContains(t, err, "cuInit: error 100 (CUDA_ERROR_NO_DEVICE)")
		})
	}
}

func TestDevices(t *testing.T) {
	f := build(t)
	list, err := cuda.Devices(f.path)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, d := range list {
		assert.Equal(t, i, d.Ordinal)
		assert.Equal(t, cudatest.UUIDs[i], d.UUID)
		assert.Equal(t, fmt.Sprintf("Fake GPU %d", i), d.Name)
		assert.EqualValues(t, 64*mib, d.Memory)
	}
	_, err = cuda.New(cuda.Config{Library: f.path, GPU: "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"})
	require.ErrorIs(t, err, cuda.ErrNoGPU)
	require.ErrorContains(t, err, cudatest.UUIDs[1], "it tells what there is")
	_, err = cuda.New(cuda.Config{Library: f.path, GPU: "0"})
	require.ErrorContains(t, err, "must be a UUID")
}

func TestAllocate(t *testing.T) {
	f := build(t)
	b := openBackend(t, f)
	assert.EqualValues(t, 2*mib, b.Granularity())
	assert.EqualValues(t, 64*mib, b.Capacity())
	for _, size := range []uint64{0, 1, 3 * mib} {
		_, err := b.Allocate(size)
		require.ErrorContains(t, err, "granularity")
	}
	m, err := b.Allocate(62 * mib)
	require.NoError(t, err)
	assert.EqualValues(t, 62*mib, m.Size())
	assert.EqualValues(t, 62*mib, b.Used())
	_, err = b.Allocate(4 * mib)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.ErrorContains(t, err, "cuMemCreate: error 2 (CUDA_ERROR_OUT_OF_MEMORY)")
	f.fail("cuMemCreate", 801)
	_, err = b.Allocate(2 * mib)
	require.NotErrorIs(t, err, backend.ErrOutOfMemory)
	var failed *cuda.Error
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, cuda.Error{Function: "cuMemCreate", Code: 801, Name: "CUDA_ERROR_NOT_SUPPORTED"}, *failed)
	f.fail("cuMemCreate", 4711)
	_, err = b.Allocate(2 * mib)
	require.ErrorContains(t, err, "cuMemCreate: error 4711 (unknown to the driver)")
	f.left(t, 1, 0, 0, 0)
	require.NoError(t, m.Release())
	require.NoError(t, m.Release(), "a second release does nothing")
	assert.Zero(t, b.Used())
	_, err = m.Export()
	require.ErrorIs(t, err, backend.ErrReleased)
	f.left(t, 0, 0, 0, 0)
	_, err = b.Allocate(2 * mib)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	f.left(t, 0, 0, 0, 0)
	_, err = b.Allocate(2 * mib)
	require.ErrorIs(t, err, backend.ErrReleased)
	f.left(t, 0, 0, 0, 0)
}

func TestMapWriteUnmapAndMapAgain(t *testing.T) {
	f := build(t)
	b := openBackend(t, f)
	m, err := b.Allocate(4 * mib)
	require.NoError(t, err)
	fd := export(t, m)
	s := openSpace(t, f)
	assert.EqualValues(t, 2*mib, s.Granularity())
	addr, err := s.Reserve(4 * mib)
	require.NoError(t, err)
	require.Error(t, s.Read(addr, make([]byte, 1)), "nothing is mapped yet")
	require.NoError(t, s.Map(addr, 4*mib, fd, true))
	f.left(t, 1, 1, 1, 1)
	require.NoError(t, s.Write(addr+mib, []byte("weights")))
	require.NoError(t, s.Write(addr, nil))
	require.NoError(t, s.Sync())
	require.NoError(t, s.Protect(addr, 4*mib, false))
	require.ErrorContains(t, s.Write(addr+mib, []byte("w")), "cuMemcpyHtoD_v2: error 1")
	require.NoError(t, s.Unmap(addr, 4*mib))
	f.left(t, 1, 1, 0, 1)
	require.Error(t, s.Unmap(addr, 4*mib))
	require.NoError(t, s.Map(addr, 4*mib, fd, false), "at the same address")
	got := make([]byte, 7)
	require.NoError(t, s.Read(addr+mib, got))
	assert.Equal(t, "weights", string(got))
	require.ErrorContains(t, s.Write(addr, []byte("w")), "cuMemcpyHtoD_v2", "it is read only")
	require.ErrorContains(t, s.Free(addr, 4*mib), "cuMemAddressFree", "it is mapped")
	require.NoError(t, s.Unmap(addr, 4*mib))
	require.NoError(t, s.Free(addr, 4*mib))
	_, total, err := s.Info()
	require.NoError(t, err)
	assert.EqualValues(t, 64*mib, total)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "a second close does nothing")
	require.ErrorIs(t, s.Sync(), cuda.ErrClosed)
	f.left(t, 1, 0, 0, 0)
}

func TestFailuresLeaveNothingBehind(t *testing.T) {
	f := build(t)
	b := openBackend(t, f)
	m, err := b.Allocate(2 * mib)
	require.NoError(t, err)
	fd := export(t, m)
	defer unix.Close(fd)
	s := openSpace(t, f)
	addr, err := s.Reserve(2 * mib)
	require.NoError(t, err)
	for _, function := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"} {
		f.fail(function, 999)
		require.ErrorContains(t, s.Map(addr, 2*mib, fd, true), function+": error 999")
		f.left(t, 1, 1, 0, 1)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	require.ErrorContains(t, s.Map(addr, 2*mib, null, true), "cuMemImportFromShareableHandle: error 1")
	require.NoError(t, s.Map(addr, 2*mib, fd, true), "it works afterwards")
	for _, function := range []string{"cuMemUnmap", "cuCtxSynchronize", "cuMemExportToShareableHandle"} {
		f.fail(function, 999)
		var err error
		switch function {
		case "cuMemUnmap":
			err = s.Unmap(addr, 2*mib)
		case "cuCtxSynchronize":
			err = s.Sync()
		default:
			_, err = m.Export()
		}
		require.ErrorContains(t, err, function+": error 999")
	}
	require.NoError(t, s.Unmap(addr, 2*mib))
	for _, function := range []string{"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"} {
		f.fail(function, 999)
		_, err := cuda.NewSpace(f.config())
		require.ErrorContains(t, err, function+": error 999")
		f.left(t, 1, 1, 0, 1)
	}
}

// Every goroutine finds the context, whatever thread it runs on.
func TestConcurrentUse(t *testing.T) {
	f := build(t)
	b := openBackend(t, f)
	s := openSpace(t, f)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				m, err := b.Allocate(2 * mib)
				if !assert.NoError(t, err) {
					return
				}
				fd, err := m.Export()
				assert.NoError(t, err)
				addr, err := s.Reserve(2 * mib)
				assert.NoError(t, err)
				assert.NoError(t, s.Map(addr, 2*mib, fd, true))
				assert.NoError(t, unix.Close(fd))
				assert.NoError(t, m.Release())
				want, got := bytes.Repeat([]byte{byte(i)}, 100), make([]byte, 100)
				assert.NoError(t, s.Write(addr, want))
				assert.NoError(t, s.Read(addr, got))
				assert.Equal(t, want, got)
				assert.NoError(t, s.Unmap(addr, 2*mib))
				assert.NoError(t, s.Free(addr, 2*mib))
			}
		})
	}
	wg.Wait()
	f.left(t, 0, 0, 0, 1)
}

func TestAnotherProcessImports(t *testing.T) {
	f := build(t)
	b := openBackend(t, f)
	m, err := b.Allocate(2 * mib)
	require.NoError(t, err)
	s := openSpace(t, f)
	addr, err := s.Reserve(2 * mib)
	require.NoError(t, err)
	fd := export(t, m)
	require.NoError(t, s.Map(addr, 2*mib, fd, true))
	require.NoError(t, s.Write(addr, []byte("from the parent ")))

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+f.path)
	file := os.NewFile(uintptr(fd), "export")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	require.NoError(t, file.Close())
	assert.Equal(t, "from the parent \n", string(out))
	got := make([]byte, 16)
	require.NoError(t, s.Read(addr, got))
	assert.Equal(t, "from the child  ", string(got))
}

func TestRestore(t *testing.T) {
	f := build(t)
	crashed, err := cuda.New(f.config())
	require.NoError(t, err)
	m, err := crashed.Allocate(2 * mib)
	require.NoError(t, err)
	kept := export(t, m)
	s := openSpace(t, f)
	addr, err := s.Reserve(2 * mib)
	require.NoError(t, err)
	require.NoError(t, s.Map(addr, 2*mib, kept, true))
	require.NoError(t, s.Write(addr, []byte("kept")))
	require.NoError(t, s.Unmap(addr, 2*mib))
	require.NoError(t, crashed.Close())
	f.left(t, 0, 1, 0, 1)

	b := openBackend(t, f)
	m, err = b.Restore(kept, 2*mib)
	require.NoError(t, err)
	assert.EqualValues(t, 2*mib, b.Used())
	f.fail("cuMemExportToShareableHandle", 999)
	fd := export(t, m) // no call of the driver
	f.fail("", 0)
	require.NotEqual(t, kept, fd)
	require.NoError(t, s.Map(addr, 2*mib, fd, false))
	got := make([]byte, 4)
	require.NoError(t, s.Read(addr, got))
	assert.Equal(t, "kept", string(got))
	require.NoError(t, s.Unmap(addr, 2*mib))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, m.Release())
	assert.Zero(t, b.Used())
	_, err = unix.FcntlInt(uintptr(kept), unix.F_GETFD, 0)
	require.ErrorIs(t, err, unix.EBADF, "the release has closed it")

	for _, size := range []uint64{0, 1} {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		_, err = b.Restore(fd, size)
		require.ErrorContains(t, err, "granularity")
		_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.ErrorIs(t, err, unix.EBADF, "it owns the descriptor also when it fails")
	}
	_, err = b.Restore(-1, 2*mib)
	require.Error(t, err)
}
