package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// commentsEvery lets clients that stream be told where they stand, soon and often.
func commentsEvery(d time.Duration) func(*gateway.Config) {
	return func(c *gateway.Config) { c.Queue.CommentAfter, c.Queue.CommentEvery = d, d }
}

// listener is a client that reads a stream line by line.
type listener struct {
	t     *testing.T
	leave context.CancelFunc
	// header is there once there is a line.
	header http.Header
	status int
	lines  chan string // closed at the end
	// trailer and err, of reading, are set then.
	trailer http.Header
	err     error
}

// listen sends a request for a stream and returns at once.
func (f *fixture) listen(id, body string, header ...string) *listener {
	return f.listenAt(chat, id, body, header...)
}

func (f *fixture) listenAt(path, id, body string, header ...string) *listener {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	l := &listener{t: f.t, leave: cancel, lines: make(chan string, 10_000)}
	f.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	require.NoError(f.t, err)
	req.Header.Set("X-Request-Id", id)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	go func() {
		defer close(l.lines)
		resp, err := f.client.Do(req)
		if err != nil {
			l.err = err
			return
		}
		defer resp.Body.Close()
		l.status, l.header = resp.StatusCode, resp.Header
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			if line != "" {
				l.lines <- line
			}
			if err != nil {
				if l.trailer = resp.Trailer; err != io.EOF {
					l.err = err
				}
				return
			}
		}
	}()
	return l
}

// line is the next one, without blank ones; false at the end.
func (l *listener) line() (string, bool) {
	l.t.Helper()
	for {
		select {
		case line, ok := <-l.lines:
			if !ok || line != "\n" {
				return strings.TrimSuffix(line, "\n"), ok
			}
		case <-time.After(patience):
			l.t.Fatal("the stream is silent")
		}
	}
}

var commentLine = regexp.MustCompile(`^: remuda state=([A-Z]+) position=(\d+) waited=\d+s$`)

// comment is the next line, which must be a comment; it returns its state and position.
func (l *listener) comment() (state, position string) {
	l.t.Helper()
	line, ok := l.line()
	require.True(l.t, ok, "the stream ended: %v", l.err)
	m := commentLine.FindStringSubmatch(line)
	require.NotNil(l.t, m, line)
	return m[1], m[2]
}

// stands waits for a comment with a state and a position.
func (l *listener) stands(state string, position int) {
	l.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		s, p := l.comment()
		if s == state && p == fmt.Sprint(position) {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the last comment says %s %s, want %s %d", s, p, state, position)
		}
	}
}

// end returns all lines that are no comments, up to the end.
func (l *listener) end() (out []string) {
	l.t.Helper()
	for {
		line, ok := l.line()
		if !ok {
			return out
		}
		if !strings.HasPrefix(line, ":") {
			out = append(out, line)
		}
	}
}

// requireStream checks that the comments are followed by the whole answer.
func (l *listener) requireStream(id string) {
	l.t.Helper()
	require.Equal(l.t, []string{fmt.Sprintf(`data: {"said":%q}`, id), "data: [DONE]"}, l.end())
	require.NoError(l.t, l.err)
}

// requireErrorEvent checks that the comments are followed by an error in the form of the path's API,
// and a proper end.
func (l *listener) requireErrorEvent(path, code string) apiError {
	l.t.Helper()
	got := l.end()
	require.NoError(l.t, l.err)
	require.Equal(l.t, http.StatusOK, l.status)
	require.Len(l.t, got, 2)
	if path == chat {
		require.Equal(l.t, "data: [DONE]", got[1])
	} else {
		require.Equal(l.t, "event: error", got[0])
		got = got[1:]
	}
	event, ok := strings.CutPrefix(got[0], "data: ")
	require.True(l.t, ok, got[0])
	require.NotContains(l.t, event, "Retry-After", "a stream has no such header any more")
	if path != chat {
		event, ok = strings.CutPrefix(event, `{"type":"error",`)
		require.True(l.t, ok, event)
		event = "{" + event
	}
	return requireErrorBody(l.t, event, code)
}

