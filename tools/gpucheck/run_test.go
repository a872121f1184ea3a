package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/cudatest"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/process"
	"remuda/internal/testkit/proclog"
)

const patience = 20 * time.Second

// programEnv makes this test binary run the program.
const programEnv = "REMUDA_TEST_GPU_CHECK"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	code := m.Run()
	if bundle.dir != "" {
		_ = os.RemoveAll(bundle.dir)
	}
	os.Exit(code)
}

// bundle is a directory with the programs. The first test that needs it makes it.
var bundle struct {
	once sync.Once
	dir  string
	err  error
}

// bin returns the bundle: the conformance suite, with the programs of REMUDA_BIN or
// newly built ones.
func bin(t *testing.T) string {
	t.Helper()
	bundle.once.Do(func() {
		if bundle.dir, bundle.err = os.MkdirTemp("", "gpucheck"); bundle.err != nil {
			return
		}
		build := func(args ...string) {
			out, err := exec.Command("go", args...).CombinedOutput()
			if err != nil {
				bundle.err = errors.Join(bundle.err, fmt.Errorf("go %v: %w: %s", args, err, out))
			}
		}
		if built := os.Getenv("REMUDA_BIN"); built != "" {
			for _, name := range []string{"remuda", "remuda-device"} {
				bundle.err = errors.Join(bundle.err, os.Symlink(filepath.Join(built, name), filepath.Join(bundle.dir, name)))
			}
		} else {
			build("build", "-p", "2", "-ldflags", "-extldflags=-Wl,-z,lazy", "-o", bundle.dir+"/", "remuda/cmd/remuda", "remuda/cmd/remuda-device")
		}
		build("test", "-c", "-o", filepath.Join(bundle.dir, "gms-conformance"), "remuda/device-plugin/gms/conformance")
	})
	require.NoError(t, bundle.err)
	return bundle.dir
}

// checking is a gpu-check that runs, or has run.
type checking struct {
	t *testing.T
	// out is the directory of the results, weights the one of the weights and tmp the
	// one of temporary files.
	out, weights, tmp string
	cmd               *exec.Cmd
	stdout            bytes.Buffer
	stderr            *proclog.Buffer
	mark              string
}

// start starts gpu-check with small sizes. The fake driver, where args name it, has one
// GPU.
func start(t *testing.T, args ...string) *checking {
	t.Helper()
	c := &checking{t: t, out: t.TempDir(), weights: t.TempDir(), stderr: &proclog.Buffer{}, mark: fmt.Sprintf("%s=%s-%d", programEnv, t.Name(), os.Getpid())}
	self, err := os.Executable()
	require.NoError(t, err)
	c.tmp, err = os.MkdirTemp("", "gc") // short, for sockets
	require.NoError(t, err)
	c.cmd = exec.Command(self, append([]string{"-bin", bin(t), "-out", c.out, "-weights-dir", c.weights, "-weights", "8MiB", "-n", "2", "-cold", "2"}, args...)...)
	c.cmd.Env = append(os.Environ(), c.mark, "TMPDIR="+c.tmp, "FAKECUDA_GPUS=1", fmt.Sprint("FAKECUDA_MEMORY=", 512<<20))
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, c.stderr
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.nothingRuns()
		require.NoError(t, os.RemoveAll(c.tmp))
	})
	return c
}

// wait returns the exit code and the report.
func (c *checking) wait() (int, Report) {
	c.t.Helper()
	_ = c.cmd.Wait() // the exit code is checked
	var r Report
	if raw, err := os.ReadFile(filepath.Join(c.out, "results.json")); err == nil {
		require.NoError(c.t, json.Unmarshal(raw, &r))
	}
	return c.cmd.ProcessState.ExitCode(), r
}

// nothingRuns waits until all processes of the run have ended.
func (c *checking) nothingRuns() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		pids, err := process.WithEnv(c.mark)
		return err == nil && len(pids) == 0
	}, patience, 10*time.Millisecond)
}

