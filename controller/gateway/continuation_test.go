package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/sim/engine"
)

const completions = "/v1/completions"

// simulated is an engine of the model "m" that is as fast as possible. Its text depends
// on the request alone.
type simulated struct {
	url  string
	http *http.Client
}

func newSimulated(t *testing.T, change ...func(*sim.Config)) *simulated {
	t.Helper()
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger = "m", "1", hclog.NewNullLogger()
	cfg.Rates = engine.Rates{}
	cfg.Exit = func(int) {}
	for _, c := range change {
		c(&cfg)
	}
	server, err := sim.New(cfg)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	transport := &http.Transport{}
	s := &simulated{url: "http://" + ln.Addr().String(), http: &http.Client{Transport: transport}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx, ln) })
	t.Cleanup(func() {
		cancel()
		transport.CloseIdleConnections()
		running.Wait()
	})
	eventually(t, "the simulator is ready", func() bool {
		resp, err := s.http.Get(s.url + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}

// stream is the whole answer to a request, as the engine gives it.
func (s *simulated) stream(t *testing.T, path, body string) string {
	t.Helper()
	resp, err := s.http.Post(s.url+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", raw)
	return string(raw)
}

// simCounters are what it has counted.
type simCounters struct {
	Total        simSums
	Tags         map[string]simSums
	MostInFlight int `json:"most_in_flight"`
}

type simSums struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
}

func (s simSums) tokens() float64 { return float64(s.Prompt + s.Completion) }

// counters returns what it has counted; DELETE makes it begin anew.
func (s *simulated) counters(t *testing.T, method string) (out simCounters) {
	t.Helper()
	req, err := http.NewRequest(method, s.url+"/sim/counters", nil)
	require.NoError(t, err)
	resp, err := s.http.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
	return out
}

// breaking is an engine that passes the simulator's streams on and breaks them off.
type breaking struct {
	replica.Engine
	hitMeter
}

// newBreaking starts one. after is how many bytes of its n-th answer, from 1, it passes on;
// less than 0 is all. then, where it is not nil, is called before the stream breaks.
func newBreaking(t *testing.T, s *simulated, id string, after func(n int) int, then func(w http.ResponseWriter, r *http.Request)) *breaking {
	t.Helper()
	b := &breaking{}
	b.Engine = newEngine(t, id, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		limit := after(b.hit())
		req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, s.url+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := s.http.Do(req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		_ = http.NewResponseController(w).Flush()
		src := io.Reader(resp.Body)
		if limit >= 0 {
			src = io.LimitReader(src, int64(limit))
		}
		n, _ := io.Copy(w, src)
		_ = http.NewResponseController(w).Flush()
		if limit >= 0 && n == int64(limit) {
			if then != nil {
				then(w, r)
			}
			panic(http.ErrAbortHandler)
		}
	})
	return b
}

// await waits for something that a test cannot go on without.
func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal(what)
	}
}

func all(int) int { return -1 }

// once breaks the first answer off and no other.
func once(bytes int) func(int) int {
	return func(n int) int {
		if n == 1 {
			return bytes
		}
		return -1
	}
}

// told is what a client makes of a stream.
type told struct {
	Text, Finish, Usage     string
	Roles, Finishes, Usages int
	Done                    bool
	ids                     map[string]bool
	// failed is an error that came as an event.
	failed string
}

// understand reads a stream as a strict client does.
func understand(t *testing.T, stream string) told {
	t.Helper()
	out := told{ids: map[string]bool{}}
	var data []string
	lines := bufio.NewScanner(strings.NewReader(stream))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if v, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimSpace(v))
			continue
		}
		if line != "" {
			require.True(t, strings.HasPrefix(line, ":"), "line %q", line)
			continue
		}
		event := strings.Join(data, "\n")
		data = nil
		if event == "" {
			continue
		}
		require.False(t, out.Done, "an event after [DONE]: %s", event)
		if event == "[DONE]" {
			out.Done = true
			continue
		}
		var c struct {
			ID, Model string
			Created   int64
			Choices   []struct {
				Text   string
				Delta  struct{ Role, Content string }
				Finish *string `json:"finish_reason"`
			}
			Usage struct{ Prompt_tokens, Completion_tokens, Total_tokens int } //nolint:revive // as in JSON
			Error json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(event), &c), "event %q of %s", event, stream)
		if c.Error != nil {
			out.failed = event
			continue
		}
		out.ids[fmt.Sprint(c.ID, c.Model, c.Created)] = true
		if len(c.Choices) == 0 {
			out.Usages++
			out.Usage = fmt.Sprint(c.Usage)
			continue
		}
		one := c.Choices[0]
		out.Text += one.Text + one.Delta.Content
		if one.Delta.Role != "" {
			out.Roles++
		}
		if one.Finish != nil {
			out.Finishes++
			out.Finish = *one.Finish
		}
	}
	return out
}