func deploying(model string) []api.GatewayReplica {
	return []api.GatewayReplica{{Name: model + ":v:1", Model: model, Variant: "v", Status: "starting"}}
}

// TestStreamIsToldWhereItStands until its answer comes, which then is as without waiting.
func TestStreamIsToldWhereItStands(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond))
	s := newTurnstile(t, "a", 1)
	f.engines()
	f.follows(2)
	var ls []*listener
	for i := range 3 {
		ls = append(ls, f.listen(fmt.Sprintf("s%d", i), streamBody))
		f.waiting("m", i+1)
	}
	unary := f.later("unary", unaryBody)
	f.waiting("m", 4)
	for i, l := range ls {
		l.stands(api.QueueProvisioning, i+1)
		require.Equal(t, http.StatusOK, l.status)
		require.Equal(t, "text/event-stream", l.header.Get("Content-Type"))
		require.Equal(t, "no-cache", l.header.Get("Cache-Control"))
		require.Equal(t, "no", l.header.Get("X-Accel-Buffering"))
		require.Regexp(t, `^[0-9a-f]{32}$`, l.header.Get("X-Request-Id"))
	}
	c.change(func() { c.index, c.state.Replicas = 3, deploying("m") })
	ls[2].stands(api.QueueDeploying, 3)
	// What the controller could not start is no longer on its way.
	c.change(func() { c.index, c.state.Replicas[0].Status = 4, "failed" })
	ls[2].stands(api.QueueProvisioning, 3)
	ls[1].leave()
	ls[2].stands(api.QueueProvisioning, 2)

	f.engines(s.Engine)
	require.Equal(t, "s0", s.next())
	ls[2].stands(api.QueueBusy, 1)
	s.leave <- struct{}{}
	ls[0].requireStream("s0")
	require.Equal(t, "m:v:a", ls[0].trailer.Get("X-Remuda-Replica"))
	require.Equal(t, "1", ls[0].trailer.Get("X-Remuda-Attempts"))
	require.Equal(t, "s2", s.next())
	s.leave <- struct{}{}
	ls[2].requireStream("s2")
	require.Equal(t, "unary", s.next())
	s.leave <- struct{}{}
	(<-unary).requireWhole(t, "unary")
	f.requireRest()
	require.Equal(t, 2.0, f.metric("remuda_gateway_time_to_first_byte_seconds", "route", "chat")-1, "comments are no first byte")
}

// TestCommentsAreForStreams: neither an embedding nor HTTP/1.0 has them, and a wait that is
// short keeps its status.
func TestCommentsAreForStreams(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, commentsEvery(5*time.Millisecond), func(c *gateway.Config) { c.RetryAfter = time.Second })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody)
	s.next()
	embedding := f.do(http.MethodPost, "/v1/embeddings", streamBody, "X-Remuda-Timeout", "100ms")
	embedding.requireError(t, http.StatusServiceUnavailable, "queue_timeout")
	conn, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.0\r\nX-Remuda-Timeout: 100ms\r\nContent-Length: %d\r\n\r\n%s", chat, len(streamBody), streamBody)
	old, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(old), "503 Service Unavailable")
	require.NotContains(t, string(old), ": remuda")
	s.leave <- struct{}{}
	(<-first).requireWhole(t, "first")

	f = newGateway(t, patient, func(c *gateway.Config) { c.Queue.CommentAfter = gateway.DefaultConfig().Queue.CommentAfter }) // 2 s
	f.engines()
	early := f.later("early", streamBody, "X-Remuda-Timeout", "100ms")
	f.tell(false, engineAt("x", "127.0.0.1:1"))
	f.engines()
	a := <-early
	require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusNotFound}, a.status, "no stream has begun")
}

