package gateway_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

const streamBody = `{"model":"m","stream":true}`

// sse sends events, flushing each, and ends.
func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	rc := http.NewResponseController(w)
	for _, e := range events {
		_, _ = io.WriteString(w, e)
		_ = rc.Flush()
	}
}

// open starts a stream; the caller reads it.
func (f *fixture) open(ctx context.Context, body string) *http.Response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(body))
	require.NoError(f.t, err)
	resp, err := f.client.Do(req)
	require.NoError(f.t, err)
	return resp
}

func TestStreamPassesEachEventAtOnce(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	next := make(chan string)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		for e := range next {
			sse(w, e)
		}
	}))
	first := make(chan *http.Response)
	go func() { first <- f.open(t.Context(), streamBody) }()
	// Each event is read by the client before the engine makes the next one.
	events := []string{
		"data: {\"t\":1}\n\n", ": a comment\n\n", "event: x\r\ndata: {\"t\":2}\r\n\r\n", "data: {\"t\":3}\n", "\n", "data: [DONE]\n\n",
	}
	var resp *http.Response
	for i, e := range events {
		next <- e
		if i == 0 {
			resp = <-first
			defer resp.Body.Close()
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Equal(t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
			require.Equal(t, "no", resp.Header.Get("X-Accel-Buffering"))
		}
		got := make([]byte, len(e))
		_, err := io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.Equal(t, e, string(got))
	}
	close(next)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Empty(t, rest)
}

func TestStreamsThatEndWell(t *testing.T) {
	t.Parallel()
	long := "data: {\"t\":\"" + strings.Repeat("x", 100<<10) + "\"}\n\n"
	cases := map[string][]string{
		"plain":                     {"data: {}\n\n", "data: [DONE]\n\n"},
		"no space":                  {"data:{}\n\n", "data:[DONE]\n\n"},
		"carriage returns":          {"data: {}\r\n\r\n", "data: [DONE]\r\n\r\n"},
		"no line break at the end":  {"data: {}\n\n", "data: [DONE]"},
		"one line break at the end": {"data: {}\n\n", "data: [DONE]\n"},
		"break in [DONE]":           {"data: {}\n\nda", "ta: [DO", "NE]\n", "\n"},
		"all at once":               {"data: {}\n\ndata: [DONE]\n\n"},
		"only [DONE]":               {"data: [DONE]\n\n"},
		"lines longer than buffers": {long, long, "data: [DONE]\n\n"},
		"long line in pieces":       {long[:40<<10], long[40<<10:], "data: [DONE]\n\n"},
		"bytewise":                  strings.Split("data: {\"a\":1}\n\ndata: [DONE]\n\n", ""),
		"JSON with the word":        {"data: {\"t\":\"data: [DONE]\"}\n\n", "data: [DONE]\n\n"},
	}
	for name, events := range cases {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t)
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) { sse(w, events...) }))
			a := f.post(streamBody)
			require.Equal(t, http.StatusOK, a.status)
			require.NoError(t, a.err)
			require.Equal(t, strings.Join(events, ""), a.body)
			require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"))
		})
	}
}

// requireBroken checks that a stream has been passed on up to an explicit
// error, and that its end is no clean one.
func requireBroken(t *testing.T, a answer, passed, code string) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status)
	rest, ok := strings.CutPrefix(a.body, passed+"\n\ndata: ")
	require.True(t, ok, "want %q and then an error event, have %q", passed, a.body)
	event, ok := strings.CutSuffix(rest, "\n\n")
	require.True(t, ok, a.body)
	require.NotContains(t, event, "\n")
	requireErrorBody(t, event, code)
	require.Error(t, a.err, "the connection must be cut")
}

func TestStreamsThatBreak(t *testing.T) {
	t.Parallel()
	const one = "data: {\"t\":1}\n\n"
	long := "data: {\"t\":\"" + strings.Repeat("x", 100<<10)
	cut := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	end := func(http.ResponseWriter) {}
	cases := []struct {
		name         string
		sent, passed string
		end          func(http.ResponseWriter)
	}{
		{"connection cut", one, one, cut},
		{"cut in a line", one + "data: {\"t", one, cut},
		{"cut after a line", one + "data: {}\n", one + "data: {}\n", cut},
		{"clean end without [DONE]", one, one, end},
		{"clean end in a line", one + "data: {", one, end},
		{"garbage", one + "Traceback (most recent call last):\n", one, end},
		{"an event that is no JSON", one + "data: {\"t\":1\n\n" + one, one, end},
		{"an event that is no text", one + "data: {\"t\":\"\xff\"}\n\n" + one, one, end},
		{"[DONE] only inside a text", "data: {\"t\":\"\\ndata: [DONE]\"}\n\n", "data: {\"t\":\"\\ndata: [DONE]\"}\n\n", end},
		{"cut in a line that was too long to hold", long, long[:96<<10], cut},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newGateway(t)
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
				sse(w, c.sent)
				c.end(w)
			}))
			requireBroken(t, f.post(streamBody), c.passed, "engine_cut_off")
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "cut"))
		})
	}
}