// goesOn is a gateway whose model "m" may go on elsewhere.
func goesOn(t *testing.T, change ...func(*gateway.Config)) *fixture {
	t.Helper()
	c := newController(t, 1)
	c.state.Models = []api.GatewayModel{{Name: "m", Continuation: true}}
	f := newGateway(t, append([]func(*gateway.Config){c.config, retrying, func(cfg *gateway.Config) {
		// Engines that break often are asked again at once.
		cfg.Routing.Suspect, cfg.Routing.SuspectMax = time.Millisecond, time.Millisecond
	}}, change...)...)
	f.engines()
	f.follows(1)
	return f
}

var continued = []struct{ name, path, body string }{
	{"chat", chat, `{"model":"m","stream":true,"max_tokens":14,"ignore_eos":true,"messages":[{"role":"user","content":"How are you?"}]}`},
	{"chat with usage", chat, `{"model":"m","stream":true,"max_tokens":14,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Tell me of horses."}]}`},
	{"completions", completions, `{"model":"m","stream":true,"max_tokens":14,"ignore_eos":true,"prompt":"Once upon a time"}`},
	{"completions with usage", completions, `{"model":"m","stream":true,"max_tokens":14,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"prompt":"Once more"}`},
}

// requireSame checks that a client has seen no seam.
func requireSame(t *testing.T, want told, a answer) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, a.err)
	got := understand(t, a.body)
	require.Empty(t, got.failed)
	require.Len(t, got.ids, 1, "one ID, model and time: %s", a.body)
	got.ids, want.ids = nil, nil
	require.Equal(t, want, got, a.body)
}

// TestStreamGoesOnElsewhere breaks the stream off at many places, in lines and between them.
func TestStreamGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	for _, c := range continued {
		t.Run(c.name, func(t *testing.T) {
			stream := s.stream(t, c.path, c.body)
			want := understand(t, stream)
			require.True(t, want.Done)
			require.NotEmpty(t, want.Text)
			f := goesOn(t)
			last := strings.LastIndex(stream, "data: [DONE]")
			broken := 0
			for at := 0; at < last; at += 37 {
				a, b := newBreaking(t, s, "a", once(at), nil), newBreaking(t, s, "b", all, nil)
				f.engines(a.Engine, b.Engine)
				got := f.do(http.MethodPost, c.path, c.body)
				requireSame(t, want, got)
				hits := a.hits() + b.hits()
				require.GreaterOrEqual(t, hits, 1)
				if hits > 1 {
					broken++
				}
			}
			require.Greater(t, broken, 5)
			eventually(t, "nothing is held", func() bool {
				return f.metric("remuda_gateway_in_flight", "model", "m") == 0 && f.metric("remuda_gateway_buffered_bytes") == 0
			})
			require.Positive(t, f.metric("remuda_gateway_continuations_total", "model", "m"))
		})
	}
}

// TestStreamGoesOnManyTimes: each engine gives a few tokens and breaks off.
func TestStreamGoesOnManyTimes(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	for _, c := range continued {
		t.Run(c.name, func(t *testing.T) {
			want := understand(t, s.stream(t, c.path, c.body))
			f := goesOn(t)
			engines := make([]*breaking, 3)
			var list []replica.Engine
			for i := range engines {
				engines[i] = newBreaking(t, s, string(rune('a'+i)), func(n int) int { return 900 + 10*n }, nil)
				list = append(list, engines[i].Engine)
			}
			f.engines(list...)
			a := f.do(http.MethodPost, c.path, c.body)
			requireSame(t, want, a)
			hits := 0
			for _, e := range engines {
				hits += e.hits()
			}
			require.Greater(t, hits, 3, "it broke off several times")
			require.Equal(t, float64(hits-1), f.metric("remuda_gateway_continuations_total", "model", "m"))
			require.Equal(t, float64(hits-1), f.metric("remuda_gateway_upstream_errors_total", "kind", "cut"))
		})
	}
}

// TestRefusedContinuation: the next engine fails as well, before it says anything.
func TestRefusedContinuation(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	want := understand(t, s.stream(t, c.path, c.body))
	for name, refuse := range map[string]http.HandlerFunc{
		"with an error":  failsWith(http.StatusInternalServerError, "application/json", `{"error":{"message":"no"}}`),
		"with no stream": says("x"),
		"by a cut":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"in its stream": func(w http.ResponseWriter, _ *http.Request) {
			sse(w, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n", "data: [DONE]\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := goesOn(t)
			var m hitMeter
			a := newBreaking(t, s, "a", once(1200), nil)
			bad := newEngine(t, "b", m.of(refuse))
			f.engines(a.Engine, bad)
			for a.hits() < 2 { // once broken off, once more after the other has refused
				requireSame(t, want, f.do(http.MethodPost, c.path, c.body))
			}
			require.Positive(t, m.hits())
		})
	}
}

