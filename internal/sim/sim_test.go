package sim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/weights"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	modelName = "org/tiny:1b"
	patience  = time.Minute // for polls; reached only when a test fails
)

// sim1 is a running engine and a client of it.
type sim1 struct {
	t    *testing.T
	url  string
	http *http.Client
	stop context.CancelFunc
	ran  chan error // Run's result
	exit chan int   // what Exit was called with
}

// in is s for a subtest, which must not end its parent.
func (s *sim1) in(t *testing.T) *sim1 {
	sub := *s
	sub.t = t
	return &sub
}

// start runs an engine that is as fast as possible until the test's end.
func start(t *testing.T, change func(*sim.Config)) *sim1 {
	t.Helper()
	s := launch(t, change)
	require.Eventually(t, func() bool { return s.status(http.MethodGet, "/health") == http.StatusOK }, patience, time.Millisecond)
	return s
}

// launch is start without waiting for the engine to be ready.
func launch(t *testing.T, change func(*sim.Config)) *sim1 {
	t.Helper()
	s := &sim1{t: t, ran: make(chan error, 1), exit: make(chan int, 1)}
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger = modelName, "1.2.3", hclog.NewNullLogger()
	cfg.Rates = engine.Rates{}
	cfg.Exit = func(code int) { s.exit <- code }
	if change != nil {
		change(&cfg)
	}
	server, err := sim.New(cfg)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.url = "http://" + ln.Addr().String()
	transport := &http.Transport{}
	s.http = &http.Client{Transport: transport}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	done := make(chan struct{})
	go func() { defer close(done); s.ran <- server.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		transport.CloseIdleConnections()
		<-done
	})
	return s
}

// result waits for Run.
func (s *sim1) result() error {
	s.t.Helper()
	select {
	case err := <-s.ran:
		return err
	case <-time.After(patience):
		require.FailNow(s.t, "Run did not return")
		return nil
	}
}

func (s *sim1) request(ctx context.Context, method, path, body string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// do sends a request and reads the whole answer.
func (s *sim1) do(method, path, body string) (status int, answer string) {
	s.t.Helper()
	resp, err := s.http.Do(s.request(s.t.Context(), method, path, body))
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, string(b)
}

func (s *sim1) status(method, path string) int {
	status, _ := s.do(method, path, "")
	return status
}

// ok sends a request that must succeed and decodes the answer.
func (s *sim1) ok(path, body string, into any) {
	s.t.Helper()
	status, answer := s.do(http.MethodPost, path, body)
	require.Equal(s.t, http.StatusOK, status, answer)
	require.NoError(s.t, json.Unmarshal([]byte(answer), into), answer)
}

// fault changes fault switches.
func (s *sim1) fault(object string) {
	s.t.Helper()
	status, answer := s.do(http.MethodPost, "/sim/faults", object)
	require.Equal(s.t, http.StatusOK, status, answer)
}

// apiError is the body of an error.
type apiError struct {
	Error struct {
		Message, Type string
		Param         *string
		Code          int
	}
}

// refused sends a request that must fail, with an error in OpenAI's shape.
func (s *sim1) refused(method, path, body string, status int) apiError {
	s.t.Helper()
	got, answer := s.do(method, path, body)
	require.Equal(s.t, status, got, answer)
	var e apiError
	dec := json.NewDecoder(strings.NewReader(answer))
	dec.DisallowUnknownFields()
	require.NoError(s.t, dec.Decode(&e), answer)
	require.Equal(s.t, status, e.Error.Code)
	require.NotEmpty(s.t, e.Error.Message)
	require.NotEmpty(s.t, e.Error.Type)
	return e
}

// response is an answer or one event of a stream, of either kind.
type response struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct {
		Index      int
		Text       string
		Message    struct{ Role, Content string }
		Delta      struct{ Role, Content *string }
		Finish     *string `json:"finish_reason"`
		StopReason *string `json:"stop_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
}

// stream is an open event stream.
type stream struct {
	t    *testing.T
	resp *http.Response
	r    *bufio.Reader
}

func (s *sim1) stream(ctx context.Context, path, body string) *stream {
	s.t.Helper()
	resp, err := s.http.Do(s.request(ctx, http.MethodPost, path, body))
	require.NoError(s.t, err)
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		require.FailNow(s.t, "no stream", "%d %s", resp.StatusCode, b)
	}
	require.Equal(s.t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
	return &stream{t: s.t, resp: resp, r: bufio.NewReader(resp.Body)}
}

// next reads one event; ok is false after [DONE], where nothing may follow.
func (s *stream) next() (r response, ok bool) {
	s.t.Helper()
	line, err := s.r.ReadString('\n')
	require.NoError(s.t, err, "%q", line)
	blank, err := s.r.ReadString('\n')
	require.NoError(s.t, err)
	require.Equal(s.t, "\n", blank)
	data, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
	require.True(s.t, found, line)
	if data == "[DONE]" {
		rest, err := io.ReadAll(s.r)
		require.NoError(s.t, err)
		require.Empty(s.t, rest)
		require.NoError(s.t, s.resp.Body.Close())
		return response{}, false
	}
	require.NoError(s.t, json.Unmarshal([]byte(data), &r), data)
	return r, true
}

// all reads the rest of the stream.
func (s *stream) all() (events []response) {
	for {
		e, ok := s.next()
		if !ok {
			return events
		}
		events = append(events, e)
	}
}

// drain reads the rest of the answer.
func (s *stream) drain() {
	s.t.Helper()
	_, err := io.Copy(io.Discard, s.resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, s.resp.Body.Close())
}

// metrics scrapes the engine: each series by its name and the labels that
// vary, as "name" or "name{label=value}".
func (s *sim1) metrics() map[string]float64 {
	s.t.Helper()
	status, body := s.do(http.MethodGet, "/metrics", "")
	require.Equal(s.t, http.StatusOK, status)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader([]byte(body)))
	require.NoError(s.t, err)
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				if n := l.GetName(); n == "finished_reason" || n == "sleep_state" {
					key += "{" + n + "=" + l.GetValue() + "}"
				}
			}
			switch {
			case m.GetHistogram() != nil:
				out[key+"_count"] = float64(m.GetHistogram().GetSampleCount())
				out[key+"_sum"] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				out[key] = m.GetCounter().GetValue()
			default:
				out[key] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// idle waits until the engine holds no request and no block.
func (s *sim1) idle() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		m := s.metrics()
		return m["vllm:num_requests_running"]+m["vllm:num_requests_waiting"]+m["vllm:kv_cache_usage_perc"] == 0
	}, patience, time.Millisecond)
}

// weightsFile makes a small weights file.
func weightsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(path, weights.Spec{Size: 1 << 20, Seed: 1})
	require.NoError(t, err)
	return path
}
