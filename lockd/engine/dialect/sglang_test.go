package dialect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/lockd/engine/dialect"
)

// fakeSGLang answers as SGLang's HTTP server does (python/sglang/srt/entrypoints), and dies as
// its scheduler does. Its fields are what a test wants to go wrong.
type fakeSGLang struct {
	recorder
	starting  int // answers of 503 to /health before the warm-up is over
	arguments string
	loads     string
	working   bool // the scheduler has a request
	asleep    bool
	dead      bool
	failing   string // a path that answers 400
	tags      []string
}

const (
	sglangIdle = `{"timestamp":"2026-09-01T10:00:00+00:00","version":"0.5.17","accelerator":"NVIDIA H100 80GB HBM3","num_accelerators":1,"loads":[` +
		`{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"num_used_tokens":0,"num_total_tokens":0,"max_total_num_tokens":442361,"max_running_requests":64,"token_usage":0.0,"gen_throughput":0.0,"cache_hit_rate":0.0,"utilization":0.0}]}`
	sglangArguments = `{"model_path":"/models/llama","enable_memory_saver":true,"enable_weights_cpu_backup":true,"internal_states":[{}],"version":"0.5.17"}`
)

func newFakeSGLang() *fakeSGLang {
	return &fakeSGLang{arguments: sglangArguments, loads: sglangIdle}
}

func (f *fakeSGLang) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.note(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		panic(http.ErrAbortHandler) // the process tree is gone
	}
	if r.URL.Path == f.failing {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"it fails"}}`)
		return
	}
	var in struct{ Tags []string }
	switch route := r.Method + " " + r.URL.Path; {
	case route == "GET /health" && f.starting > 0:
		f.starting--
		w.WriteHeader(http.StatusServiceUnavailable)
	case route == "GET /health", route == "GET /ping":
	case route == "GET /health_generate":
		f.dead = f.asleep // a step without weights
		if f.dead {
			panic(http.ErrAbortHandler)
		}
	case route == "GET /server_info":
		_, _ = io.WriteString(w, f.arguments)
	case route == "GET /v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"llama","object":"model","owned_by":"sglang","root":"llama","max_model_len":8192}]}`)
	case route == "GET /v1/loads" && f.loads != "":
		_, _ = io.WriteString(w, f.loads)
	case route == "POST /flush_cache" && f.working:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "Flush cache failed.\n")
	case route == "POST /flush_cache":
		_, _ = io.WriteString(w, "Cache flushed.\n")
	case route == "POST /release_memory_occupation", route == "POST /resume_memory_occupation":
		sleep := strings.Contains(route, "release")
		if json.NewDecoder(r.Body).Decode(&in) != nil || f.working && sleep || f.asleep == sleep {
			f.dead = true // an assertion, or a KeyError
			panic(http.ErrAbortHandler)
		}
		f.asleep, f.tags = sleep, in.Tags
		_, _ = io.WriteString(w, "null")
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
	}
}

// sglang returns the dialect for a fake that has loaded its model.
func sglang(t *testing.T, fake *fakeSGLang) dialect.Dialect {
	t.Helper()
	d := engine(t, "sglang", dialect.Config{Model: "llama"}, fake)
	require.NoError(t, d.Load(soon(t)))
	fake.take()
	return d
}

func TestSGLangSleepsAndWakes(t *testing.T) {
	fake := newFakeSGLang()
	fake.starting = 2
	d := engine(t, "sglang", dialect.Config{Model: "llama"}, fake)
	require.Equal(t, "sglang", d.Name())
	require.NoError(t, d.Load(soon(t)))
	require.Equal(t, []string{"GET /health", "GET /health", "GET /health", "GET /v1/models", "GET /server_info"}, fake.take(), "the warm-up is waited for")
	require.True(t, d.CanSleep())
	require.False(t, d.SleepWaits())
	require.NoError(t, d.Serving(soon(t)))
	require.NotContains(t, fake.take(), "GET /health", "it would make a token each time")
	slots, err := d.Slots(soon(t))
	require.NoError(t, err)
	require.Equal(t, 64, slots)
	fake.take()

	require.NoError(t, d.Sleep(soon(t)))
	require.Equal(t, []string{"GET /v1/loads?include=core", "POST /flush_cache", "POST /release_memory_occupation", "GET /server_info"}, fake.take())
	require.Equal(t, []string{"kv_cache", "weights"}, fake.tags)
	asleep, err := d.Sleeping(soon(t))
	require.NoError(t, err)
	require.True(t, asleep)
	require.ErrorContains(t, d.Serving(soon(t)), "engine is asleep")
	require.NoError(t, d.Healthy(soon(t)), "no token is made without weights")
	fake.take()
	require.NoError(t, d.Sleep(soon(t)), "a second time, of which SGLang would die")
	require.Empty(t, fake.take())

	require.NoError(t, d.Wake(soon(t)))
	require.Equal(t, []string{"POST /resume_memory_occupation", "GET /health_generate"}, fake.take())
	require.Equal(t, []string{"kv_cache", "weights"}, fake.tags)
	require.NoError(t, d.Serving(soon(t)))
	fake.take()
	require.NoError(t, d.Wake(soon(t)), "a second time, of which SGLang would die")
	require.Equal(t, []string{"GET /server_info"}, fake.take())
	require.ErrorIs(t, d.Move(soon(t), []string{"GPU-1"}), dialect.ErrCannotMove)
	require.False(t, d.CanMove())
}

