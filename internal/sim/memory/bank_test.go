package memory_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/weights"
)

const size = 48 << 20

func create(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(path, weights.Spec{Size: size, Seed: 3})
	require.NoError(t, err)
	return path
}

func open(t *testing.T, path string) *memory.Bank {
	t.Helper()
	b, err := memory.Open(path, memory.Rank{}, memory.Place{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// resident is what the kernel says this process holds, in bytes: shared memory
// (the device) and anonymous memory (the host).
func resident(t *testing.T) (shmem, anon int64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for _, line := range strings.Split(string(status), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "RssShmem:" && f[0] != "RssAnon:" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		if f[0] == "RssShmem:" {
			shmem = kib << 10
		} else {
			anon = kib << 10
		}
	}
	return shmem, anon
}

// The tests below read this process's memory and so must not run in parallel.

func TestMemoryReallyGoesAway(t *testing.T) {
	const slack = 24 << 20 // the Go heap and the race detector's own memory come and go
	shmem0, anon0 := resident(t)
	b := open(t, create(t))
	check := func(wantDevice, wantHost int64) {
		t.Helper()
		device, host := b.Usage()
		assert.Equal(t, wantDevice, device)
		assert.Equal(t, wantHost, host)
		shmem, anon := resident(t)
		assert.InDelta(t, wantDevice, shmem-shmem0, slack, "device memory that the kernel sees")
		assert.InDelta(t, wantHost, anon-anon0, slack, "host memory that the kernel sees")
	}
	check(size, 0)
	for range 2 {
		require.NoError(t, b.Sleep(memory.LevelOffload, 0))
		check(0, size)
		require.NoError(t, b.Wake(t.Context(), false))
		check(size, 0)
		require.NoError(t, b.Sleep(memory.LevelDiscard, 0))
		check(0, 0)
		require.NoError(t, b.Wake(t.Context(), false))
		check(size, 0)
	}
	require.NoError(t, b.Sleep(memory.LevelOffload, 0))
	require.NoError(t, b.Sleep(memory.LevelDiscard, 0))
	check(0, 0)
	require.NoError(t, b.Sleep(memory.LevelOffload, 0), "there is nothing left to offload")
	check(0, 0)
	require.NoError(t, b.Wake(t.Context(), false))
	require.NoError(t, b.Wake(t.Context(), false), "waking twice is fine")
	check(size, 0)
}

func TestLeak(t *testing.T) {
	shmem0, _ := resident(t)
	b := open(t, create(t))
	const leak = 10 << 20
	for i := int64(1); i <= 2; i++ {
		require.NoError(t, b.Sleep(memory.LevelDiscard, leak))
		device, _ := b.Usage()
		assert.Equal(t, i*leak, device)
		shmem, _ := resident(t)
		assert.InDelta(t, i*leak, shmem-shmem0, 1<<20)
		require.NoError(t, b.Wake(t.Context(), false))
	}
	require.NoError(t, b.Close())
	shmem, _ := resident(t)
	assert.InDelta(t, 0, shmem-shmem0, 1<<20)
}

func TestDamageIsFoundAtWake(t *testing.T) {
	for _, level := range []int{memory.LevelOffload, memory.LevelDiscard} {
		b := open(t, create(t))
		require.NoError(t, b.Sleep(level, 0))
		require.ErrorIs(t, b.Wake(t.Context(), true), weights.ErrDigest)
		device, _ := b.Usage()
		assert.Zero(t, device, "still asleep")
		require.NoError(t, b.Wake(t.Context(), false), "the copy itself is whole")
	}
}

func TestFileChangedBehindALevel2Sleep(t *testing.T) {
	path := create(t)
	b := open(t, path)
	require.NoError(t, b.Sleep(memory.LevelDiscard, 0))

	_, err := weights.Create(path, weights.Spec{Size: size, Seed: 4})
	require.NoError(t, err)
	require.ErrorIs(t, b.Wake(t.Context(), false), weights.ErrDigest, "other weights")

	_, err = weights.Create(path, weights.Spec{Size: size / 2, Seed: 3})
	require.NoError(t, err)
	require.ErrorContains(t, b.Wake(t.Context(), false), "the destination has", "another size")

	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, b.Wake(t.Context(), false), os.ErrNotExist)

	_, err = weights.Create(path, weights.Spec{Size: size, Seed: 3})
	require.NoError(t, err)
	require.NoError(t, b.Wake(t.Context(), false))
}

func TestOpenRefusesDamage(t *testing.T) {
	path := create(t)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)-1] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
	_, err = memory.Open(path, memory.Rank{}, memory.Place{})
	require.ErrorIs(t, err, weights.ErrDigest)
	require.ErrorContains(t, err, path)
	_, err = memory.Open(filepath.Join(t.TempDir(), "none"), memory.Rank{}, memory.Place{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFileWithoutDigests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	header := `{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   `
	content := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	require.NoError(t, os.WriteFile(path, append(content, 1, 2, 3), 0o600))
	b := open(t, path)
	assert.Equal(t, int64(3), b.Size())
	assert.Equal(t, 1, b.Tensors())
	require.NoError(t, b.Sleep(memory.LevelOffload, 0))
	require.ErrorIs(t, b.Wake(t.Context(), true), weights.ErrDigest, "the digests come from the first load")
	require.NoError(t, b.Wake(t.Context(), false))
}

func TestBankWithoutWeights(t *testing.T) {
	b := open(t, "")
	require.NoError(t, b.Sleep(memory.LevelOffload, 0))
	require.NoError(t, b.Wake(t.Context(), false))
	require.ErrorIs(t, b.Wake(t.Context(), true), weights.ErrDigest)
	device, host := b.Usage()
	assert.Zero(t, device+host+b.Size()+int64(b.Tensors()))
}
