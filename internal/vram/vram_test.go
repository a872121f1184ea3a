package vram_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/vram"
)

const gpu = "GPU-00000000-0000-4000-8000-000000000000"

func newGPU(t *testing.T, capacity int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, vram.Create(dir, gpu, capacity))
	return dir
}

func requireUsed(t *testing.T, dir string, want int64) {
	t.Helper()
	used, _, err := vram.Used(dir, gpu)
	require.NoError(t, err)
	require.Equal(t, want, used)
}

func TestMemoryIsTakenUntilItIsFreed(t *testing.T) {
	dir := newGPU(t, 100)
	a, err := vram.Take(dir, gpu, 40)
	require.NoError(t, err)
	b, err := vram.Take(dir, gpu, 50)
	require.NoError(t, err)
	requireUsed(t, dir, 90)
	_, err = vram.Take(dir, gpu, 11)
	require.ErrorIs(t, err, vram.ErrOutOfMemory)
	require.ErrorContains(t, err, gpu)
	require.ErrorContains(t, err, "11 B asked for, 10 B of 100 B free")
	requireUsed(t, dir, 90)
	require.NoError(t, a.Free())
	require.NoError(t, a.Free())
	requireUsed(t, dir, 50)
	c, err := vram.Take(dir, gpu, 50) // in two pieces
	require.NoError(t, err)
	require.Equal(t, int64(50), c.Bytes())
	requireUsed(t, dir, 100)
	require.NoError(t, b.Free())
	require.NoError(t, c.Free())
	requireUsed(t, dir, 0)
	none, err := vram.Take(dir, gpu, 0)
	require.NoError(t, err)
	require.NoError(t, none.Free())
}

func TestCapacityChanges(t *testing.T) {
	dir := newGPU(t, 100)
	a, err := vram.Take(dir, gpu, 60)
	require.NoError(t, err)
	require.NoError(t, vram.Create(dir, gpu, 200))
	requireUsed(t, dir, 60)
	require.NoError(t, vram.Create(dir, gpu, 50))
	_, err = vram.Take(dir, gpu, 1)
	require.ErrorIs(t, err, vram.ErrOutOfMemory)
	require.NoError(t, a.Free())
	require.Error(t, vram.Create(dir, gpu, 0))
	_, err = vram.Take(dir, "GPU-other", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A directory that others can reach, or that is none, is not used.
func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "gpus")
	require.NoError(t, vram.MakeDir(dir))
	require.NoError(t, vram.MakeDir(dir))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.ErrorContains(t, vram.MakeDir(dir), dir+" must be a directory of user")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, vram.MakeDir(file), "must be a directory")
}

// Many take and free at random, in several processes, which are killed. In no moment is more taken
// than there is, and in the end all is free.
func TestNeverMoreThanThereIs(t *testing.T) {
	const capacity = 1 << 30
	dir := newGPU(t, capacity)
	var running sync.WaitGroup
	for i := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "VRAM_TAKER="+dir, "VRAM_SEED="+strconv.Itoa(i))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "taking\n", line)
		running.Go(func() {
			time.Sleep(time.Duration(200+i*100) * time.Millisecond)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	full := 0
	require.NoError(t, takeSome(dir, 9, 300, func(err error) {
		require.ErrorIs(t, err, vram.ErrOutOfMemory)
		full++
	}))
	require.Positive(t, full, "the memory was never full: this shows nothing")
	running.Wait()
	requireUsed(t, dir, 0)
}

// takeSome takes and frees at random.
func takeSome(dir string, seed uint64, rounds int, full func(error)) error {
	random := rand.New(rand.NewPCG(seed, 1))
	var mine []*vram.Taken
	for range rounds {
		if len(mine) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(mine))
			if err := mine[i].Free(); err != nil {
				return err
			}
			mine = append(mine[:i], mine[i+1:]...)
			continue
		}
		m, err := vram.Take(dir, gpu, random.Int64N(200<<20))
		if err != nil {
			full(err)
			continue
		}
		mine = append(mine, m)
	}
	var errs []error
	for _, m := range mine {
		errs = append(errs, m.Free())
	}
	return errors.Join(errs...)
}

// TestMain makes this program one that takes and frees for ever, if the environment says so.
func TestMain(m *testing.M) {
	dir := os.Getenv("VRAM_TAKER")
	if dir == "" {
		os.Exit(m.Run())
	}
	seed, _ := strconv.ParseUint(os.Getenv("VRAM_SEED"), 10, 64)
	fmt.Println("taking")
	if err := takeSome(dir, seed, 1<<30, func(error) {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
