//go:build e2e && verify

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/jobs"
)

// TestOllama serves a user's own GGUF file on a real engine and kills its
// processes.
func TestOllama(t *testing.T) {
	file := filepath.Join(dataDir(t), "My Model.gguf")
	out, err := exec.Command(binary(t, "remuda"), "sim", "gguf", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	d := newDev(t, func(o *devcluster.Options) { o.Engine, o.GGUF = devcluster.EngineOllama, file })
	require.Equal(t, "my-model", d.info.Model)
	serves := func() error {
		got, err := streamChat(t.Context(), d.info.Gateway, d.info.Model, "Hello", 24)
		if err == nil && got.chunks < 20 {
			err = fmt.Errorf("only %d tokens came: %q", got.chunks, got.text)
		}
		return err
	}
	require.NoError(t, serves())

	st, err := d.shim()
	require.NoError(t, err)
	runners := childrenOf(t, st.PID)
	require.Len(t, runners, 1)
	kill9(t, runners[0])
	eventually(t, 20*time.Second, "tokens after the runner was killed", serves)
	again, err := d.shim()
	require.NoError(t, err)
	require.Equal(t, st.PID, again.PID, "the server needs no restart")

	runners = childrenOf(t, st.PID)
	kill9(t, st.PID)
	eventually(t, 30*time.Second, "tokens after the server was killed", func() error {
		if now, err := d.shim(); err != nil || now.PID == st.PID || now.State != "active" {
			return errors.New("not restarted yet")
		}
		return serves()
	})
	for _, pid := range runners {
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		require.Error(t, err, "the old runner must be gone")
	}
	// Ollama drops every connection when it is told to end, so the shim must
	// wait before it tells it. It does not say how many requests it has.
	// A busy machine makes a token a second, and a job gets 20 s to drain: the answer takes 5 s or less.
	began := time.Now()
	require.NoError(t, serves())
	tokens := int(min(max(5*time.Second*24/time.Since(began), 10), 300))
	resp, err := client.Post(d.info.Gateway+"/v1/chat/completions", "application/json", bytes.NewReader(chatBody(d.info.Model, "Hello", tokens, true)))
	require.NoError(t, err)
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	_, err = r.ReadString('\n')
	require.NoError(t, err, "the stream has begun")
	d.pause()
	d.command("nomad", "job", "stop", "-detach", d.info.Job)
	told := time.Now()
	got, err := readStream(r, func(time.Time) {})
	require.NoError(t, err, "a running stream must finish")
	require.Greater(t, got.chunks, tokens/2)
	t.Logf("the stream of %d tokens ended %s after the job was told to stop", tokens, time.Since(told))
	d.stop(syscall.SIGTERM)
}

// TestOllamaPair: when the Ollama of a pair is killed, the cold standby starts another one, which
// finds the model that the first has made, and no runner of the old one is left.
func TestOllamaPair(t *testing.T) {
	dir := dataDir(t)
	const model, job = "tiny-failover.model.hcl", "ollama-failover.nomad.hcl"
	for _, name := range []string{model, job} {
		text, err := fs.ReadFile(jobs.Files, name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	d := newDev(t, func(o *devcluster.Options) { o.Model = filepath.Join(dir, model) })
	require.Equal(t, "tiny", d.info.Model)
	w := &twins{&fleet{dev: d, t: t}}
	standsBy := func() error { return w.waits("tiny", true) }
	serves := func() error {
		got, err := streamChat(t.Context(), d.info.Gateway, "tiny", "Hello", 24)
		if err == nil && got.chunks < 20 {
			err = fmt.Errorf("only %d tokens came: %q", got.chunks, got.text)
		}
		return err
	}
	require.NoError(t, serves())
	eventually(t, time.Minute, "the standby", standsBy)
	for range 2 { // the second time to the engine that was killed
		old := d.engine("tiny")
		var st shimState
		require.NoError(t, json.Unmarshal([]byte(getBody(t, fmt.Sprintf("http://127.0.0.1:%d/state", port(t, d.alloc(), old.Role+"_shim")))), &st))
		runners := childrenOf(t, st.PID)
		require.Len(t, runners, 1)
		kill9(t, st.PID)
		killed := time.Now()
		require.NoError(t, serves(), "the gateway waits for the standby")
		t.Logf("served %s after the kill of the %s", time.Since(killed).Round(time.Millisecond), old.Role)
		now := d.engine("tiny")
		require.NotEqual(t, old.Role, now.Role)
		require.Positive(t, now.Token.Compare(old.Token))
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", runners[0]))
		require.Error(t, err, "the old runner must be gone")
		eventually(t, time.Minute, "the standby", standsBy)
	}
	d.stop(syscall.SIGTERM)
}

// TestOllamaByItself serves the tiny model that the job makes for itself.
func TestOllamaByItself(t *testing.T) {
	d := newDev(t, func(o *devcluster.Options) { o.Engine = devcluster.EngineOllama })
	require.Equal(t, "tiny", d.info.Model)
	got, err := streamChat(t.Context(), d.info.Gateway, "tiny", "Hello", 24)
	require.NoError(t, err)
	require.Greater(t, got.chunks, 20, "%q", got.text)
	d.stop(syscall.SIGINT)
}

// TestOllamaOfPack: the pack remuda-model runs Ollama, as a single engine and in a pair.
func TestOllamaOfPack(t *testing.T) {
	f := newFleet(t, 1, func(*devcluster.Options) {})
	for model, pair := range map[string]bool{"tiny": false, "tiny-pair": true} {
		f.packed(model, "engine=ollama", "weights=32MiB", fmt.Sprintf("failover=%t", pair),
			fmt.Sprintf("vars={ollama = %q, remuda = %q, consul = %q}", toolPath(t, "ollama"), binary(t, "remuda"), f.info.Consul))
	}
	for _, model := range []string{"tiny", "tiny-pair"} {
		eventually(t, 2*time.Minute, "an answer of "+model, func() error {
			got, err := streamChat(t.Context(), f.info.Gateway, model, "Hello", 24)
			if err == nil && got.chunks < 20 {
				err = fmt.Errorf("only %d tokens came: %q", got.chunks, got.text)
			}
			return err
		})
	}
}
