package gpucheck_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/gpucheck"
	"remuda/internal/testkit/cudatest"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/proclog"
)

const patience = 20 * time.Second

// programs are built once, by the first test that needs them.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" && programs.dir != os.Getenv("REMUDA_BIN") {
		_ = os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// bin is the directory of the programs: REMUDA_BIN, or what is built here.
func bin(t *testing.T) string {
	t.Helper()
	programs.once.Do(func() {
		if programs.dir = os.Getenv("REMUDA_BIN"); programs.dir != "" {
			return
		}
		if programs.dir, programs.err = os.MkdirTemp("", "gpucheck"); programs.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-p", "2", "-ldflags", "-extldflags=-Wl,-z,lazy", "-o", programs.dir+"/",
			"remuda/cmd/remuda", "remuda/cmd/remuda-device", "remuda/cmd/gpu-check").CombinedOutput()
		if err != nil {
			programs.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, programs.err)
	return programs.dir
}

// check is a gpu-check that runs, or has run.
type check struct {
	t *testing.T
	// dir has the weights and, in out, the results; tmp is where temporary files go.
	dir    string
	tmp    string
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr *proclog.Buffer
	mark   string
}

// fakeGPU is the one GPU of the fake driver, in the environment of who loads that.
var fakeGPU = []string{"FAKECUDA_GPUS=1", fmt.Sprint("FAKECUDA_MEMORY=", 512<<20)}

const markEnv = "REMUDA_TEST_GPU_CHECK"

// start starts gpu-check with small sizes.
func start(t *testing.T, args ...string) *check {
	t.Helper()
	c := &check{t: t, dir: t.TempDir(), stderr: &proclog.Buffer{}, mark: fmt.Sprintf("%s=%s-%d", markEnv, t.Name(), time.Now().UnixNano())}
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "weights"), 0o755))
	dir := bin(t)
	c.cmd = exec.Command(filepath.Join(dir, "gpu-check"), append([]string{
		"-bin", dir, "-out", filepath.Join(c.dir, "out"), "-weights-dir", filepath.Join(c.dir, "weights"),
		"-memory", "32MiB", "-weights", "24MiB", "-n", "2", "-cold", "2", "-budget", "2m"}, args...)...)
	// Short, for sockets, and removed here where the program cannot do it.
	var err error
	c.tmp, err = os.MkdirTemp("", "gc")
	require.NoError(t, err)
	c.cmd.Env = append(append(os.Environ(), c.mark, "TMPDIR="+c.tmp), fakeGPU...)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, c.stderr
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.nothingLeft()
		require.NoError(t, os.RemoveAll(c.tmp))
	})
	return c
}

// wait returns the exit code and the report.
func (c *check) wait() (int, gpucheck.Report) {
	c.t.Helper()
	_ = c.cmd.Wait() // the code tells
	var r gpucheck.Report
	if raw, err := os.ReadFile(filepath.Join(c.dir, "out", "results.json")); err == nil {
		require.NoError(c.t, json.Unmarshal(raw, &r))
		require.Equal(c.t, r.Markdown(), c.stdout.String())
		page, err := os.ReadFile(filepath.Join(c.dir, "out", "results.md"))
		require.NoError(c.t, err)
		require.Equal(c.t, c.stdout.String(), string(page))
	}
	return c.cmd.ProcessState.ExitCode(), r
}

// nothingLeft waits for all processes that came of it to be gone.
func (c *check) nothingLeft() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		environs, err := filepath.Glob("/proc/[0-9]*/environ")
		require.NoError(c.t, err)
		for _, path := range environs {
			if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), c.mark) {
				return false
			}
		}
		return true
	}, patience, 10*time.Millisecond)
}

// noFiles is what a run that ended by itself leaves beside its results.
func (c *check) noFiles() {
	c.t.Helper()
	left, err := filepath.Glob(filepath.Join(c.dir, "weights", "*"))
	require.NoError(c.t, err)
	require.Empty(c.t, left)
	left, err = filepath.Glob(filepath.Join(c.tmp, "*"))
	require.NoError(c.t, err)
	require.Empty(c.t, left)
}