// TestErrorsAfterComments come as an event, and the stream ends properly: it is the
// gateway's own.
func TestErrorsAfterComments(t *testing.T) {
	t.Parallel()
	json := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const refusal = `{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}`
	cases := []struct {
		name, code string
		engine     http.HandlerFunc
		engines    int // 0: one, and no retries
		do         func(*boss)
		counted    string // the code in metrics
	}{
		{name: "engine refuses", code: "context_length_exceeded", engine: json(400, "{\n"+refusal[1:]+"\n"), counted: "400"},
		{name: "engine refuses in words", code: "engine_refused", counted: "422", engine: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no\nsuch thing", http.StatusUnprocessableEntity)
		}},
		{name: "engine fails", code: "boom", engine: json(500, `{"error":{"message":"x","type":"y","param":null,"code":"boom"}}`), counted: "500"},
		{name: "engine goes", code: "engine_gone", engine: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, counted: "502"},
		{name: "engines go", code: "request_ends_engines", engine: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, engines: 3, counted: "502"},
		{name: "engine talks nonsense", code: "engine_bad_content", engine: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, counted: "502"},
		{name: "engine sends too much", code: "engine_bad_content", engine: json(200, `{"a":"`+strings.Repeat("x", 100<<10)+`"}`), counted: "502"},
		{name: "model is stopped", code: "model_stopped", do: func(c *boss) { c.change(func() { c.index, c.state.Models[0].Stopped = 3, true }) }, counted: "404"},
		{name: "model is deleted", code: "model_not_found", do: func(c *boss) { c.change(func() { c.index, c.state.Models = 3, nil }) }, counted: "404"},
		{name: "nobody comes", code: "model_unavailable", do: func(*boss) {}, counted: "503"},
	}
	run := func(t *testing.T, path string) {
		t.Parallel()
		for _, one := range cases {
			t.Run(one.name, func(t *testing.T) {
				c := newBossOf(t, api.GatewayModel{Name: "m"})
				f := newGateway(t, c.config, commentsEvery(20*time.Millisecond), func(c *gateway.Config) {
					c.Queue.Wait, c.Routing.Remember, c.Retries.Attempts = patience, 0, max(int64(one.engines), 1)
				})
				f.engines()
				f.follows(2)
				wait := "50s"
				if one.name == "nobody comes" {
					wait = "2s" // its first comment comes long before
				}
				l := f.listenAt(path, "s", streamBody, "X-Remuda-Timeout", wait)
				l.comment()
				if one.do != nil {
					one.do(c)
				} else {
					var engines []replica.Engine
					for i := range max(one.engines, 1) {
						engines = append(engines, newEngine(t, fmt.Sprint("e", i), one.engine))
					}
					f.engines(engines...)
				}
				e := l.requireErrorEvent(path, one.code)
				if one.code == "context_length_exceeded" {
					require.Equal(t, "too long", e.Message)
				}
				if one.code != "model_not_found" { // that model has no series any more
					f.counted(1, "model", "m", "code", one.counted)
				}
				if strings.HasPrefix(one.counted, "50") && one.engine != nil {
					require.Equal(t, float64(max(one.engines, 1)), f.metric("remuda_gateway_upstream_errors_total", "model", "m"), "it is the engine's fault")
				}
				f.requireRest()
			})
		}
	}
	for _, path := range []string{chat, "/v1/messages", responsesPath} {
		t.Run(path, func(t *testing.T) { run(t, path) })
	}
}

// TestStreamThatBreaksAfterComments is cut, as one without comments.
func TestStreamThatBreaksAfterComments(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, commentsEvery(20*time.Millisecond))
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody)
	s.next()
	l := f.listen("s", streamBody)
	l.comment()
	f.engines(newEngine(t, "b", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {}\n\n")
		panic(http.ErrAbortHandler)
	}))
	got := l.end()
	require.Error(t, l.err)
	require.Len(t, got, 2)
	require.Equal(t, "data: {}", got[0])
	requireErrorBody(t, strings.TrimPrefix(got[1], "data: "), "engine_cut_off")
	s.leave <- struct{}{}
	(<-first).requireWhole(t, "first")
}

