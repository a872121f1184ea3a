package dialect_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/lockd/engine/dialect"
)

// fakeOllama answers as Ollama 0.9.6 was seen to: a dead runner stays in
// /api/ps and is replaced by the next request for its model, an unload waits
// for the model's requests and is taken back by any request in the meantime.
type fakeOllama struct {
	recorder
	blobs     map[string]bool
	models    map[string]string // name to blob
	templates map[string]string
	params    map[string]any
	loaded    bool
	keepAlive float64
	alive     bool // the runner
	loads     int
	inFlight  int
	hang      chan struct{} // if set, a load ends when it is closed
	create    string        // if set, what /api/create answers
	generate  int           // if set, the status of /api/generate
	embedOnly bool
	psFails   int
}

func newFakeOllama(models ...string) *fakeOllama {
	f := &fakeOllama{blobs: map[string]bool{}, models: map[string]string{}, templates: map[string]string{}}
	for _, m := range models {
		f.models[m] = "sha256:aa"
	}
	return f
}

func (f *fakeOllama) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.note(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	digest, isBlob := strings.CutPrefix(r.URL.Path, "/api/blobs/")
	switch route := r.Method + " " + r.URL.Path; {
	case route == "GET /api/version":
		_, _ = io.WriteString(w, `{"version":"0.9.6"}`)
	case route == "GET /api/tags":
		var names []string
		for name := range f.models {
			names = append(names, name)
		}
		f.list(w, names...)
	case route == "GET /api/ps":
		switch {
		case f.psFails > 0:
			f.psFails--
			w.WriteHeader(http.StatusInternalServerError)
		case f.loaded:
			f.list(w, "tiny:latest")
		default:
			f.list(w)
		}
	case r.Method == http.MethodHead && isBlob:
		if !f.blobs[digest] {
			w.WriteHeader(http.StatusNotFound)
		}
	case r.Method == http.MethodPost && isBlob:
		h := sha256.New()
		_, _ = io.Copy(h, r.Body)
		if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"error":"digest mismatch, expected \"%s\", got \"%s\""}`, digest, got)
			return
		}
		f.blobs[digest] = true
		w.WriteHeader(http.StatusCreated)
	case route == "POST /api/create":
		f.serveCreate(w, r)
	case route == "POST /api/generate", route == "POST /api/embed":
		f.serveGenerate(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (f *fakeOllama) list(w io.Writer, names ...string) {
	models := []map[string]any{}
	for _, n := range names {
		models = append(models, map[string]any{"name": n, "model": n, "size": 1})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"models": models})
}

func (f *fakeOllama) serveCreate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model, Template string
		Files           map[string]string
		Parameters      map[string]any
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	w.Header().Set("Content-Type", "application/x-ndjson")
	if f.create != "" {
		_, _ = io.WriteString(w, f.create)
		return
	}
	_, _ = io.WriteString(w, "{\"status\":\"parsing GGUF\"}\n")
	for name, digest := range in.Files {
		if !strings.HasSuffix(name, ".gguf") || !f.blobs[digest] {
			_, _ = io.WriteString(w, "{\"error\":\"open blobs/x: no such file or directory\"}\n")
			return
		}
		f.models[in.Model+":latest"] = digest
		f.templates[in.Model+":latest"] = in.Template
		f.params = in.Parameters
	}
	_, _ = io.WriteString(w, "{\"status\":\"writing manifest\"}\n{\"status\":\"success\"}\n")
}

func (f *fakeOllama) serveGenerate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model     string
		Prompt    string
		KeepAlive *float64 `json:"keep_alive"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	switch {
	case f.generate != 0:
		w.WriteHeader(f.generate)
		_, _ = io.WriteString(w, `{"error":"llama runner process has terminated: signal: killed"}`)
		return
	case f.models[in.Model+":latest"] == "":
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"error":"model '%s' not found"}`, in.Model)
		return
	case *in.KeepAlive == 0:
		f.keepAlive = 0
		if f.inFlight == 0 {
			f.loaded, f.alive = false, false
		}
		_, _ = io.WriteString(w, `{"model":"tiny","response":"","done":true,"done_reason":"unload"}`)
		return
	case f.embedOnly && r.URL.Path == "/api/generate":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"\"tiny\" does not support generate"}`)
		return
	}
	if hang := f.hang; hang != nil && !f.alive {
		f.mu.Unlock()
		select {
		case <-hang:
			f.mu.Lock()
		case <-r.Context().Done(): // the load is aborted
			f.mu.Lock()
			return
		}
	}
	if !f.alive {
		f.loads++
	}
	f.loaded, f.alive, f.keepAlive = true, true, *in.KeepAlive
	_, _ = io.WriteString(w, `{"model":"tiny","response":"","done":true,"done_reason":"load"}`)
}