// results are what came of each row.
func results(r gpucheck.Report) string {
	var b strings.Builder
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "%s %s\n", row.Check, row.Result)
	}
	return b.String()
}

// all is what a run without a fault has, after check 1.
const all = `2 sharing pass
2 sharing pass
2 sharing pass
2 sharing pass
2 sharing pass
3 keeper pass
3 keeper pass
3 keeper pass
3 keeper pass
4 failover pass
4 failover pass
4 failover pass
4 failover pass
4 failover pass
4 failover pass
4 failover pass
4 failover pass
5 cold load pass
6 end pass
`

// figures looks into those of a run without a fault.
func figures(t *testing.T, r gpucheck.Report) {
	t.Helper()
	var failovers, loads []gpucheck.Figures
	for _, row := range r.Rows {
		if row.Figures["failover_n"] > 0 {
			failovers = append(failovers, row.Figures)
		}
		if row.Figures["cold_load_n"] > 0 {
			loads = append(loads, row.Figures)
		}
		require.Less(t, row.Seconds, 60.0)
	}
	require.Len(t, failovers, 2)
	for i, f := range failovers {
		require.EqualValues(t, 2, f["failover_n"])
		require.Positive(t, f["proven_dead_min_seconds"])
		require.GreaterOrEqual(t, f["lock_granted_min_seconds"], f["proven_dead_min_seconds"])
		require.Positive(t, f["remap_min_seconds"])
		require.Equal(t, i == 0, f["digest_check_min_seconds"] > 0, "the second pair trusts its wakes")
		require.Positive(t, f["rest_min_seconds"])
		require.Greater(t, f["failover_min_seconds"], f["lock_granted_min_seconds"])
	}
	require.Len(t, loads, 1)
	require.EqualValues(t, 2, loads[0]["cold_process_n"])
	require.Greater(t, loads[0]["cold_process_p50_seconds"], loads[0]["cold_load_p50_seconds"])
}

func TestOnTheHostBackend(t *testing.T) {
	t.Parallel()
	c := start(t, "-backend", "host")
	code, r := c.wait()
	require.Equal(t, "1 device plugin skip\n"+all, results(r), c.stderr)
	require.Zero(t, code)
	figures(t, r)
	require.Equal(t, "host", r.Backend)
	require.Equal(t, "24 MiB", r.Weights)
	require.WithinDuration(t, time.Now(), r.Date, time.Hour)
	c.nothingLeft()
	c.noFiles()
	logs, err := filepath.Glob(filepath.Join(c.dir, "out", "logs", "*.log"))
	require.NoError(t, err)
	require.Greater(t, len(logs), 20, "every process has its log")
}

// fakes are a CUDA driver and an NVML that know the same GPU.
func fakes(t *testing.T) (nvml *fakenvml.Library, args []string) {
	t.Helper()
	nvml = fakenvml.Build(t)
	nvml.Set("gpu0.uuid="+cudatest.UUIDs[0], "gpu0.name=Fake GPU 0", "gpu0.mem=512", "gpu0.used=100")
	return nvml, []string{"-cuda-library", cudatest.Build(t), "-nvml-library", nvml.Path, "-meter", "memfd"}
}

func TestOnAFakeOfTheDriver(t *testing.T) {
	t.Parallel()
	_, args := fakes(t)
	c := start(t, args...)
	code, r := c.wait()
	require.Equal(t, "1 device plugin pass\n1 device plugin pass\n"+all, results(r), c.stderr)
	require.Zero(t, code)
	figures(t, r)
	require.Equal(t, "cuda", r.Backend)
	require.Equal(t, []any{"Fake GPU 0", cudatest.UUIDs[0], uint64(512 << 20), "570.86.15", "12.8"},
		[]any{r.Device, r.UUID, r.MemoryBytes, r.Driver, r.CUDA})
	require.EqualValues(t, 100, r.Rows[1].Figures["memory_state"])
	c.nothingLeft()
	c.noFiles()
}