// TestManyWaitForOneEngine: N requests want the model once, as far as one report can tell,
// are seen in the queue, and are all served when the engine is there.
func TestManyWaitForOneEngine(t *testing.T) {
	t.Parallel()
	const n = 50
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "other"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond))
	f.engines()
	f.follows(2)
	began := time.Now()
	var unary []<-chan answer
	var streams []*listener
	for i := range n / 2 {
		unary = append(unary, f.later(fmt.Sprintf("u%d", i), unaryBody))
		streams = append(streams, f.listen(fmt.Sprintf("s%d", i), streamBody))
	}
	f.waiting("m", n)
	c.reported("all that wait", func(r api.GatewayReport) bool {
		return len(r.Queues) == 1 && r.Queues[0].Waiting == n && len(r.Queues[0].Requests) == n && r.Queues[0].State == api.QueueProvisioning
	})
	c.change(func() { c.index, c.state.Replicas = 3, deploying("m") })
	c.reported("that it is deployed", func(r api.GatewayReport) bool {
		return len(r.Queues) == 1 && r.Queues[0].Waiting == n && r.Queues[0].State == api.QueueDeploying
	})
	wanted := c.wanted()
	require.NotContains(t, wanted, "other")
	require.Positive(t, wanted["m"])
	// Reports are 100 ms apart, but for the first that wants a model.
	require.LessOrEqual(t, wanted["m"], 2+int(time.Since(began)/(100*time.Millisecond)))

	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answerAs(w, r, body)
	})
	f.engines(e)
	for i := range n / 2 {
		(<-unary[i]).requireWhole(t, fmt.Sprintf("u%d", i))
		streams[i].requireStream(fmt.Sprintf("s%d", i))
	}
	f.requireRest()
	c.change(func() { c.reports = nil })
	c.reported("what is left", func(r api.GatewayReport) bool { return len(r.Queues) == 1 && r.Queues[0].InFlight == 0 })
	require.Empty(t, c.wanted(), "it is there")
}

// TestUnaryWaitsForAsLongAsItSays and is told when to come back.
func TestUnaryWaitsForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config, func(c *gateway.Config) { c.RetryAfter = 77 * time.Second })
	s := newTurnstile(t, "a", 1)
	f.engines()
	f.follows(2)
	refused := func(timeout string, least time.Duration, code string) answer {
		began := time.Now()
		a := f.post(unaryBody, "X-Remuda-Timeout", timeout)
		require.GreaterOrEqual(t, time.Since(began), least)
		require.Less(t, time.Since(began), least+patience/2)
		a.requireError(t, http.StatusServiceUnavailable, code)
		return a
	}
	began := time.Now()
	require.Equal(t, 77, refused("200ms", 200*time.Millisecond, "model_unavailable").retryAfter(t), "no load was seen yet")
	asked := time.Now().Add(-200 * time.Millisecond) // at the latest
	c.change(func() { c.index, c.state.Replicas = 3, deploying("m") })
	f.follows(3)
	require.Equal(t, 77, refused("0.2", 200*time.Millisecond, "model_unavailable").retryAfter(t), "nor now")

	// The load that the first of them began takes about three seconds.
	waits := f.later("waits", unaryBody)
	eventually(t, "time passes", func() bool { return f.metric("remuda_gateway_queue_oldest_seconds", "model", "m") > 2.6 })
	there := time.Now()
	f.engines(s.Engine)
	s.next()
	most := time.Since(began)
	require.Equal(t, 77, refused("50ms", 50*time.Millisecond, "queue_timeout").retryAfter(t), "nothing was served yet")
	s.leave <- struct{}{}
	(<-waits).requireWhole(t, "waits")

	f.engines()
	c.change(func() { c.index, c.state.Replicas = 4, nil })
	f.follows(4)
	again := time.Now()
	got := refused("50ms", 50*time.Millisecond, "model_unavailable").retryAfter(t)
	least := there.Sub(asked) - time.Since(again)
	if least > 0 { // a machine that is very slow has nothing left of it
		require.GreaterOrEqual(t, float64(got), math.Ceil(least.Seconds()), "as long as the last load took, less what is over")
		require.LessOrEqual(t, float64(got), math.Ceil(most.Seconds()))
	}
	f.requireRest()
}

