package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
)

// The environment chooses the backend of the servers and of the clients' mappings.
const (
	// backendEnv is host or cuda; host by default.
	backendEnv = "REMUDA_GMS_BACKEND"
	// libraryEnv is the path of the CUDA driver's library. By default the system's
	// linker finds it.
	libraryEnv = "REMUDA_GMS_CUDA_LIBRARY"
	// gpuEnv is the UUID of the GPU; the driver's first by default.
	gpuEnv = "REMUDA_GMS_GPU"
)

// onCUDA reports whether the suite runs on the CUDA driver, and fakeDriver whether
// that driver is the fake.
func onCUDA() bool { return os.Getenv(backendEnv) == "cuda" }

var fakeDriver bool

// chooseBackend completes the environment, which client processes inherit.
func chooseBackend() error {
	switch os.Getenv(backendEnv) {
	case "", "host":
		return nil
	case "cuda":
	default:
		return fmt.Errorf("%s is %q: must be host or cuda", backendEnv, os.Getenv(backendEnv))
	}
	devices, err := cuda.Devices(os.Getenv(libraryEnv))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(devices, func(d cuda.Device) bool { return os.Getenv(gpuEnv) == "" || os.Getenv(gpuEnv) == d.UUID })
	if i < 0 {
		return fmt.Errorf("%s is %q: the CUDA driver has no such GPU", gpuEnv, os.Getenv(gpuEnv))
	}
	fakeDriver = strings.HasPrefix(devices[i].Name, "Fake GPU")
	return os.Setenv(gpuEnv, devices[i].UUID)
}

// hostOnly skips a test that cannot run on a real GPU.
func hostOnly(t testing.TB, reason string) {
	t.Helper()
	if onCUDA() {
		t.Skip("left out on cuda: " + reason)
	}
}

// Reasons for hostOnly.
const (
	needsSmallGPU = "it fills a GPU of 64 MiB that no other test uses"
	namesGPUs     = "it names GPUs that are not in this machine"
	losesEvents   = "a tag is forgotten with its events while nobody uses it"
)

// backendArgs are the arguments of `remuda gms` for n GPUs of which the first has
// the number first. On CUDA one GPU stands in for all.
func backendArgs(first, n int) []string {
	if !onCUDA() {
		uuids := make([]string, n)
		for i := range uuids {
			uuids[i] = gpuUUID(first + i)
		}
		return []string{"-backend", "host", "-gpu", strings.Join(uuids, ","), "-host-capacity", "64MiB", "-host-granularity", "2MiB"}
	}
	args := []string{"-backend", "cuda", "-gpu", os.Getenv(gpuEnv)}
	if library := os.Getenv(libraryEnv); library != "" {
		args = append(args, "-cuda-library", library)
	}
	return args
}

// smallGranularity lets many allocations fit into a host backend's capacity.
func smallGranularity() []string {
	if onCUDA() {
		return nil
	}
	return []string{"-host-granularity", "4KiB"}
}

// unitPath is where a connection of a GPU, by its number, and a tag begins: the GPU's own
// socket for weights, else NODE#GPU#TAG, which says what to ask for on the node's socket.
// On CUDA a lock and a layout belong to a tag of the one GPU, so each number has tags of
// its own.
func unitPath(dir string, gpu int, tag string) string {
	node := filepath.Join(dir, "gms.sock")
	switch {
	case onCUDA():
		return node + "#" + os.Getenv(gpuEnv) + "#" + numbered(tag, gpu)
	case tag == "weights":
		return filepath.Join(dir, "gms_"+gpuUUID(gpu)+"_weights.sock")
	default:
		return node + "#" + gpuUUID(gpu) + "#" + tag
	}
}

// socketFile is the socket that a unitPath is reached through.
func socketFile(path string) string {
	file, _, _ := strings.Cut(path, "#")
	return file
}

func numbered(tag string, n int) string { return fmt.Sprint(tag, "-", n) }