// noFiles checks that a run that ended by itself left only its results.
func (c *checking) noFiles() {
	c.t.Helper()
	for _, dir := range []string{c.weights, c.tmp} {
		left, err := os.ReadDir(dir)
		require.NoError(c.t, err)
		require.Empty(c.t, left)
	}
}

// results are the outcomes of the rows.
func results(r Report) string {
	var b strings.Builder
	for _, row := range r.Rows {
		fmt.Fprintln(&b, row.Check, row.Result)
	}
	return b.String()
}

// passed is what follows the rows of the memory service in a run that passes.
var passed = strings.Repeat("3 failover pass\n", 11) + "4 cold load pass\n5 end pass\n"

func TestRun(t *testing.T) {
	t.Parallel()
	nvml := fakenvml.Build(t)
	nvml.Set("gpu0.uuid="+cudatest.UUIDs[0], "gpu0.name=Fake GPU 0", "gpu0.mem=512", "gpu0.used=9")
	c := start(t, "-cuda-library", cudatest.Build(t), "-nvml-library", nvml.Path,
		"-suite", "^TestKeptMemoryOutlivesTheServer$|^TestEveryExportIsAFreshDescriptor$|^TestWholeCapacityCanBeAllocated$")
	code, r := c.wait()
	require.Equal(t, "1 device plugin pass\n2 memory service pass\n2 memory service pass\n"+passed, results(r), c.stderr)
	require.Zero(t, code)
	require.Equal(t, []any{"Fake GPU 0", cudatest.UUIDs[0], uint64(512 << 20), "570.86.15", "12.8", "cuda", "8 MiB"},
		[]any{r.Device, r.UUID, r.MemoryBytes, r.Driver, r.CUDA, r.Backend, r.Weights})
	require.Equal(t, r.Markdown(), c.stdout.String())
	require.Equal(t, "2 of 3 tests passed; left out on cuda: it fills a GPU of 64 MiB that no other test uses: TestWholeCapacityCanBeAllocated", r.Rows[1].Seen)
	require.Equal(t, "TestKeptMemoryOutlivesTheServer", r.Rows[2].What)
	for _, name := range []string{"import_seconds", "ready_seconds", "return_seconds"} {
		require.Positive(t, r.Rows[2].Figures[name], name)
	}
	for _, i := range []int{6, 9, 10, 11} {
		require.EqualValues(t, 2, r.Rows[i].Figures["failover_n"])
		require.Positive(t, r.Rows[i].Figures["failover_p50_seconds"])
	}
	asleep := r.Rows[12].Figures
	require.EqualValues(t, 2, asleep["wake_n"])
	require.Positive(t, asleep["wake_p50_seconds"])
	require.Contains(t, asleep, "asleep_bytes")
	cold := r.Rows[14].Figures
	require.EqualValues(t, 2, cold["cold_process_n"])
	require.Greater(t, cold["cold_process_p50_seconds"], cold["cold_load_p50_seconds"])
	require.Contains(t, r.Rows[14].Seen, "a failover with -verify import took")
	c.nothingRuns()
	c.noFiles()
	logs, err := filepath.Glob(filepath.Join(c.out, "logs", "*.log"))
	require.NoError(t, err)
	// The suite, the weights, the node's two, two pairs with two restarts each, and four more of the second.
	require.Len(t, logs, 1+1+2+2*4+4, "every process has its log")
}

// TestInterrupted: Ctrl-C ends the run in order, and after kill -9 no process is left.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "kill -9": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "-backend", "host", "-suite", noTest, "-n", "100000")
			require.Eventually(t, func() bool { return strings.Contains(c.stderr.String(), "a pair starts") }, patience, 10*time.Millisecond)
			require.NoError(t, c.cmd.Process.Signal(signal))
			code, r := c.wait()
			c.nothingRuns()
			if signal == syscall.SIGINT {
				require.Equal(t, 1, code)
				require.Contains(t, results(r), "3 failover fail\n")
				require.Contains(t, results(r), "4 cold load fail\n5 end pass\n")
				c.noFiles()
			}
		})
	}
}

func TestUsageAndWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no driver":         {[]string{"-bin", bin(t), "-cuda-library", "/nonexistent/libcuda.so.1"}, 1, "no GPU can be used here: list GPUs: there is no usable NVIDIA driver"},
		"no program":        {[]string{"-backend", "host", "-bin", t.TempDir()}, 1, "-bin has no program remuda"},
		"a bad flag":        {[]string{"-backend", "host", "-weights", "1KiB"}, 2, "-weights is 1024 bytes"},
		"an unknown flag":   {[]string{"-fast"}, 2, "-fast"},
		"an argument":       {[]string{"results"}, 2, `unexpected argument "results"`},
		"every bad setting": {[]string{"-backend", "rocm", "-suite", "(", "-n", "0"}, 2, "-backend is \"rocm\": must be host or cuda\n-suite is \"(\""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, program(t.Context(), tc.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tc.want)
			require.Empty(t, stdout.String())
		})
	}
}

func TestGPUWithoutRoom(t *testing.T) {
	r := &run{cfg: config{backend: backendCUDA, cudaLibrary: cudatest.Build(t), weights: 60 << 20}, report: &Report{Weights: "60 MiB"}}
	require.EqualError(t, r.findGPU(), "64 MiB of its 64 MiB are free and -weights is 60 MiB: try a smaller -weights")
	r.cfg.weights = 8 << 20
	require.NoError(t, r.findGPU())
	require.Equal(t, cudatest.UUIDs[0], r.gpu)
	r.cfg.gpu = "GPU-1"
	require.ErrorContains(t, r.findGPU(), cudatest.UUIDs[1], "it names the GPUs that there are")
}

func TestDirectoryWithoutRoom(t *testing.T) {
	r := &run{cfg: config{weights: 1 << 60, weightsDir: t.TempDir()}, report: &Report{}}
	_, err := r.makeWeights(t.Context())
	require.ErrorContains(t, err, "try a smaller -weights")
	require.Empty(t, r.weights)
}

func TestStep(t *testing.T) {
	r := &run{report: &Report{}, log: io.Discard}
	require.NoError(t, r.step(t.Context(), "9 steps", "fine", time.Minute, func(context.Context) (seen, error) { return note("%d", 7), nil }))
	require.Error(t, r.step(t.Context(), "9 steps", "slow", time.Millisecond, func(ctx context.Context) (seen, error) {
		<-ctx.Done()
		return note("so far"), fmt.Errorf("wait: %w", ctx.Err())
	}))
	r.skip("9 steps", "nothing", "no reason")
	require.Equal(t, "9 steps pass\n9 steps fail\n9 steps skip\n", results(*r.report))
	require.Equal(t, "7", r.report.Rows[0].Seen)
	require.Equal(t, "so far; it took longer than 1ms (wait: context deadline exceeded)", r.report.Rows[1].Seen)
}

func TestAwait(t *testing.T) {
	calls := 0
	require.NoError(t, await(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	require.Equal(t, 3, calls)
	require.ErrorIs(t, await(t.Context(), func(context.Context) error { return fmt.Errorf("it %w", process.ErrEnded) }), process.ErrEnded)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := await(ctx, func(context.Context) error { return errors.New("the last word") })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the last word")
}

func TestFailoversThatDoNotFit(t *testing.T) {
	r := &run{report: &Report{}}
	p, err := r.newPair("always")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.members[0].proc, p.members[1].proc = shell(t), shell(t)
	_, s, err := r.failovers(ctx, p, 3, killed)
	require.ErrorContains(t, err, "failover 1 of 3: ")
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, s.text)
}

// shell stands in for a shim that runs and does not answer.
func shell(t *testing.T) *process.Process {
	p, err := process.Start(process.Config{Path: "/bin/sleep", Args: []string{"600"}, Log: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}
