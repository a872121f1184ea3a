package dialect_test

import (
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/lockd/engine/dialect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewNamesEveryBadField(t *testing.T) {
	good := dialect.Config{URL: "http://127.0.0.1:8000", Model: "m"}
	tests := map[string]struct {
		dialect string
		config  dialect.Config
		want    []string
	}{
		"unknown dialect": {"tgi", good, []string{`unknown dialect "tgi": must be one of ollama, sglang, sim, vllm`}},
		"empty config":    {"", dialect.Config{}, []string{`URL is ""`, "model name is empty"}},
		"all wrong": {
			"ollama",
			dialect.Config{
				URL: "http://h:1?q=1", Template: "x", Parallel: -1, Parameters: dialect.Parameters{"a": 1},
				Client: &http.Client{Timeout: time.Second},
			},
			[]string{"must not have a query", "model name is empty", "client's Timeout is 1s", "template is set without a model file", "parameters are set without a model file", "parallel is -1"},
		},
		"not HTTP":  {"vllm", dialect.Config{URL: "unix:///x", Model: "m"}, []string{`URL is "unix:///x": must be the engine's http://HOST:PORT`}},
		"not a URL": {"vllm", dialect.Config{URL: "http://[", Model: "m"}, []string{"URL: parse"}},
		"ollama's fields": {
			"vllm", dialect.Config{URL: good.URL, Model: "m", ModelFile: "f", Template: "t", Parallel: 2, Parameters: dialect.Parameters{"a": 1}},
			[]string{"model file is set", "template is set", "parallel is set", "parameters is set", "only ollama"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := dialect.New(tc.dialect, tc.config)
			require.Nil(t, d)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	d, err := dialect.New("", good)
	require.NoError(t, err)
	require.Equal(t, "vllm", d.Name())
}

// engine starts an HTTP server with the handler and returns the dialect that
// speaks to it.
func engine(t *testing.T, name string, c dialect.Config, h http.Handler) dialect.Dialect {
	t.Helper()
	srv := httptest.NewServer(h)
	c.URL, c.Client = srv.URL, srv.Client()
	t.Cleanup(func() {
		c.Client.CloseIdleConnections()
		srv.Close()
	})
	d, err := dialect.New(name, c)
	require.NoError(t, err)
	return d
}

// soon is a context for what must work, long for what has to be waited for.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// briefly is a context for what must not work: it ends after three looks.
func briefly(t *testing.T) context.Context {
	t.Helper()
	// A loaded machine needs some of it for the questions before the one that is waited on.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// recorder notes which requests came.
type recorder struct {
	mu       sync.Mutex
	requests []string
}

func (r *recorder) note(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, req.Method+" "+req.URL.RequestURI())
}

// take returns what came since the last take.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.requests
	r.requests = nil
	return got
}

func TestParameters(t *testing.T) {
	var p dialect.Parameters
	require.Empty(t, p.String())
	fs := flag.NewFlagSet("t", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Var(&p, "p", "parameter")
	require.NoError(t, fs.Parse([]string{
		"-p", "num_thread=1", "-p", "temperature=0.5", "-p", "use_mmap=false", "-p", "stop=a=b",
		"-p", `stop="7"`, "-p", "stop=null", "-p", "empty=",
	}))
	require.Equal(t, dialect.Parameters{
		"num_thread": 1.0, "temperature": 0.5, "use_mmap": false,
		"stop": []any{"a=b", "7", "null"}, "empty": "",
	}, p)
	require.Equal(t, "empty=,num_thread=1,stop=[a=b 7 null],temperature=0.5,use_mmap=false", p.String())
	for _, bad := range []string{"", "x", "=1", " =1"} {
		require.ErrorContains(t, fs.Parse([]string{"-p", bad}), "must be NAME=VALUE")
	}
}