// TestStoppedModelIsRefusedAtOnce, also those that wait when it is stopped, and nobody
// wants it.
func TestStoppedModelIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "off", Stopped: true})
	f := newGateway(t, patient, c.config)
	f.engines()
	f.follows(2)
	for _, body := range []string{`{"model":"off"}`, `{"model":"off","stream":true}`} {
		began := time.Now()
		a := f.post(body)
		a.requireError(t, http.StatusNotFound, "model_stopped")
		require.Less(t, time.Since(began), patience/4)
		require.Empty(t, a.header.Get("Retry-After"), "it is not to be sent again")
	}
	waits := f.later("waits", unaryBody)
	f.waiting("m", 1)
	c.change(func() { c.index, c.state.Models[0].Stopped = 3, true })
	(<-waits).requireError(t, http.StatusNotFound, "model_stopped")
	f.requireRest()
	c.change(func() { c.reports = nil })
	c.reported("the new state", func(r api.GatewayReport) bool { return r.Index == 3 && len(r.Queues) == 0 })
	require.Empty(t, c.wanted())
}

// TestRequestsBeforeTheFirstList are held until it comes.
func TestRequestsBeforeTheFirstList(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	unary, stream, nobody := f.later("u", unaryBody), f.later("s", streamBody), f.later("n", `{"model":"n"}`)
	eventually(t, "they are held", func() bool { return f.metric("remuda_gateway_buffered_bytes") > 0 })
	hasty := f.post(unaryBody, "X-Remuda-Timeout", "50ms")
	hasty.requireError(t, http.StatusServiceUnavailable, "gateway_starting")
	require.Equal(t, 5, hasty.retryAfter(t))
	s := newTurnstile(t, "a", 2)
	close(s.leave)
	f.engines(s.Engine)
	(<-unary).requireWhole(t, "u")
	require.Equal(t, streamOf("s"), (<-stream).body)
	(<-nobody).requireError(t, http.StatusNotFound, "model_not_found")
	f.requireRest()
}

// TestRequestsBeforeTheControllersFirstState: no engine is known to be placed, and a model that
// has none may be one that the controller knows.
func TestRequestsBeforeTheControllersFirstState(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "off", Stopped: true})
	c.states = make(chan struct{})
	f := newGateway(t, patient, c.config)
	e := newEngine(t, "b", says("b"))
	e.Name.Model = "b"
	f.engines(e)
	listed := f.later("b", `{"model":"b"}`)
	unary, off, nobody := f.later("u", unaryBody), f.later("o", `{"model":"off"}`), f.later("n", `{"model":"n"}`)
	hasty := f.post(unaryBody, "X-Remuda-Timeout", "50ms") // the others are there by now
	hasty.requireError(t, http.StatusServiceUnavailable, "gateway_starting")
	close(c.states)
	(<-listed).requireWhole(t, "b")
	(<-off).requireError(t, http.StatusNotFound, "model_stopped")
	(<-nobody).requireError(t, http.StatusNotFound, "model_not_found")
	f.waiting("m", 1)
	c.reported("that it waits", func(r api.GatewayReport) bool { return len(r.Queues) > 0 && r.Queues[0].Waiting == 1 })
	require.Positive(t, c.wanted()["m"])
	f.engines(e, newEngine(t, "a", says("a")))
	(<-unary).requireWhole(t, "a")
	f.requireRest()
}

// TestKeysBeforeTheControllersFirstState: a request that comes before the keys is not taken for one that
// needs none, whatever its route.
func TestKeysBeforeTheControllersFirstState(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	key, _ := controllerKey("one", api.KeyLimits{Weight: 1})
	c.state.Keys = []api.GatewayKey{key}
	c.states = make(chan struct{})
	f := newGateway(t, patient, c.config)
	f.engines(newEngine(t, "a", says("a")))
	answers := make(chan answer, 2)
	go func() { answers <- f.do(http.MethodGet, "/v1/responses/resp_1", "") }()
	go func() { answers <- f.post(unaryBody) }()
	f.post(unaryBody, "X-Remuda-Timeout", "200ms").requireError(t, http.StatusServiceUnavailable, "gateway_starting") // the others are there by now
	close(c.states)
	for range 2 {
		(<-answers).requireError(t, http.StatusUnauthorized, "missing_api_key")
	}
}