func (f *fakeOllama) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// finish ends the last request of the model.
func (f *fakeOllama) finish() {
	f.with(func() {
		f.inFlight = 0
		if f.keepAlive == 0 {
			f.loaded, f.alive = false, false
		}
	})
}

func modelFile(t *testing.T, content string) (path, digest string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	sum := sha256.Sum256([]byte(content))
	return path, "sha256:" + hex.EncodeToString(sum[:])
}

func TestOllamaSleepsAndWakes(t *testing.T) {
	fake := newFakeOllama("tiny:latest")
	d := engine(t, "ollama", dialect.Config{Model: "tiny", Parallel: 4}, fake)
	require.True(t, d.CanSleep())
	require.NoError(t, d.Healthy(soon(t)))
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep, "nothing is loaded yet")
	require.ErrorIs(t, d.Serving(soon(t)), dialect.ErrNotLoaded)

	require.NoError(t, d.Load(soon(t)))
	require.NoError(t, d.Serving(soon(t)))
	require.InDelta(t, -1, fake.keepAlive, 0)
	require.Equal(t, 1, fake.loads)
	n, err := d.Slots(soon(t))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	_, err = d.Usage(soon(t))
	require.ErrorIs(t, err, dialect.ErrUnknown)

	require.NoError(t, d.Sleep(soon(t)))
	asleep, err = d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
	require.ErrorIs(t, d.Serving(soon(t)), dialect.ErrNotLoaded)
	require.Equal(t, 1, fake.loads, "looking must not wake it")
	require.NoError(t, d.Sleep(soon(t)), "a second time")

	require.NoError(t, d.Wake(soon(t)))
	require.NoError(t, d.Serving(soon(t)))
	require.Equal(t, 2, fake.loads)
	require.NoError(t, d.Wake(soon(t)), "a second time")
	require.Equal(t, 2, fake.loads)
}

func TestOllamaMakesTheModel(t *testing.T) {
	path, digest := modelFile(t, "weights")
	fake := newFakeOllama()
	d := engine(t, "ollama", dialect.Config{
		Model: "tiny", ModelFile: path, Template: "{{ .Prompt }}!", Parameters: dialect.Parameters{"num_thread": 1},
	}, fake)
	require.NoError(t, d.Load(soon(t)))
	require.Equal(t, []string{
		"HEAD /api/blobs/" + digest, "POST /api/blobs/" + digest, "POST /api/create",
		"POST /api/generate", "GET /api/ps",
	}, fake.take())
	require.Equal(t, map[string]string{"tiny:latest": digest}, fake.models)
	require.Equal(t, "{{ .Prompt }}!", fake.templates["tiny:latest"])
	require.Equal(t, map[string]any{"num_thread": 1.0}, fake.params)

	require.NoError(t, d.Load(soon(t)), "again: nothing to make")
	require.Equal(t, []string{"GET /api/tags", "POST /api/generate", "GET /api/ps"}, fake.take())

	fake.with(func() { clear(fake.models) })
	require.NoError(t, d.Load(soon(t)), "after the server lost it: the blob is still there")
	require.Equal(t, []string{
		"GET /api/tags", "HEAD /api/blobs/" + digest, "POST /api/create", "POST /api/generate", "GET /api/ps",
	}, fake.take())
}

