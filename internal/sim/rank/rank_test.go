package rank_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/sim/memory"
	"remuda/internal/sim/rank"
	"remuda/internal/sim/weights"
	"remuda/internal/vram"
)

// workerEnv makes this program a worker: what it holds, as "FILE NUMBER OF GPU DIR TEARDOWN".
const workerEnv = "RANK_TEST_WORKER"

const (
	mib     = 1 << 20
	size    = 48 * mib // of the weights
	ctxSize = 10 * mib
	cache   = 100 * mib
)

func TestMain(m *testing.M) {
	what := strings.Fields(os.Getenv(workerEnv))
	if len(what) == 0 {
		os.Exit(m.Run())
	}
	number, _ := strconv.Atoi(what[1])
	of, _ := strconv.Atoi(what[2])
	teardown, _ := time.ParseDuration(what[5])
	err := rank.RunWorker(context.Background(), rank.Config{
		Weights: what[0], At: memory.Place{GPUs: []string{what[3]}, Dir: what[4]}, Rank: memory.Rank{Number: number, Of: of},
		Cache: cache, Context: ctxSize, Logger: hclog.NewNullLogger(),
	}, teardown)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// machine is a machine with GPUs and a file of weights.
type machine struct {
	t    *testing.T
	dir  string
	file string
	gpus []string
}

func newMachine(t *testing.T, gpus int, capacity int64) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), file: filepath.Join(t.TempDir(), "w.safetensors")}
	_, err := weights.Create(m.file, weights.Spec{Size: size, Seed: 1})
	require.NoError(t, err)
	for i := range gpus {
		m.gpus = append(m.gpus, fmt.Sprintf("GPU-%d", i))
		require.NoError(t, vram.Create(m.dir, m.gpus[i], capacity))
	}
	return m
}

// used waits until the GPUs have so much taken in all.
func (m *machine) used(want int64) {
	m.t.Helper()
	var got int64
	require.Eventually(m.t, func() bool {
		got = 0
		for _, gpu := range m.gpus {
			n, _, err := vram.Used(m.dir, gpu)
			require.NoError(m.t, err)
			got += n
		}
		return got == want
	}, 10*time.Second, time.Millisecond, "want %d MiB", want/mib)
}

func (m *machine) config() rank.Config {
	return rank.Config{Weights: m.file, At: memory.Place{GPUs: m.gpus, Dir: m.dir}, Cache: cache, Context: ctxSize,
		Lost: func(err error) { m.t.Error(err) }, Logger: hclog.NewNullLogger()}
}

func (m *machine) open(change func(*rank.Config)) (*rank.Rank, error) {
	cfg := m.config()
	change(&cfg)
	r, err := rank.Open(m.t.Context(), cfg, nil)
	if err == nil {
		m.t.Cleanup(func() { require.NoError(m.t, r.Close()) })
	}
	return r, err
}

// commands are workers for each GPU.
func (m *machine) commands(teardown time.Duration) (out []*exec.Cmd) {
	for i, gpu := range m.gpus {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %s %s %s", workerEnv, m.file, i, len(m.gpus), gpu, m.dir, teardown))
		cmd.Stderr = os.Stderr
		out = append(out, cmd)
	}
	return out
}

// A sleep gives back all but the context; a wake takes it again, or fails while another engine has it.
func TestRankGivesBackAndTakes(t *testing.T) {
	m := newMachine(t, 1, 250*mib)
	one, err := m.open(func(*rank.Config) {})
	require.NoError(t, err)
	m.used(ctxSize + size + cache)
	device, _ := one.Usage()
	require.EqualValues(t, ctxSize+size+cache, device)
	_, err = m.open(func(*rank.Config) {})
	require.ErrorIs(t, err, vram.ErrOutOfMemory, "two KV caches do not fit")
	m.used(ctxSize + size + cache)

	standby, err := m.open(func(c *rank.Config) { c.Asleep = true })
	require.NoError(t, err)
	m.used(2*ctxSize + size + cache)
	require.NoError(t, standby.Wake(t.Context(), false))
	require.ErrorIs(t, standby.WakeCache(), vram.ErrOutOfMemory, "the old engine still lives")
	require.NoError(t, one.Sleep(memory.LevelOffload, 0))
	require.NoError(t, standby.WakeCache())
	require.NoError(t, standby.WakeCache())
	m.used(2*ctxSize + size + cache)
	require.NoError(t, standby.Sleep(memory.LevelDiscard, 3*mib))
	m.used(2*ctxSize + 3*mib)
}

// Each worker has its part of the weights on its GPU. What a worker holds is free once it is gone,
// and its engine hears of that.
func TestCrew(t *testing.T) {
	m := newMachine(t, 4, 250*mib)
	died := make(chan error, 8)
	crew, err := rank.Start(t.Context(), m.commands(0), hclog.NewNullLogger(), func(err error) { died <- err })
	require.NoError(t, err)
	all := int64(4*(ctxSize+cache) + size)
	m.used(all)
	device, host := crew.Usage()
	require.Equal(t, []int64{all, 0, size}, []int64{device, host, crew.Size()})
	require.NoError(t, crew.Step(t.Context()))
	require.NoError(t, crew.Sleep(memory.LevelOffload, 0))
	m.used(4 * ctxSize)
	_, host = crew.Usage()
	require.EqualValues(t, size, host)
	require.NoError(t, crew.Wake(t.Context(), false))
	require.NoError(t, crew.WakeCache())
	m.used(all)
	require.ErrorIs(t, crew.Move(m.gpus), rank.ErrFixed)

	workers := crew.PIDs()
	stop(t, workers[1])
	within, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, crew.Step(within), context.DeadlineExceeded, "a worker that hangs holds all up")
	require.NoError(t, syscall.Kill(workers[1], syscall.SIGKILL))
	err = <-died
	require.ErrorContains(t, err, "worker 1")
	require.ErrorContains(t, err, "signal: killed")
	require.NoError(t, crew.Close())
	m.used(0)
	require.Empty(t, died)
}

// stop stops a process, and is back once it stands still: its threads go on for a moment after the signal.
func stop(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // one that stays stopped is never gone
	var status unix.Siginfo
	require.NoError(t, unix.Waitid(unix.P_PID, pid, &status, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// Workers go on to the weights together: none does where one cannot get its GPU's memory.
func TestCrewBeginsTogether(t *testing.T) {
	m := newMachine(t, 3, 250*mib)
	other, err := vram.Take(m.dir, m.gpus[2], 245*mib)
	require.NoError(t, err)
	_, err = rank.Start(t.Context(), m.commands(0), hclog.NewNullLogger(), func(error) {})
	require.ErrorContains(t, err, "worker 2")
	require.ErrorContains(t, err, "out of GPU memory")
	m.used(245 * mib)
	require.NoError(t, other.Free())
}

// A worker ends with its engine, and its driver takes the time that it takes.
func TestWorkersEndWithTheirEngine(t *testing.T) {
	m := newMachine(t, 2, 250*mib)
	const teardown = 300 * time.Millisecond
	crew, err := rank.Start(t.Context(), m.commands(teardown), hclog.NewNullLogger(), func(error) {})
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, crew.Close())
	require.GreaterOrEqual(t, time.Since(began), teardown)
	m.used(0)
}

func TestWorkerByHand(t *testing.T) {
	require.ErrorContains(t, rank.RunWorker(t.Context(), rank.Config{}, 0), "-workers")
}
