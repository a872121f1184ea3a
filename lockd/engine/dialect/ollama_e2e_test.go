//go:build verify

package dialect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
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

	"remuda/internal/sim/gguf"
	"remuda/lockd/engine/dialect"
)

// realOllama is a running Ollama server with directories of its own.
type realOllama struct {
	url string
	pid int
}

var listening = regexp.MustCompile(`Listening on (127\.0\.0\.1:[0-9]+)`)

// startOllama runs the binary that REMUDA_OLLAMA names, on a free port of the
// loopback interface, until the test ends.
func startOllama(t *testing.T) realOllama {
	t.Helper()
	bin := os.Getenv("REMUDA_OLLAMA")
	require.NotEmpty(t, bin, "REMUDA_OLLAMA must name the ollama binary, as make e2e sets it")
	dir := t.TempDir()
	cmd := exec.Command(bin, "serve")
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir,
		"OLLAMA_HOST=127.0.0.1:0", "OLLAMA_MODELS=" + filepath.Join(dir, "models"),
		"OLLAMA_KEEP_ALIVE=-1", "OLLAMA_NUM_PARALLEL=2", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_NOPRUNE=1",
	}
	// A group of its own: the runner outlives a server that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r, w := io.Pipe()
	var logged bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	address := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			fmt.Fprintln(&logged, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case address <- m[1]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = w.Close()
		<-read
		if t.Failed() {
			t.Logf("log of ollama:\n%s", logged.String())
		}
	})
	select {
	case a := <-address:
		return realOllama{url: "http://" + a, pid: cmd.Process.Pid}
	case <-time.After(30 * time.Second):
		require.Fail(t, "ollama did not say where it listens within 30 s")
		return realOllama{}
	}
}

// runners lists the server's runner processes by their parent's id.
func (o realOllama) runners(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone since
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // state, parent, …
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		if fields[1] == strconv.Itoa(o.pid) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runner is the only runner.
func (o realOllama) runner(t *testing.T) int {
	t.Helper()
	pids := o.runners(t)
	require.Len(t, pids, 1)
	return pids[0]
}

// stream is a streaming chat request.
type stream struct {
	lines *bufio.Scanner
	body  io.Closer
}

func (o realOllama) chat(t *testing.T, tokens int) *stream {
	t.Helper()
	in := fmt.Sprintf(`{"model":"tiny","stream":true,"max_tokens":%d,"seed":1,"messages":[{"role":"user","content":"Hello"}]}`, tokens)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.url+"/v1/chat/completions", strings.NewReader(in))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return &stream{bufio.NewScanner(resp.Body), resp.Body}
}

// next returns the next piece of text; done is set at [DONE], and end at the
// end of the stream.
func (s *stream) next(t *testing.T) (text string, done, end bool) {
	t.Helper()
	for s.lines.Scan() {
		data, ok := strings.CutPrefix(s.lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return "", true, false
		}
		var chunk struct {
			Choices []struct {
				Delta struct{ Content string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &chunk))
		return chunk.Choices[0].Delta.Content, false, false
	}
	return "", false, true
}

// rest reads the stream to its end.
func (s *stream) rest(t *testing.T) (pieces []string, complete bool) {
	t.Helper()
	for {
		text, done, end := s.next(t)
		switch {
		case end:
			return pieces, complete
		case done:
			complete = true
		case text != "":
			pieces = append(pieces, text)
		}
	}
}

func (o realOllama) requireAnswers(t *testing.T) {
	t.Helper()
	pieces, complete := o.chat(t, 40).rest(t)
	require.True(t, complete, "the stream ended without [DONE]")
	require.Len(t, pieces, 40, "one piece a token, and no end before the limit")
	require.Regexp(t, `^[a-z ,.]{40}$`, strings.Join(pieces, ""))
}

func TestRealOllama(t *testing.T) {
	server := startOllama(t)
	file := filepath.Join(t.TempDir(), "tiny.gguf")
	require.NoError(t, gguf.Write(file, gguf.Options{Seed: 1}))
	d, err := dialect.New("ollama", dialect.Config{
		URL: server.url, Model: "tiny", ModelFile: file, Template: "{{ .Prompt }}", Parallel: 2,
		Parameters: dialect.Parameters{"num_thread": 1},
	})
	require.NoError(t, err)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	require.NoError(t, d.Healthy(soon(t)))
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
	require.ErrorIs(t, d.Serving(soon(t)), dialect.ErrNotLoaded)
	require.NoError(t, d.Load(soon(t)))
	require.NoError(t, d.Load(soon(t)), "again")
	require.NoError(t, d.Serving(soon(t)))
	server.requireAnswers(t)

	t.Run("serving is cheap and keeps the runner", func(t *testing.T) {
		before := server.runner(t)
		for range 20 {
			require.NoError(t, d.Serving(soon(t)))
		}
		require.Equal(t, before, server.runner(t))
	})
	t.Run("sleep and wake", func(t *testing.T) {
		require.NoError(t, d.Sleep(soon(t)))
		require.Empty(t, server.runners(t))
		require.ErrorIs(t, d.Serving(soon(t)), dialect.ErrNotLoaded)
		require.Empty(t, server.runners(t), "looking must not load it")
		require.NoError(t, d.Wake(soon(t)))
		server.requireAnswers(t)
	})
	t.Run("sleep waits for a stream", func(t *testing.T) {
		s := server.chat(t, 2000)
		_, _, end := s.next(t)
		require.False(t, end)
		require.NoError(t, d.Sleep(soon(t)))
		_, complete := s.rest(t)
		require.True(t, complete)
		require.Empty(t, server.runners(t))
		require.NoError(t, d.Wake(soon(t)))
	})
	t.Run("sleep gives up while a stream runs", func(t *testing.T) {
		before := server.runner(t)
		s := server.chat(t, 100_000)
		_, _, end := s.next(t)
		require.False(t, end)
		require.ErrorIs(t, d.Sleep(briefly(t)), dialect.ErrBusy)
		require.NoError(t, d.Serving(soon(t)))
		_, _, end = s.next(t)
		require.False(t, end, "the stream goes on")
		require.NoError(t, s.body.Close())
		require.NoError(t, d.Serving(soon(t)))
		require.Equal(t, before, server.runner(t), "the model stayed loaded")
	})
	t.Run("a killed runner is replaced", func(t *testing.T) {
		before := server.runner(t)
		s := server.chat(t, 100_000)
		_, _, end := s.next(t)
		require.False(t, end)
		require.NoError(t, syscall.Kill(before, syscall.SIGKILL))
		_, complete := s.rest(t)
		require.False(t, complete, "a cut stream must not look complete")
		asleep, err := d.Sleeping(soon(t))
		require.NoError(t, err)
		require.False(t, asleep, "Ollama lists the dead runner's model on")
		start := time.Now()
		require.NoError(t, d.Serving(soon(t)))
		t.Logf("new runner after %s", time.Since(start).Round(time.Millisecond))
		require.NotEqual(t, before, server.runner(t))
		server.requireAnswers(t)
	})
	t.Run("a killed server is noticed", func(t *testing.T) {
		require.NoError(t, syscall.Kill(server.pid, syscall.SIGKILL))
		require.Eventually(t, func() bool { return d.Healthy(soon(t)) != nil }, 10*time.Second, 10*time.Millisecond)
		err := d.Serving(soon(t))
		require.ErrorContains(t, err, "engine is not healthy")
		require.NotErrorIs(t, err, dialect.ErrNotLoaded)
	})
}