func TestOllamaReplacesAnotherModelOfThatName(t *testing.T) {
	path, digest := modelFile(t, "weights")
	fake := newFakeOllama("tiny:latest")
	d := engine(t, "ollama", dialect.Config{Model: "tiny", ModelFile: path}, fake)
	require.NoError(t, d.Load(soon(t)))
	require.Equal(t, digest, fake.models["tiny:latest"])
}

func TestOllamaCreateErrors(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"error line":       {"{\"status\":\"parsing GGUF\"}\n{\"error\":\"invalid file magic\"}\n", "invalid file magic"},
		"with a status":    {"{\"error\":\"template error: unclosed action\",\"status\":400}\n", "template error: unclosed action"},
		"ends early":       {"{\"status\":\"writing manifest\"}\n", `its last status is "writing manifest"`},
		"error, success":   {"{\"error\":\"disk full\"}\n{\"status\":\"success\"}\n", "disk full"},
		"not JSON":         {"<html>\n", "unexpected progress from Ollama"},
		"one endless line": {strings.Repeat("x", 2<<20), "read progress: bufio.Scanner: token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := modelFile(t, "weights")
			fake := newFakeOllama()
			fake.create = tc.answer
			d := engine(t, "ollama", dialect.Config{Model: "tiny", ModelFile: path}, fake)
			err := d.Load(soon(t))
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, `create model "tiny" from `+path)
		})
	}
	t.Run("no file", func(t *testing.T) {
		d := engine(t, "ollama", dialect.Config{Model: "tiny", ModelFile: "/none.gguf"}, newFakeOllama())
		require.ErrorIs(t, d.Load(soon(t)), os.ErrNotExist)
	})
	t.Run("canceled", func(t *testing.T) {
		path, _ := modelFile(t, "weights")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d := engine(t, "ollama", dialect.Config{Model: "tiny", ModelFile: path}, newFakeOllama())
		require.ErrorIs(t, d.Load(ctx), context.Canceled)
	})
}

func TestOllamaRepairsADeadRunner(t *testing.T) {
	t.Run("at once where loading is quick", func(t *testing.T) {
		fake := newFakeOllama("tiny:latest")
		d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
		require.NoError(t, d.Load(soon(t)))
		fake.with(func() { fake.alive = false })
		require.NoError(t, d.Serving(soon(t)))
		require.True(t, fake.alive)
		require.Equal(t, 2, fake.loads)
	})
	t.Run("by Load where it takes long", func(t *testing.T) {
		fake := newFakeOllama("tiny:latest")
		d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
		require.NoError(t, d.Load(soon(t)))
		hang := make(chan struct{})
		fake.with(func() { fake.alive, fake.hang = false, hang })
		err := d.Serving(briefly(t))
		require.ErrorIs(t, err, dialect.ErrNotLoaded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(hang)
		require.NoError(t, d.Load(soon(t)))
		require.NoError(t, d.Serving(soon(t)))
	})
	t.Run("the new runner fails too", func(t *testing.T) {
		fake := newFakeOllama("tiny:latest")
		d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
		require.NoError(t, d.Load(soon(t)))
		fake.with(func() { fake.generate = http.StatusInternalServerError })
		err := d.Serving(soon(t))
		require.ErrorIs(t, err, dialect.ErrNotLoaded)
		require.ErrorContains(t, err, "llama runner process has terminated: signal: killed")
		require.ErrorContains(t, d.Load(soon(t)), "llama runner process has terminated")
	})
	t.Run("the model was deleted", func(t *testing.T) {
		path, _ := modelFile(t, "weights")
		fake := newFakeOllama()
		d := engine(t, "ollama", dialect.Config{Model: "tiny", ModelFile: path}, fake)
		require.NoError(t, d.Load(soon(t)))
		fake.with(func() { clear(fake.models) })
		require.ErrorIs(t, d.Serving(soon(t)), dialect.ErrNotLoaded)
		require.NoError(t, d.Load(soon(t)))
		require.NoError(t, d.Serving(soon(t)))
	})
}

func TestOllamaServerGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fake := newFakeOllama("tiny:latest")
	d := engine(t, "ollama", dialect.Config{Model: "tiny"}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			panic(http.ErrAbortHandler) // drops the connection
		}
		fake.ServeHTTP(w, r)
	}))
	require.NoError(t, d.Load(soon(t)))
	cancel()
	err := d.Serving(soon(t))
	require.ErrorContains(t, err, "engine is not healthy")
	require.NotErrorIs(t, err, dialect.ErrNotLoaded, "to load cannot help")
	require.Error(t, d.Sleep(soon(t)))
}