// TestRestartedEngineGoesOn: the only engine breaks off, and is back a moment later at
// another address.
func TestRestartedEngineGoesOn(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	want := understand(t, s.stream(t, c.path, c.body))
	f := goesOn(t)
	broken := make(chan struct{})
	f.engines(newBreaking(t, s, "a", once(1200), func(http.ResponseWriter, *http.Request) {
		f.engines() // Consul lists it no more
		close(broken)
	}).Engine)
	got := make(chan answer, 1)
	go func() { got <- f.do(http.MethodPost, c.path, c.body) }()
	await(t, broken, "the stream breaks off")
	eventually(t, "it waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
	again := newBreaking(t, s, "a", all, nil)
	again.Token = replica.Token{Counter: 2}
	f.engines(again.Engine)
	requireSame(t, want, <-got)
	require.Equal(t, 1, again.hits())
}

// requireExplicit checks that the client has the first part of the text, an error and a cut
// connection.
func requireExplicit(t *testing.T, want told, a answer, code string) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Error(t, a.err, "the connection is cut: %s", a.body)
	got := understand(t, a.body)
	require.NotEmpty(t, got.failed, a.body)
	requireErrorBody(t, got.failed, code)
	require.True(t, strings.HasSuffix(a.body, "data: "+got.failed+"\n\n"), "nothing comes after it: %s", a.body)
	require.False(t, got.Done)
	require.Zero(t, got.Finishes)
	require.True(t, strings.HasPrefix(want.Text, got.Text), "%q is the beginning of %q", got.Text, want.Text)
	require.LessOrEqual(t, len(got.ids), 1)
}

// firstText tells when the first 600 bytes of its one answer have reached the client: an event of its text
// is among them.
type firstText struct {
	http.RoundTripper
	seen chan struct{}
}

func (f *firstText) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &firstBytes{ReadCloser: resp.Body, seen: f.seen}
	}
	return resp, err
}

type firstBytes struct {
	io.ReadCloser
	seen chan struct{} // nil once it is closed
	n    int
}

func (b *firstBytes) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if b.n += n; b.n >= 600 && b.seen != nil {
		close(b.seen)
		b.seen = nil
	}
	return n, err
}

func TestNoEngineIsLeftToGoOn(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	for _, c := range continued {
		t.Run(c.name, func(t *testing.T) {
			want := understand(t, s.stream(t, c.path, c.body))
			f := goesOn(t, func(cfg *gateway.Config) {
				cfg.Queue.Wait, cfg.Queue.Restart = 500*time.Millisecond, 500*time.Millisecond
			})
			text := &firstText{RoundTripper: f.client.Transport, seen: make(chan struct{})}
			f.client.Transport = text
			a := newBreaking(t, s, "a", once(1200), func(http.ResponseWriter, *http.Request) {
				await(t, text.seen, "the client has text")
				f.engines()
			})
			f.engines(a.Engine)
			got := f.do(http.MethodPost, c.path, c.body)
			f.client.Transport = text.RoundTripper
			requireExplicit(t, want, got, "engine_cut_off")
			require.NotEmpty(t, understand(t, got.body).Text)
			require.Equal(t, 1, a.hits())
			require.Equal(t, 1.0, f.metric("remuda_gateway_queue_timeouts_total", "model", "m"))
			require.Zero(t, f.metric("remuda_gateway_queue_length", "model", "m"))
			require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
		})
	}
}

// TestEnginesThatAddNothing: a request that fells every engine before another token does not
// go round for ever.
func TestEnginesThatAddNothing(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	stream := s.stream(t, c.path, c.body)
	want := understand(t, stream)
	role := strings.Index(stream, "\n\n") + 2
	require.Equal(t, 1, understand(t, stream[:role]).Roles)
	require.Empty(t, understand(t, stream[:role]).Text)
	f := goesOn(t)
	a, b := newBreaking(t, s, "a", func(int) int { return role }, nil), newBreaking(t, s, "b", func(int) int { return role }, nil)
	f.engines(a.Engine, b.Engine)
	requireExplicit(t, want, f.do(http.MethodPost, c.path, c.body), "engine_cut_off")
	require.Equal(t, 3, a.hits()+b.hits())
}