// TestErrorOfTheEngineIsTheOnlyOne: behind an engine's own error event there is none of the gateway's.
func TestErrorOfTheEngineIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	const message = `{"error":{"message":"out of memory","type":"x","param":null,"code":500}}`
	for name, c := range map[string]struct {
		path, sent, passed string
		cut                bool
	}{
		"clean end":            {chat, "data: {}\n\ndata: " + message + "\n\n", "", false},
		"cut":                  {chat, "data: {}\n\ndata: " + message + "\n\n", "", true},
		"cut before its end":   {chat, "data: {}\n\ndata: " + message + "\n", "data: {}\n\ndata: " + message + "\n\n", true},
		"of the Responses API": {responsesPath, "event: error\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n", "", false},
		"of the Messages API":  {"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\"}}\n\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, f := range []*fixture{newGateway(t), goesOn(t)} {
				f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
					sse(w, c.sent)
					if c.cut {
						panic(http.ErrAbortHandler)
					}
				}))
				a := f.do(http.MethodPost, c.path, streamBody, "Content-Type", "application/json")
				require.Equal(t, cmp.Or(c.passed, c.sent), a.body)
				require.Error(t, a.err, "the connection is cut")
				require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "cut"))
			}
		})
	}
}

func TestCutAfterDoneIsComplete(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {}\n\ndata: [DONE]\n\n")
		panic(http.ErrAbortHandler)
	}))
	a := f.post(streamBody)
	require.NoError(t, a.err)
	require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", a.body)
}

func TestSilentEngine(t *testing.T) {
	t.Parallel()
	short := func(c *gateway.Config) {
		c.Timeouts.FirstByte, c.Timeouts.StreamIdle = 500*time.Millisecond, 500*time.Millisecond
	}
	cases := []struct {
		name, body string
		engine     http.HandlerFunc
		check      func(*testing.T, answer)
	}{
		{"no header", streamBody, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, a answer) {
			a.requireError(t, http.StatusGatewayTimeout, "engine_timeout")
		}},
		{"no first event", streamBody, func(w http.ResponseWriter, _ *http.Request) { sse(w, "") }, func(t *testing.T, a answer) { a.requireError(t, http.StatusGatewayTimeout, "engine_timeout") }},
		{"no whole first line", streamBody, func(w http.ResponseWriter, _ *http.Request) { sse(w, "data: {") }, func(t *testing.T, a answer) { a.requireError(t, http.StatusGatewayTimeout, "engine_timeout") }},
		{"in a stream", streamBody, func(w http.ResponseWriter, _ *http.Request) { sse(w, "data: {}\n\n") }, func(t *testing.T, a answer) { requireBroken(t, a, "data: {}\n\n", "engine_timeout") }},
		{"in a short answer", `{"model":"m"}`, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":`)
			_ = http.NewResponseController(w).Flush()
		}, func(t *testing.T, a answer) { a.requireError(t, http.StatusGatewayTimeout, "engine_timeout") }},
		{"in a long answer", `{"model":"m"}`, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"a":"`+strings.Repeat("x", 100<<10))
			_ = http.NewResponseController(w).Flush()
		}, func(t *testing.T, a answer) {
			require.Equal(t, http.StatusOK, a.status)
			require.Error(t, a.err)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newGateway(t, short)
			left := make(chan struct{})
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that the server notices who leaves
				c.engine(w, r)
				<-r.Context().Done()
				close(left)
			}))
			c.check(t, f.post(c.body))
			await(t, left, "the engine is told")
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "timeout"))
		})
	}
}

func TestSlowStreamIsNotSilent(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) {
		c.Timeouts.FirstByte, c.Timeouts.StreamIdle = 5*time.Second, 5*time.Second
	})
	var want strings.Builder
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := range 12 { // longer than both timeouts together
			<-tick.C
			e := fmt.Sprintf("data: {\"i\":%d}\n\n", i)
			want.WriteString(e)
			sse(w, e)
		}
		want.WriteString("data: [DONE]\n\n")
		sse(w, "data: [DONE]\n\n")
	}))
	a := f.post(streamBody)
	require.NoError(t, a.err)
	require.Equal(t, want.String(), a.body)
}

