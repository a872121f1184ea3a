package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/weights"
	"remuda/internal/testkit/proclog"
	"remuda/internal/vram"
)

// simEngine is `remuda sim` in a process of its own, on two simulated GPUs.
type simEngine struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	log  *proclog.Buffer
	dir  string
	gpus []string
	done chan error
}

const simGPUMemory = 200 << 20

func startSim(t *testing.T, args ...string) *simEngine {
	t.Helper()
	e := &simEngine{t: t, log: &proclog.Buffer{}, dir: t.TempDir(), gpus: []string{"GPU-0", "GPU-1"}, done: make(chan error, 1)}
	for _, gpu := range e.gpus {
		require.NoError(t, vram.Create(e.dir, gpu, simGPUMemory))
	}
	file := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(file, weights.Spec{Size: 8 << 20, Seed: 1})
	require.NoError(t, err)
	e.cmd = exec.Command(os.Args[0], append([]string{"sim", "-listen", "127.0.0.1:0", "-model", "m", "-weights", file, "-workers",
		"-kv-memory", "50MiB", "-context-memory", "10MiB"}, args...)...)
	e.cmd.Env = append(os.Environ(), asProgram+"=1", vram.EnvDir+"="+e.dir, "REMUDA_GPU_UUIDS="+strings.Join(e.gpus, ","), "REMUDA_USE_GPUS=")
	e.cmd.Stderr = e.log
	require.NoError(t, e.cmd.Start())
	go func() { e.done <- e.cmd.Wait() }()
	t.Cleanup(func() { _ = e.cmd.Process.Kill() })
	listening := regexp.MustCompile(`listening: address=(\S+)`)
	e.eventually("it listens", func() bool {
		m := listening.FindStringSubmatch(e.log.String())
		if m != nil {
			e.url = "http://" + m[1]
		}
		return m != nil
	})
	e.eventually("it is ready", func() bool { return e.status("/health") == http.StatusOK })
	return e
}

func (e *simEngine) eventually(what string, is func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		require.True(e.t, time.Now().Before(deadline), "%s: not within 30s\n%s", what, e.log)
	}
}

func (e *simEngine) status(path string) int {
	resp, err := http.Get(e.url + path)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// ask sends a request of one token, and tells the status of the answer.
func (e *simEngine) ask() <-chan int {
	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"Hello","max_tokens":1}`))
		if err != nil {
			answered <- 0
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	return answered
}

func (e *simEngine) workers() (pids []int) {
	e.t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", e.cmd.Process.Pid))
	require.NoError(e.t, err)
	var raw []byte
	for _, task := range tasks { // the thread that has started one is its parent here
		more, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", e.cmd.Process.Pid, task.Name()))
		require.NoError(e.t, err)
		raw = append(raw, more...)
	}
	for _, f := range strings.Fields(string(raw)) {
		pid, err := strconv.Atoi(f)
		require.NoError(e.t, err)
		pids = append(pids, pid)
	}
	require.Len(e.t, pids, len(e.gpus))
	return pids
}

// used waits until the GPUs have so many MiB taken in all.
func (e *simEngine) used(want int64) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("%d MiB are taken", want), func() bool {
		var sum int64
		for _, gpu := range e.gpus {
			n, _, err := vram.Used(e.dir, gpu)
			require.NoError(e.t, err)
			sum += n
		}
		return sum == want<<20
	})
}

// ends waits until the engine has ended with an error.
func (e *simEngine) ends() {
	e.t.Helper()
	select {
	case err := <-e.done:
		require.Error(e.t, err)
	case <-time.After(30 * time.Second):
		require.Fail(e.t, "the engine goes on", "%s", e.log)
	}
}

// TestSimWorkers: an engine with a worker for each GPU is as fragile as real ones are, and no more.
func TestSimWorkers(t *testing.T) {
	t.Parallel()
	const all = 2*(50+10) + 8
	t.Run("a worker dies, and its engine with it", func(t *testing.T) {
		t.Parallel()
		e := startSim(t)
		e.used(all)
		require.Equal(t, http.StatusOK, <-e.ask())
		require.NoError(t, syscall.Kill(e.workers()[0], syscall.SIGKILL))
		e.ends()
		require.Contains(t, e.log.String(), "has ended: signal: killed")
		e.used(0)
	})
	t.Run("a worker hangs, and nothing is computed", func(t *testing.T) {
		t.Parallel()
		e := startSim(t)
		worker := e.workers()[1]
		require.NoError(t, syscall.Kill(worker, syscall.SIGSTOP))
		answered := e.ask()
		for range 20 {
			require.Equal(t, http.StatusOK, e.status("/health"), "HTTP answers")
			require.Equal(t, http.StatusOK, e.status("/metrics"))
		}
		select {
		case status := <-answered:
			require.Fail(t, "an answer came", "%d", status)
		case <-time.After(200 * time.Millisecond):
		}
		require.NoError(t, syscall.Kill(worker, syscall.SIGCONT))
		require.Equal(t, http.StatusOK, <-answered)
	})
	t.Run("the engine is killed, and its workers end", func(t *testing.T) {
		t.Parallel()
		e := startSim(t, "-teardown", "200ms")
		workers := e.workers()
		require.NoError(t, e.cmd.Process.Kill())
		e.used(0)
		for _, pid := range workers {
			e.eventually("the worker is gone", func() bool { return syscall.Kill(pid, 0) != nil })
		}
	})
	t.Run("a wake needs room", func(t *testing.T) {
		t.Parallel()
		e := startSim(t, "-start-asleep")
		e.used(2 * 10)
		other, err := vram.Take(e.dir, e.gpus[1], simGPUMemory-40<<20)
		require.NoError(t, err)
		defer func() { require.NoError(t, other.Free()) }()
		resp, err := http.Post(e.url+"/wake_up", "", nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
		require.Contains(t, string(body), "out of GPU memory")
		e.ends()
	})
	t.Run("it wakes where there is room", func(t *testing.T) {
		t.Parallel()
		e := startSim(t, "-start-asleep")
		resp, err := http.Post(e.url+"/wake_up", "", nil)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, http.StatusOK, <-e.ask())
		e.used(all)
		require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-e.done)
		e.used(0)
	})
	t.Run("wrong usage", func(t *testing.T) {
		r := remuda(t, "sim", "-model", "m", "-workers")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.errout, "there are no GPUs")
		r = remuda(t, "sim", "-model", "m", "-kv-memory", "much")
		require.Equal(t, exitUsage, r.code)
	})
}