func TestSGLangNeverSleepsWhileItMayWork(t *testing.T) {
	ranks := func(counts ...int) string {
		var out []string
		for i := 0; i < len(counts); i += 2 {
			out = append(out, fmt.Sprintf(`{"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":%d}`, i/2, counts[i], counts[i+1]))
		}
		return `{"loads":[` + strings.Join(out, ",") + `]}`
	}
	for name, tc := range map[string]struct {
		spoil func(*fakeSGLang)
		kind  error
		want  string
	}{
		"running":                {func(f *fakeSGLang) { f.loads = ranks(2, 0) }, dialect.ErrBusy, "2 running, 0 waiting"},
		"waiting":                {func(f *fakeSGLang) { f.loads = ranks(0, 3) }, dialect.ErrBusy, "0 running, 3 waiting"},
		"another rank":           {func(f *fakeSGLang) { f.loads = ranks(0, 0, 1, 2) }, dialect.ErrBusy, "1 running, 2 waiting"},
		"only the scheduler":     {func(f *fakeSGLang) { f.working = true }, dialect.ErrBusy, "POST /flush_cache responded 400"},
		"an older version":       {func(f *fakeSGLang) { f.loads = "" }, dialect.ErrUnknown, "GET /v1/loads, of 2026 or later"},
		"no ranks":               {func(f *fakeSGLang) { f.loads = `{"loads":[]}` }, dialect.ErrUnknown, "no loads"},
		"another shape":          {func(f *fakeSGLang) { f.loads = `{"loads":[{"dp_rank":0,"num_reqs":0}]}` }, dialect.ErrUnknown, "num_running_reqs"},
		"negative":               {func(f *fakeSGLang) { f.loads = ranks(-1, 0) }, dialect.ErrUnknown, "num_running_reqs"},
		"without a memory saver": {func(f *fakeSGLang) { f.arguments = `{"enable_weights_cpu_backup":true}` }, dialect.ErrNoSleep, "start the engine with --enable-memory-saver"},
		"without a backup":       {func(f *fakeSGLang) { f.arguments = `{"enable_memory_saver":true}` }, dialect.ErrNoSleep, "--enable-weights-cpu-backup"},
		"without either": {func(f *fakeSGLang) { f.arguments = `{}` }, dialect.ErrNoSleep,
			"--enable-memory-saver and --enable-weights-cpu-backup"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newFakeSGLang()
			tc.spoil(fake)
			d := sglang(t, fake)
			err := d.Sleep(soon(t))
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, fake.take(), "POST /release_memory_occupation")
			require.Equal(t, tc.kind != dialect.ErrNoSleep, d.CanSleep())
			require.NoError(t, d.Serving(soon(t)), "it serves on")
		})
	}
}