// space is where a process maps memory: an engine's own way to do it.
type space interface {
	Reserve(size uint64) (uintptr, error)
	Free(addr uintptr, size uint64) error
	Map(addr uintptr, size uint64, fd int, writable bool) error
	Unmap(addr uintptr, size uint64) error
	Read(addr uintptr, to []byte) error
	Write(addr uintptr, from []byte) error
}

// ownSpace is this process's. On CUDA it makes a context.
var ownSpace = sync.OnceValues(func() (space, error) {
	if !onCUDA() {
		return host.NewSpace(), nil
	}
	return cuda.NewSpace(cuda.Config{Library: os.Getenv(libraryEnv), GPU: os.Getenv(gpuEnv)})
})

// view is a mapped allocation.
type view struct {
	space space
	addr  uintptr
	size  int64
}

// newView maps the memory behind a descriptor, which stays open.
func newView(fd int, size int64, writable bool) (*view, error) {
	s, err := ownSpace()
	if err != nil {
		return nil, err
	}
	addr, err := s.Reserve(uint64(size))
	if err != nil {
		return nil, err
	}
	if err := s.Map(addr, uint64(size), fd, writable); err != nil {
		_ = s.Free(addr, uint64(size)) // the mapping's error says more
		return nil, err
	}
	return &view{s, addr, size}, nil
}

func (v *view) unmap() error {
	if err := v.space.Unmap(v.addr, uint64(v.size)); err != nil {
		return err
	}
	return v.space.Free(v.addr, uint64(v.size))
}

// chunk is how much is copied at once.
const chunk = 8 * mib

// each calls f with a buffer for each chunk and its place.
func (v *view) each(f func(at int64, buf []byte) error) error {
	buf := make([]byte, chunk)
	for at := int64(0); at < v.size; at += chunk {
		if err := f(at, buf[:min(chunk, v.size-at)]); err != nil {
			return err
		}
	}
	return nil
}

// patternByte is the byte that belongs to a place, so that no two 64 KiB look alike.
func patternByte(at int64, seed byte) byte { return byte(at) ^ byte(at>>8) ^ byte(at>>16) ^ seed }

// fill writes the pattern.
func (v *view) fill(seed byte) error {
	return v.each(func(at int64, buf []byte) error {
		for i := range buf {
			buf[i] = patternByte(at+int64(i), seed)
		}
		return v.space.Write(v.addr+uintptr(at), buf)
	})
}

// fault is the place of the first byte that is not the pattern's, or -1.
func (v *view) fault(seed byte) (int64, error) {
	fault := int64(-1)
	err := v.each(func(at int64, buf []byte) error {
		if fault >= 0 {
			return nil
		}
		if err := v.space.Read(v.addr+uintptr(at), buf); err != nil {
			return err
		}
		for i, b := range buf {
			if b != patternByte(at+int64(i), seed) {
				fault = at + int64(i)
				break
			}
		}
		return nil
	})
	return fault, err
}

// mapped is a view of a test: whatever fails on it fails the test.
type mapped struct {
	*view
	t testing.TB
}

// mapFD maps the memory behind a descriptor for as long as the test takes.
func mapFD(t testing.TB, fd int, size int64, writable bool) mapped {
	t.Helper()
	v, err := newView(fd, size, writable)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.unmap()) })
	return mapped{v, t}
}

func (m mapped) fill(seed byte) {
	m.t.Helper()
	require.NoError(m.t, m.view.fill(seed))
}

func (m mapped) fault(seed byte) int64 {
	m.t.Helper()
	fault, err := m.view.fault(seed)
	require.NoError(m.t, err)
	return fault
}

// set writes one byte.
func (m mapped) set(at int64, b byte) {
	m.t.Helper()
	require.NoError(m.t, m.space.Write(m.addr+uintptr(at), []byte{b}))
}

// bytes reads n bytes from the beginning.
func (m mapped) bytes(n int64) []byte {
	m.t.Helper()
	buf := make([]byte, n)
	require.NoError(m.t, m.space.Read(m.addr, buf))
	return buf
}
