//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/jobs"
)

// Models of TestClients beside one for each program.
const (
	cutsModel = "cuts" // its engine drops each stream after some tokens, and is said to be vLLM
	idleModel = "idle" // it has no engine
)

// clientPrograms are the programs in e2e/clients, by the model that each has for itself, and the
// cases that each must print.
var clientPrograms = map[string][]string{
	"openai": {
		"models", "chat streamed", "usage only where asked", "completions", "chat tools", "chat JSON schema", "embeddings",
		"responses streamed", "responses go on", "responses that are stored", "responses tools", "responses JSON schema", "transcriptions", "speech", "images", "moderations", "rerank",
		"a route that the engine has not",
		"an aborted stream frees the engine", "an aborted request frees the engine", "its own time-out",
		"a wrong key", "an unknown model", "a bad request", "a model that the key may not call",
		"a 429 is retried", "a 429 that is final", "a 503 is retried", "an error while a stream waits", "an engine that breaks off",
	},
	"anthropic": {
		"messages", "messages streamed", "tools", "count_tokens",
		"an aborted stream frees the engine", "an aborted request frees the engine", "its own time-out",
		"a wrong key", "an unknown model", "a bad request", "a model that the key may not call",
		"a 429 is retried", "a 429 that is final", "a 503 is retried", "an error while a stream waits", "an engine that breaks off",
	},
	"ai": {
		"text streamed", "usage only where asked", "completions", "tools", "JSON schema", "embeddings",
		"an aborted stream frees the engine", "an aborted request frees the engine", "its own time-out",
		"a wrong key", "an unknown model", "a bad request", "a model that the key may not call",
		"a 429 is retried", "a 429 that is final", "a 503 is retried", "an error while a stream waits", "an engine that breaks off",
	},
}

// TestClients runs the libraries that people use, with pinned versions, against the gateway:
// what they send is understood, and what they get is what they document, errors included.
func TestClients(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) {
		o.GPUs = 4
		// An engine that broke off is used again at once, and clients that wait hear of it soon.
		set(o, "gateway", `
retry_after = "1s"
routing {
  suspect     = "1ms"
  suspect_max = "1ms"
}
queue {
  comment_after = "200ms"
}
`)
	})
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "demo.nomad.hcl"), []byte(paced(t, jobs.Demo, 500)), 0o600))
	cuts := f.modelFile(cutsModel, 1, nil)
	require.NoError(t, os.WriteFile(cuts, []byte(strings.ReplaceAll(f.modelText(cutsModel, 1, nil), `"sim"`, `"vllm"`)), 0o600))
	f.remuda("model", "apply", "-detach", cuts)
	for program := range clientPrograms {
		f.remuda("model", "apply", "-detach", f.modelFile(program, 1, nil))
	}
	given := map[string]string{
		"gateway": f.info.Gateway, "cuts": cutsModel, "idle": idleModel,
		"key":    f.clientKey("free"),
		"narrow": f.clientKey("narrow", "-models", "openai,anthropic,ai"),
		"spent":  f.clientKey("spent", "-tokens-per-day", "1"),
	}
	f.fault("http://"+f.engine(cutsModel).HostPort(), map[string]any{"drop_after_tokens": 3})
	for program := range clientPrograms {
		f.engine(program)
	}
	t.Run("programs", func(t *testing.T) { // which end before the cluster does
		for program, want := range clientPrograms {
			own := map[string]string{"model": program, "engine": "http://" + f.engine(program).HostPort(), "limited": f.clientKey("limited-"+program, "-concurrency", "1")}
			for k, v := range given {
				own[k] = v
			}
			t.Run(program, func(t *testing.T) {
				t.Parallel()
				f.spend(t, program, given["spent"])
				runClient(t, program, own, want)
			})
		}
	})
}

// clientKey creates a key and returns its secret, which the gateway knows.
func (f *fleet) clientKey(name string, limits ...string) string {
	f.t.Helper()
	out := f.remuda(append(append([]string{"key", "create"}, limits...), name)...)
	i := strings.Index(out, "sk-remuda-")
	require.GreaterOrEqual(f.t, i, 0, out)
	secret := strings.Fields(out[i:])[0]
	eventually(f.t, 10*time.Second, "the gateway to know key "+name, func() error {
		status, body, err := f.asClient(http.MethodGet, "/v1/models", secret, nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
	return secret
}

// spend uses a key's budget up. That of a day begins anew at midnight UTC, so it is spent just before it is needed.
func (f *fleet) spend(t *testing.T, model, secret string) {
	t.Helper()
	eventually(t, 10*time.Second, "the budget to be spent", func() error {
		status, body, err := f.asClient(http.MethodPost, "/v1/chat/completions", secret, chatBody(model, "Hello", 4, false))
		if err == nil && status != http.StatusTooManyRequests {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
}

// asClient sends a request with a key.
func (f *fleet) asClient(method, path, secret string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.info.Gateway+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	return resp.StatusCode, b.Bytes(), err
}

// runClient runs a program of e2e/clients beside the installed libraries, and requires each case.
func runClient(t *testing.T, program string, given map[string]string, want []string) {
	libraries, err := filepath.Abs(filepath.Join(filepath.Dir(toolPath(t, "")), "clients", "node_modules"))
	require.NoError(t, err)
	dir := dataDir(t)
	require.NoError(t, os.CopyFS(dir, os.DirFS("clients")))
	require.NoError(t, os.Symlink(libraries, filepath.Join(dir, "node_modules")))
	raw, err := json.Marshal(given)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), toolPath(t, "node"), filepath.Join(dir, program+".mjs"))
	cmd.Env = append(os.Environ(), "REMUDA_CLIENTS="+string(raw))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", out, stderr.String())

	var printed []string
	for line := range strings.Lines(string(out)) {
		var c struct {
			Name, Detail string
			OK           bool
			MS           int
		}
		require.NoError(t, json.Unmarshal([]byte(line), &c), line)
		printed = append(printed, c.Name)
		t.Run(c.Name, func(t *testing.T) {
			require.True(t, c.OK, c.Detail)
			t.Logf("%d ms %s", c.MS, c.Detail)
		})
	}
	missing := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(printed, name) })
	require.Empty(t, missing, "cases that %s.mjs did not print", program)
}