func TestOllamaSleepWaitsForRequests(t *testing.T) {
	t.Run("that end", func(t *testing.T) {
		fake := newFakeOllama("tiny:latest")
		d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
		require.NoError(t, d.Load(soon(t)))
		fake.with(func() { fake.inFlight, fake.psFails = 1, 2 })
		done := make(chan error, 1)
		go func() { done <- d.Sleep(soon(t)) }()
		require.Eventually(t, func() bool {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return fake.psFails == 0
		}, time.Minute, time.Millisecond)
		fake.finish()
		require.NoError(t, <-done)
		require.False(t, fake.loaded)
	})
	t.Run("that do not", func(t *testing.T) {
		fake := newFakeOllama("tiny:latest")
		d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
		require.NoError(t, d.Load(soon(t)))
		fake.with(func() { fake.inFlight = 1 })
		err := d.Sleep(briefly(t))
		require.ErrorIs(t, err, dialect.ErrBusy)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		fake.finish()
		require.True(t, fake.loaded, "the unload was taken back")
		require.NoError(t, d.Serving(soon(t)))
		require.Equal(t, 1, fake.loads)
	})
}

func TestOllamaEmbeddingModel(t *testing.T) {
	fake := newFakeOllama("tiny:latest")
	fake.embedOnly = true
	d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
	require.NoError(t, d.Load(soon(t)))
	require.Contains(t, fake.take(), "POST /api/embed")
	require.NoError(t, d.Sleep(soon(t)))
	require.False(t, fake.loaded)
}

func TestOllamaModelMissing(t *testing.T) {
	d := engine(t, "ollama", dialect.Config{Model: "none"}, newFakeOllama("tiny:latest"))
	require.ErrorContains(t, d.Load(soon(t)), `load model "none": POST /api/generate responded 404 Not Found: model 'none' not found`)
	require.NoError(t, d.Sleep(soon(t)), "what is not there uses no memory")
}

func TestOllamaNames(t *testing.T) {
	for listed, names := range map[string][]string{
		"tiny:latest":          {"tiny", "Tiny", "tiny:latest", "library/tiny", "registry.ollama.ai/library/tiny:latest"},
		"tiny:8b":              {"tiny:8b"},
		"meta/Llama:latest":    {"meta/Llama", "meta/llama:latest"},
		"h.example:1/a/b:late": {"h.example:1/a/b:late"},
	} {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				d := engine(t, "ollama", dialect.Config{Model: name}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = fmt.Fprintf(w, `{"models":[{"name":%q}]}`, listed)
				}))
				asleep, err := d.Sleeping(soon(t))
				require.NoError(t, err)
				require.False(t, asleep, "%s must be found as %s", name, listed)
			})
		}
	}
	d := engine(t, "ollama", dialect.Config{Model: "tiny"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"models":[{"name":"tiny:8b"},{"name":"other/tiny:latest"}]}`)
	}))
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
}

func TestNotOllama(t *testing.T) {
	d := engine(t, "ollama", dialect.Config{Model: "m"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{}`)
	}))
	require.ErrorContains(t, d.Healthy(soon(t)), "must be Ollama")
}

// Calls that change the engine wait for each other no longer than their
// context lasts.
func TestOllamaTurns(t *testing.T) {
	fake := newFakeOllama("tiny:latest")
	hang := make(chan struct{})
	fake.hang = hang
	d := engine(t, "ollama", dialect.Config{Model: "tiny"}, fake)
	done := make(chan error, 1)
	go func() { done <- d.Load(soon(t)) }()
	require.Eventually(t, func() bool { return len(fake.take()) > 0 }, time.Minute, time.Millisecond)
	err := d.Sleep(briefly(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "another change of the engine is in progress")
	close(hang)
	require.NoError(t, <-done)
}