// A change whose outcome is not known is not made again: SGLang dies of a second one.
func TestSGLangThatFailsAChange(t *testing.T) {
	for _, path := range []string{"/release_memory_occupation", "/resume_memory_occupation"} {
		t.Run(path, func(t *testing.T) {
			fake := newFakeSGLang()
			d := sglang(t, fake)
			change := d.Sleep
			if strings.Contains(path, "resume") {
				require.NoError(t, d.Sleep(soon(t)))
				change = d.Wake
			}
			fake.failing = path
			require.ErrorContains(t, change(soon(t)), "it fails")
			fake.failing = ""
			fake.take()
			for name, call := range map[string]func(context.Context) error{"sleep": d.Sleep, "wake": d.Wake, "serving": d.Serving} {
				require.ErrorContains(t, call(soon(t)), "restart the engine", name)
			}
			require.NotContains(t, fake.take(), "POST "+path)

			// Another process, which the shim has started.
			fake.asleep = false
			require.NoError(t, d.Load(soon(t)))
			require.NoError(t, d.Serving(soon(t)))
			require.NoError(t, d.Sleep(soon(t)))
			require.NoError(t, d.Wake(soon(t)))
		})
	}
	t.Run("made no token", func(t *testing.T) {
		fake := newFakeSGLang()
		d := sglang(t, fake)
		require.NoError(t, d.Sleep(soon(t)))
		fake.failing = "/health_generate"
		require.ErrorContains(t, d.Wake(soon(t)), "the woken engine made no token")
	})
	t.Run("dies", func(t *testing.T) {
		fake := newFakeSGLang()
		d := sglang(t, fake)
		fake.asleep = true // by another program
		require.ErrorContains(t, d.Sleep(soon(t)), "put the engine to sleep")
		require.ErrorContains(t, d.Healthy(soon(t)), "engine is not healthy")
	})
}

// While memory is copied the schedulers answer nothing, and the HTTP server does.
func TestSGLangIsHealthyDuringAChange(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	fake := newFakeSGLang()
	d := engine(t, "sglang", dialect.Config{Model: "llama"}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/release_memory_occupation" {
			close(begun)
			<-end
		}
		fake.ServeHTTP(w, r)
	}))
	require.NoError(t, d.Load(soon(t)))
	slept := make(chan error, 1)
	go func() { slept <- d.Sleep(soon(t)) }()
	<-begun
	fake.take()
	require.NoError(t, d.Healthy(soon(t)))
	require.Equal(t, []string{"GET /ping"}, fake.take())
	require.ErrorIs(t, d.Wake(briefly(t)), context.DeadlineExceeded, "the changes wait for each other")
	close(end)
	require.NoError(t, <-slept)
}

func TestSGLangNotServing(t *testing.T) {
	t.Run("another model", func(t *testing.T) {
		d := engine(t, "sglang", dialect.Config{Model: "other"}, newFakeSGLang())
		require.ErrorContains(t, d.Load(soon(t)), `does not serve model "other": it serves ["llama"]; start it with --served-model-name other`)
	})
	t.Run("never warms up", func(t *testing.T) {
		fake := newFakeSGLang()
		fake.starting = 1 << 30
		d := engine(t, "sglang", dialect.Config{Model: "llama"}, fake)
		err := d.Load(briefly(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "has not finished its warm-up")
	})
	t.Run("not SGLang", func(t *testing.T) {
		d := engine(t, "sglang", dialect.Config{Model: "meta/llama"}, newFakeVLLM())
		require.ErrorContains(t, d.Healthy(soon(t)), "GET /server_info responded 404")
	})
	t.Run("a dead scheduler", func(t *testing.T) {
		fake := newFakeSGLang()
		d := sglang(t, fake)
		fake.dead = true
		require.ErrorContains(t, d.Serving(soon(t)), "engine is not healthy")
		_, err := d.Usage(soon(t))
		require.ErrorContains(t, err, "read the engine's load")
		require.NotErrorIs(t, err, dialect.ErrUnknown, "an engine that does not answer may hang")
	})
}

// TestSGLangProgress: the tokens in the cache change with each step.
func TestSGLangProgress(t *testing.T) {
	fake := newFakeSGLang()
	d := sglang(t, fake)
	progress := func(used, total int) string {
		fake.loads = fmt.Sprintf(`{"loads":[{"num_running_reqs":1,"num_waiting_reqs":0,"num_used_tokens":%d,"num_total_tokens":%d}]}`, used, total)
		u, err := d.Usage(soon(t))
		require.NoError(t, err)
		require.Equal(t, 1, u.InFlight())
		return u.Progress
	}
	before := progress(10, 20)
	require.NotEmpty(t, before)
	require.Equal(t, before, progress(10, 20))
	require.NotEqual(t, before, progress(11, 20), "a token")
	require.NotEqual(t, before, progress(10, 21), "a chunk of a prefill")
}

func TestSGLangSlots(t *testing.T) {
	for loads, want := range map[string]int{
		"":               0,
		`{"loads":[]}`:   0,
		`{"loads":[{}]}`: 0,
		`{"loads":[{"max_running_requests":8},{"max_running_requests":8}]}`: 16,
	} {
		fake := newFakeSGLang()
		fake.loads = loads
		slots, err := sglang(t, fake).Slots(soon(t))
		require.NoError(t, err)
		require.Equal(t, want, slots, loads)
	}
}