// TestProbeThatGoesOn: the beginning of a continuation is an answer as any other, so the
// engine is not a suspect until the end of that stream.
func TestProbeThatGoesOn(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	want := understand(t, s.stream(t, c.path, c.body))
	streaming, end := make(chan struct{}), make(chan struct{})
	var m hitMeter
	only := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		stream := s.stream(t, r.URL.Path, string(body))
		switch m.hit() {
		case 1: // silent in the middle: the breaker opens at once
			sse(w, stream[:1200])
			<-r.Context().Done()
		case 2:
			at := strings.Index(stream[600:], "\n\n") + 602
			sse(w, stream[:at])
			close(streaming)
			for waits := true; waits; { // and is never silent for StreamIdle
				select {
				case <-end:
					waits = false
				case <-r.Context().Done():
					waits = false
				case <-time.After(100 * time.Millisecond):
					sse(w, ": still here\n\n")
				}
			}
			sse(w, stream[at:])
		default:
			sse(w, stream)
		}
	})
	// Not about 5 s, after which the simulator closes a connection that is idle.
	f := goesOn(t, func(cfg *gateway.Config) { cfg.Timeouts.StreamIdle = 8 * time.Second })
	f.engines(only)
	got := make(chan answer, 1)
	go func() { got <- f.do(http.MethodPost, c.path, c.body) }()
	await(t, streaming, "the stream goes on")
	requireSame(t, want, f.do(http.MethodPost, c.path, c.body, "X-Remuda-Timeout", patience.String()))
	close(end)
	requireSame(t, want, <-got)
}

func TestContinuationThatIsOff(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	want := understand(t, s.stream(t, c.path, c.body))
	off := func(t *testing.T, f *fixture, body string, want told) {
		t.Helper()
		a, b := newBreaking(t, s, "a", once(1200), nil), newBreaking(t, s, "b", once(1200), nil)
		f.engines(a.Engine, b.Engine)
		requireExplicit(t, want, f.do(http.MethodPost, c.path, body), "engine_cut_off")
		require.Equal(t, 1, a.hits()+b.hits())
		require.Zero(t, f.metric("remuda_gateway_continuations_total"))
	}
	t.Run("without a controller", func(t *testing.T) { off(t, newGateway(t, retrying), c.body, want) })
	t.Run("the model says nothing of it", func(t *testing.T) {
		ctl := newController(t, 1)
		ctl.state.Models = []api.GatewayModel{{Name: "m"}}
		f := newGateway(t, ctl.config, retrying)
		f.engines()
		f.follows(1)
		off(t, f, c.body, want)
	})
	t.Run("one attempt", func(t *testing.T) {
		off(t, goesOn(t, func(cfg *gateway.Config) { cfg.Retries.Attempts = 1 }), c.body, want)
	})
	t.Run("such a request cannot go on", func(t *testing.T) {
		body := strings.Replace(c.body, `"stream":true`, `"stream":true,"stop":"§","include_stop_str_in_output":true`, 1)
		off(t, goesOn(t), body, understand(t, s.stream(t, c.path, body)))
	})
}

func TestClientThatLeavesInAContinuation(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	c := continued[0]
	for _, when := range []string{"while it waits", "while the next engine is silent", "while the next engine streams"} {
		t.Run(when, func(t *testing.T) {
			f := goesOn(t)
			reached, left := make(chan struct{}), make(chan struct{})
			first := newBreaking(t, s, "a", once(1200), func(http.ResponseWriter, *http.Request) {
				if when == "while it waits" {
					f.engines()
					close(reached)
					return
				}
				next := newEngine(t, "b", func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					if strings.HasSuffix(when, "streams") {
						sse(w, s.stream(t, r.URL.Path, string(body))[:1200])
					}
					close(reached)
					<-r.Context().Done()
					close(left)
				})
				f.engines(next)
			})
			f.engines(first.Engine)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp := f.open(ctx, c.body) // the client has the answer's header
			defer resp.Body.Close()
			await(t, reached, "the stream goes on")
			if when == "while it waits" {
				eventually(t, "it waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
			}
			cancel()
			_, err := io.Copy(io.Discard, resp.Body)
			require.ErrorIs(t, err, context.Canceled)
			if when != "while it waits" {
				await(t, left, "the engine is told")
			}
			eventually(t, "everything is free", func() bool {
				return f.metric("remuda_gateway_queue_length") == 0 && f.metric("remuda_gateway_in_flight") == 0 &&
					f.metric("remuda_gateway_buffered_bytes") == 0 && f.metric("remuda_gateway_requests_total", "code", "499") == 1
			})
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"), "only the first one is to blame")
		})
	}
}