func TestClientThatLeavesFreesTheEngine(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the answer", "in the stream"} {
		t.Run(when, func(t *testing.T) {
			f := newGateway(t)
			entered, left := make(chan struct{}), make(chan struct{})
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if when == "in the stream" {
					sse(w, "data: {}\n\n")
				}
				close(entered)
				<-r.Context().Done()
				close(left)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(streamBody))
				resp, err := f.client.Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-entered
			cancel()
			select {
			case <-left:
			case <-time.After(patience):
				t.Fatal("the engine was not told")
			}
			<-done
			eventually(t, "the slot is free", func() bool { return f.metric("remuda_gateway_in_flight", "model", "m") == 0 })
			f.counted(1, "code", "499")
			require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the engine is not to blame")
		})
	}
}

// TestClientThatStopsReading does not hold its engine for ever.
func TestClientThatStopsReading(t *testing.T) {
	t.Parallel()
	t.Run("on a new connection", func(t *testing.T) { clientStopsReading(t, 0) })
	t.Run("on one that was used before", func(t *testing.T) { clientStopsReading(t, 1) })
}

func clientStopsReading(t *testing.T, before int) {
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.Write = 500 * time.Millisecond })
	left := make(chan struct{})
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		defer close(left)
		w.Header().Set("Content-Type", "text/event-stream")
		event := "data: " + strings.Repeat("x", 8<<10) + "\n\n"
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
	}))
	c, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer c.Close()
	in := bufio.NewReader(c)
	for range before {
		_, err = io.WriteString(c, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
	}
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chat, len(streamBody), streamBody)
	require.NoError(t, err)
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the engine is held by a client that does not read")
	}
}

func TestStreamIsWhateverTheEngineStreams(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) { sse(w, "data: {}\n\n", "data: [DONE]\n\n") }))
	for _, value := range []string{"true", "1", `"true"`} {
		a := f.post(`{"model":"m","stream":` + value + `}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", a.body)
		require.NoError(t, a.err)
	}
}

// TestDoneEndsTheStream although the engine keeps its connection open.
func TestDoneEndsTheStream(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	f.engines(newRawEngine(t, "a", func(c net.Conn) {
		p := "data: {}\n\ndata: [DONE]\n\n"
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(p), p)
		<-end
	}))
	a := f.post(streamBody) // its patience is far below StreamIdle
	require.NoError(t, a.err)
	require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", a.body)
	require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"))
}

// TestManyStreams runs 200 streams at once, each with its own text, and
// compares every byte.
func TestManyStreams(t *testing.T) {
	const streams, rounds, events = 200, 3, 60
	text := func(id string) string {
		var b strings.Builder
		for i := range events {
			fmt.Fprintf(&b, "data: {\"id\":%q,\"i\":%d,\"t\":%q}\n\n", id, i, strings.Repeat(id, i%7))
		}
		return b.String() + "data: [DONE]\n\n"
	}
	engine := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for _, e := range strings.SplitAfter(text(r.Header.Get("X-Stream")), "\n\n") {
			// Each event is cut in two, in the middle of its line.
			_, _ = io.WriteString(w, e[:len(e)/2])
			_ = rc.Flush()
			_, _ = io.WriteString(w, e[len(e)/2:])
			_ = rc.Flush()
		}
	}
	f := newGateway(t, patient, func(c *gateway.Config) { c.Timeouts.EngineIdle = 500 * time.Millisecond })
	f.engines(newEngine(t, "a", engine), newEngine(t, "b", engine))
	f.post(streamBody) // everything that stays open is open
	f.client.CloseIdleConnections()
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			for round := range rounds {
				id := fmt.Sprintf("s%d-%d", i, round)
				a := f.do(http.MethodPost, chat, streamBody, "X-Stream", id)
				if a.err != nil || a.status != http.StatusOK || a.body != text(id) {
					t.Errorf("stream %s: status %d, error %v, %d bytes", id, a.status, a.err, len(a.body))
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, float64(streams*rounds+1), f.metric("remuda_gateway_requests_total", "code", "200"))
	eventually(t, "no descriptor and no goroutine is left", func() bool {
		f.client.CloseIdleConnections()
		return openFiles(t) <= files+4 && runtime.NumGoroutine() <= goroutines+8
	})
}
