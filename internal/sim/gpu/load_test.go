package gpu_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/sim/gpu"
	"remuda/internal/vram"
)

// procs is a /proc that a test writes.
type procs struct {
	t   *testing.T
	dir string
}

// put writes a process: its GPUs, start time and CPU ticks.
func (p procs) put(pid int, gpus string, start, ticks int) {
	p.t.Helper()
	dir := filepath.Join(p.dir, fmt.Sprint(pid))
	require.NoError(p.t, os.MkdirAll(dir, 0o700))
	environ := "PATH=/bin\x00NOT_REMUDA_GPU_UUIDS=x\x00"
	if gpus != "" {
		environ += "REMUDA_GPU_UUIDS=" + gpus + "\x00"
	}
	// The name of a command may hold spaces and parentheses.
	stat := fmt.Sprintf("%d (a) b (c)) S 1 1 1 0 -1 4194304 1 0 0 0 %d %d 0 0 20 0 1 0 %d 1 1", pid, ticks/2, ticks-ticks/2, start)
	for name, text := range map[string]string{
		"environ": environ,
		"stat":    stat,
	} {
		require.NoError(p.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

func TestSamplesMeasureTheProcessesOfEachGPU(t *testing.T) {
	p := procs{t: t, dir: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Join(p.dir, "self"), 0o700))
	now := time.Unix(1000, 0)
	state, memory := filepath.Join(t.TempDir(), "state.json"), filepath.Join(t.TempDir(), "gpus")
	src, err := gpu.New(gpu.Config{
		Logger: hclog.NewNullLogger(), DefaultSeats: 2, ProcDir: p.dir, MemoryDir: memory, Clock: func() time.Time { return now },
		Blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(3)}}, StateFile: state,
	})
	require.NoError(t, err)
	g0, g1, g2 := gpu.UUID("", 0), gpu.UUID("", 1), gpu.UUID("", 2)
	check := func(step string, want map[string][4]int64) {
		t.Helper()
		got, err := src.Samples(t.Context())
		require.NoError(t, err)
		values := map[string][4]int64{}
		for uuid, s := range got {
			values[uuid] = [4]int64{*s.MemoryUsedMiB, *s.UtilizationPercent, *s.PowerWatts, *s.TemperatureCelsius}
		}
		require.Equal(t, want, values, step)
	}
	idle := [4]int64{0, 0, 70, 30}

	held, err := vram.Take(memory, g0, 500<<20)
	require.NoError(t, err)
	p.put(10, g0, 1, 5000)
	p.put(11, g0, 1, 0)
	p.put(12, g0+","+g1, 1, 0)
	p.put(13, "", 1, 100000) // on no GPU
	check("CPU needs a second look", map[string][4]int64{
		g0: {500, 0, 70, 30}, g1: idle, g2: idle})

	now = now.Add(2 * time.Second)
	p.put(10, g0, 1, 5000+50)          // half a second of CPU in two
	p.put(12, g0+","+g1, 1, 100)       // one second, half of it for each GPU
	p.put(14, g2, 1, 1000)             // new and very busy
	p.put(15, "GPU-elsewhere", 1, 100) // not simulated here
	check("busy", map[string][4]int64{
		g0: {500, 50, 385, 52}, g1: {0, 25, 227, 41}, g2: {0, 100, 700, 75}})

	now = now.Add(10 * time.Millisecond)
	require.NoError(t, os.RemoveAll(filepath.Join(p.dir, "14")))
	require.NoError(t, held.Free())
	check("too soon to measure again", map[string][4]int64{
		g0: {500, 50, 385, 52}, g1: {0, 25, 227, 41}, g2: {0, 100, 700, 75}})

	now = now.Add(time.Second)
	p.put(10, g0, 9, 10) // another process under an old PID
	require.NoError(t, os.WriteFile(state, []byte(fmt.Sprintf(`{"gpus": {%q: {"absent": true}, %q: {"unhealthy": "x"}}}`, g2, g1)), 0o600))
	check("a reused PID is a new process, an absent GPU has no sample", map[string][4]int64{
		g0: {0, 10, 132, 34}, g1: idle})

	for _, pid := range []string{"10", "11", "12"} {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, pid, "stat"), []byte("garbage"), 0o600))
	}
	now = now.Add(time.Second)
	check("what cannot be read is left out", map[string][4]int64{g0: idle, g1: idle})
}

func TestSamplesFail(t *testing.T) {
	src, err := gpu.New(gpu.Config{Logger: hclog.NewNullLogger(), ProcDir: filepath.Join(t.TempDir(), "none"), MemoryDir: filepath.Join(t.TempDir(), "gpus")})
	require.NoError(t, err)
	_, err = src.Samples(t.Context())
	require.ErrorContains(t, err, "list processes")
}

// The real /proc: a process that was given a GPU shows up as its load.
func TestSamplesOfARealProcess(t *testing.T) {
	src, _ := simulated(t, 1)
	uuid := gpu.UUID(t.Name(), 0)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	busy := exec.CommandContext(ctx, os.Args[0])
	busy.Env = append(os.Environ(), roleEnv+"=busy", deviceplugin.EnvGPUs+"="+uuid)
	require.NoError(t, busy.Start())
	defer func() { _ = busy.Process.Kill(); _ = busy.Wait() }()
	require.Eventually(t, func() bool {
		samples, err := src.Samples(ctx)
		require.NoError(t, err)
		s := samples[uuid]
		return *s.UtilizationPercent >= 5 && *s.PowerWatts > 70 && *s.MemoryUsedMiB == 0 // its heap is none of the GPU's
	}, 20*time.Second, 100*time.Millisecond)
}