// TestDisagreement: a check that fails says why, and the others go on.
func TestDisagreement(t *testing.T) {
	t.Parallel()
	nvml, args := fakes(t)
	nvml.Set("gpu0.mem=600")
	c := start(t, append(args, "-gpu", cudatest.UUIDs[0])...)
	code, r := c.wait()
	require.Equal(t, 1, code)
	require.Equal(t, "1 device plugin fail\n"+all, results(r), c.stderr)
	require.Contains(t, r.Rows[0].Seen, "600 MiB by NVML and 512 MiB by CUDA")
}

func TestNoNVML(t *testing.T) {
	t.Parallel()
	nvml, args := fakes(t)
	nvml.Hide()
	c := start(t, append(args, "-n", "1")...)
	code, r := c.wait()
	require.Equal(t, 1, code)
	require.Equal(t, gpucheck.Fail, r.Rows[0].Result)
	require.Contains(t, r.Rows[0].Seen, "the plugin publishes no GPU")
	require.Contains(t, r.Rows[0].Seen, nvml.Path+": cannot open shared object file")
	require.Equal(t, gpucheck.Pass, r.Rows[1].Result, "memory can be shared all the same")
}

// TestTooLittleTime is by itself, not parallel to others: what fits into its time is
// counted. A machine that is loaded too much for anything to fit gets more time.
func TestTooLittleTime(t *testing.T) {
	const want = "4 failover pass\n4 failover fail\n4 failover pass\n4 failover fail\n4 failover pass\n5 cold load pass\n6 end pass\n"
	for budget := 24 * time.Second; ; budget *= 2 {
		c := start(t, "-backend", "host", "-n", "100000", "-budget", budget.String())
		code, r := c.wait()
		require.Equal(t, 1, code)
		require.Less(t, r.Seconds, budget.Seconds())
		c.noFiles()
		if !strings.Contains(results(r), want) && budget < time.Minute {
			t.Logf("%s were too little:\n%s", budget, results(r))
			continue
		}
		require.Contains(t, results(r), want, c.stderr)
		require.Contains(t, c.stdout.String(), "of 100000 failovers fit into the time: raise -budget")
		return
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C":  {syscall.SIGINT, 1},
		"kill -9": {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "-backend", "host", "-n", "100000")
			require.Eventually(t, func() bool { return strings.Contains(c.stderr.String(), "a pair starts") }, patience, 10*time.Millisecond)
			require.NoError(t, c.cmd.Process.Signal(tc.signal))
			began := time.Now()
			code, r := c.wait()
			require.Equal(t, tc.code, code)
			require.Less(t, time.Since(began), patience)
			c.nothingLeft()
			if tc.signal == syscall.SIGINT {
				require.Contains(t, results(r), "6 end pass")
				c.noFiles()
			}
		})
	}
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"the driver":  {[]string{"-cuda-library", "/nonexistent/libcuda.so.1"}, 1, "no GPU can be used here: list GPUs: there is no usable NVIDIA driver"},
		"a program":   {[]string{"-backend", "host", "-bin", t.TempDir()}, 1, "is not beside this one"},
		"good sense":  {[]string{"-backend", "host", "-memory", "1MiB"}, 1, "-memory is 1 MiB"},
		"a real flag": {[]string{"-fast"}, 2, "-fast"},
		"an argument": {[]string{"results"}, 2, `unexpected argument "results"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, tc.args...)
			code, r := c.wait()
			require.Equal(t, tc.code, code)
			require.Empty(t, r.Rows)
			require.Contains(t, c.stderr.String(), tc.want)
		})
	}
}

// TestNoRoom: what does not fit is said before it is tried.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	c := start(t, "-backend", "host", "-weights", "4TiB")
	code, r := c.wait()
	require.Equal(t, 1, code)
	require.Contains(t, results(r), "4 failover fail\n5 cold load skip\n6 end pass\n", c.stderr)
	require.Contains(t, c.stdout.String(), "try a smaller -weights")
}
