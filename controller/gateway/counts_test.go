package gateway_test

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// counters are a report's of a model, nil where it has none.
func counters(r api.GatewayReport, model string) *api.ModelCounters {
	i := slices.IndexFunc(r.Counters, func(c api.ModelCounters) bool { return c.Model == model })
	if i < 0 {
		return nil
	}
	return &r.Counters[i]
}

// What a model had is counted in every report, also when it is idle again: a controller that
// has just begun to lead must not take it for new.
func TestReportsCountRequests(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "idle"})
	f := newGateway(t, patient, c.config, func(cfg *gateway.Config) { cfg.Queue.Length = 1 })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	f.follows(2)
	began := time.Now()
	first := f.later("1", unaryBody)
	s.next()
	second := f.later("2", unaryBody)
	f.waiting("m", 1)
	f.post(unaryBody).requireError(t, http.StatusTooManyRequests, "queue_full")
	f.post(`{"model":"nobody's"}`).requireError(t, http.StatusNotFound, "model_not_found")
	busy := c.reported("two that came", func(r api.GatewayReport) bool { m := counters(r, "m"); return m != nil && m.Refused == 1 })
	require.Equal(t, []api.ModelCounters{{Model: "m", Counters: api.Counters{Arrived: 2, Refused: 1}}}, busy.Counters, "who finds the queue full did not come, and nobody has left an engine")

	close(s.leave)
	(<-first).requireWhole(t, "1")
	(<-second).requireWhole(t, "2")
	took := time.Since(began).Seconds()
	idle := c.reported("two that left", func(r api.GatewayReport) bool {
		m := counters(r, "m")
		return m != nil && m.Finished == 2 && m.Answers == 2
	})
	m := counters(idle, "m")
	require.Equal(t, int64(2), m.Arrived)
	require.Zero(t, m.Errors)
	require.Positive(t, m.FirstByteSeconds)
	require.LessOrEqual(t, m.FirstByteSeconds, 2*took)
	require.Positive(t, m.ServedSeconds)
	require.LessOrEqual(t, m.ServedSeconds, took, "one slot serves no longer than it was there")
	again := c.reported("that nothing goes on", func(r api.GatewayReport) bool { return len(r.Replicas) == 0 || r.Replicas[0].InFlight == 0 })
	require.NotNil(t, counters(again, "m"))
}

// A request counts as late if it gets no engine within the model's goal. The report also has how many tokens wait.
func TestReportsCountWhoIsLate(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m", TTFTP95: api.Duration(time.Second)})
	f := newGateway(t, patient, c.config, func(cfg *gateway.Config) { cfg.Queue.Length = 1 })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	f.follows(2)
	first := f.later("1", unaryBody)
	s.next()
	second := f.later("2", `{"model":"m","prompt":"`+strings.Repeat("x", 4000)+`"}`)
	f.waiting("m", 1)
	waited := time.Now()
	f.post(unaryBody).requireError(t, http.StatusTooManyRequests, "queue_full")
	waits := c.reported("one that waits", func(r api.GatewayReport) bool { return len(r.Queues) == 1 && r.Queues[0].Waiting == 1 })
	require.InDelta(t, 1000, waits.Queues[0].WaitingTokens, 20)
	require.Eventually(t, func() bool { return time.Since(waited) > 1100*time.Millisecond }, patience, 10*time.Millisecond)
	close(s.leave)
	(<-first).requireWhole(t, "1")
	(<-second).requireWhole(t, "2")
	idle := c.reported("two that left", func(r api.GatewayReport) bool { m := counters(r, "m"); return m != nil && m.Finished == 2 })
	require.Equal(t, int64(2), counters(idle, "m").Late, "one waited for too long, and one was refused; the first one was in time")
	(<-f.later("3", unaryBody)).requireWhole(t, "3")
	after := c.reported("a third one", func(r api.GatewayReport) bool { m := counters(r, "m"); return m != nil && m.Finished == 3 })
	require.Equal(t, int64(2), counters(after, "m").Late)
}

// Refused is who is turned away for want of capacity: not who is over the limits of a key,
// nor who leaves.
func TestReportsCountWhoIsRefused(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "down"})
	f := newGateway(t, patient, c.config, withKey("one", limit(func(l *queue.KeyLimit) { l.Concurrency = 1 })),
		withKey("slow", limit(func(l *queue.KeyLimit) { l.Rate, l.Burst = 0.001, 1 })), func(cfg *gateway.Config) { cfg.Queue.Length = 1 })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	f.follows(2)
	is := func(want api.ModelCounters, why string) {
		t.Helper()
		got := counters(c.reported(why, func(r api.GatewayReport) bool {
			m := counters(r, want.Model)
			return m != nil && m.Refused >= want.Refused
		}), want.Model)
		require.Equal(t, want, *got, why)
	}
	first := f.later("1", unaryBody, as("one")...)
	s.next()
	f.post(unaryBody, as("one")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	f.post(unaryBody, as("slow", "X-Remuda-Timeout", "50ms")...).requireError(t, http.StatusServiceUnavailable, "queue_timeout")
	f.post(unaryBody, as("slow")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	is(api.ModelCounters{Model: "m", Counters: api.Counters{Arrived: 2, Refused: 1}}, "the client's time is over, and two were over their keys' limits")

	leaves := f.listen("2", unaryBody)
	f.waiting("m", 1)
	f.post(unaryBody).requireError(t, http.StatusTooManyRequests, "queue_full")
	is(api.ModelCounters{Model: "m", Counters: api.Counters{Arrived: 3, Refused: 2}}, "the queue is full")
	leaves.leave()
	leaves.end()
	f.waiting("m", 0)
	f.post(unaryBody, "X-Remuda-Timeout", "50ms").requireError(t, http.StatusServiceUnavailable, "queue_timeout")
	is(api.ModelCounters{Model: "m", Counters: api.Counters{Arrived: 4, Refused: 3}}, "one left")

	f.post(`{"model":"down"}`, "X-Remuda-Timeout", "50ms").requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	is(api.ModelCounters{Model: "down", Counters: api.Counters{Arrived: 1, Refused: 1}}, "it has no engine")
	close(s.leave)
	(<-first).requireWhole(t, "1")
}

// The gateway's own time to wait counts as the client's does, and a request that an engine
// had is none that was refused, although it waits in vain for another one.
func TestARequestIsRefusedBeforeItHasAnEngine(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, retrying, c.config, func(cfg *gateway.Config) {
		cfg.Queue.Wait, cfg.Queue.Restart = 150*time.Millisecond, 150*time.Millisecond
	})
	f.engines(newRawEngine(t, "bad", func(c net.Conn) {
		f.engines()
		resets(c)
	}))
	f.follows(2)
	require.Equal(t, http.StatusBadGateway, f.post(unaryBody).status)
	require.Equal(t, 1.0, f.metric("remuda_gateway_queue_timeouts_total", "model", "m"), "it waited for another one")
	f.post(unaryBody).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	report := c.reported("both, and that nobody waits", func(r api.GatewayReport) bool {
		m := counters(r, "m")
		return m != nil && m.Arrived == 2 && m.Errors > 0 && (len(r.Queues) == 0 || r.Queues[0].Waiting == 0)
	})
	m := counters(report, "m")
	require.NotNil(t, m)
	m.ServedSeconds = 0
	require.Equal(t, api.ModelCounters{Model: "m", Counters: api.Counters{Arrived: 2, Finished: 1, Refused: 1, Errors: 1}}, *m)
}

// A request that fails at one engine and goes on at another is one request.
func TestARetriedRequestCountsOnce(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, retrying, c.config)
	f.engines(newRawEngine(t, "bad", func(c net.Conn) { resets(c) }), deadEngine(t, "dead"), newEngine(t, "good", says("x")))
	f.follows(2)
	const n = 6
	for range n {
		require.Equal(t, http.StatusOK, f.post(unaryBody).status)
	}
	report := c.reported("all that came", func(r api.GatewayReport) bool {
		m := counters(r, "m")
		return m != nil && m.Arrived >= n && m.Finished >= n
	})
	require.Equal(t, int64(n), counters(report, "m").Arrived)
	require.Equal(t, int64(n), counters(report, "m").Finished)
}

// outcomes are a report's of replica m:v:ID, without its times.
func outcomes(r api.GatewayReport, id string) api.ReplicaLoad {
	for _, l := range r.Replicas {
		if l.Name == "m:v:"+id {
			return api.ReplicaLoad{Name: l.Name, Answered: l.Answered, Failed: l.Failed, FailedInARow: l.FailedInARow}
		}
	}
	return api.ReplicaLoad{Name: "m:v:" + id}
}

// Reports have what each replica answered and failed. A request that is retried is a failure
// of the first engine and an answer of the next, and an error of the client's is an answer.
func TestReportsCountWhatReplicasAnsweredAndFailed(t *testing.T) {
	t.Parallel()
	rejects := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"error":{"message":"no","type":"x","param":null,"code":null}}`))
		}
	}
	sole := func(t *testing.T, e func(*testing.T) replica.Engine, change ...func(*gateway.Config)) (*boss, *fixture) {
		c := newBossOf(t, api.GatewayModel{Name: "m"})
		f := newGateway(t, append([]func(*gateway.Config){c.config}, change...)...)
		f.engines(e(t))
		f.follows(2)
		return c, f
	}
	for _, tc := range []struct {
		name   string
		engine func(*testing.T) replica.Engine
		want   api.ReplicaLoad
	}{
		{"answers", func(t *testing.T) replica.Engine { return newEngine(t, "a", says("x")) }, api.ReplicaLoad{Answered: 2}},
		{"the client's error", func(t *testing.T) replica.Engine { return newEngine(t, "a", rejects(400)) }, api.ReplicaLoad{Answered: 2}},
		{"5xx", func(t *testing.T) replica.Engine { return newEngine(t, "a", rejects(500)) }, api.ReplicaLoad{Failed: 2, FailedInARow: 2}},
		{"a 5xx that cannot be retried", func(t *testing.T) replica.Engine { return newEngine(t, "a", rejects(507)) }, api.ReplicaLoad{Failed: 2, FailedInARow: 2}},
		{"cut", func(t *testing.T) replica.Engine {
			return newRawEngine(t, "a", func(c net.Conn) {
				_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"))
			})
		}, api.ReplicaLoad{Failed: 2, FailedInARow: 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, f := sole(t, tc.engine)
			for range 2 {
				f.post(unaryBody)
			}
			tc.want.Name = "m:v:a"
			got := c.reported("both", func(r api.GatewayReport) bool { l := outcomes(r, "a"); return l.Answered+l.Failed == 2 })
			require.Equal(t, tc.want, outcomes(got, "a"))
		})
	}
	t.Run("retried", func(t *testing.T) {
		t.Parallel()
		c := newBossOf(t, api.GatewayModel{Name: "m"})
		f := newGateway(t, retrying, c.config)
		f.engines(newEngine(t, "bad", rejects(500)), newEngine(t, "good", says("x")))
		f.follows(2)
		const n = 12
		for range n {
			require.Equal(t, http.StatusOK, f.post(unaryBody).status)
		}
		got := c.reported("all", func(r api.GatewayReport) bool { return outcomes(r, "good").Answered == n })
		bad := outcomes(got, "bad")
		require.GreaterOrEqual(t, bad.Failed, int64(5), "it is left alone after five in a row")
		require.Equal(t, api.ReplicaLoad{Name: "m:v:bad", Failed: bad.Failed, FailedInARow: bad.Failed}, bad)
		require.Equal(t, api.ReplicaLoad{Name: "m:v:good", Answered: n}, outcomes(got, "good"))
	})
	t.Run("a refused connection, and a client that leaves", func(t *testing.T) {
		t.Parallel()
		c := newBossOf(t, api.GatewayModel{Name: "m"})
		f := newGateway(t, patient, c.config)
		f.engines(deadEngine(t, "dead"))
		f.follows(2)
		f.post(unaryBody, "X-Remuda-Timeout", "100ms")
		s := newTurnstile(t, "a", 1)
		f.engines(s.Engine)
		l := f.listen("2", unaryBody)
		s.next()
		l.leave()
		l.end()
		last := f.later("3", unaryBody)
		s.next()
		close(s.leave)
		(<-last).requireWhole(t, "3")
		got := c.reported("the last one", func(r api.GatewayReport) bool { return outcomes(r, "a").Answered == 1 })
		require.Equal(t, api.ReplicaLoad{Name: "m:v:a", Answered: 1}, outcomes(got, "a"))
		require.Zero(t, outcomes(got, "dead").Failed)
	})
}

// The first token of a stream is its first event with content, not the role. An answer that is not streamed has none.
func TestReportsCountFirstTokens(t *testing.T) {
	t.Parallel()
	const role, word, done = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n", `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\n", "data: [DONE]\n\n"
	c := newBossOf(t, api.GatewayModel{Name: "m"})
	f := newGateway(t, patient, c.config)
	next := make(chan string)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !strings.Contains(string(body), `"stream":true`) {
			says("x")(w, r)
			return
		}
		for e := range next {
			sse(w, e)
		}
	}))
	f.follows(2)
	f.post(unaryBody)
	opened := make(chan *http.Response)
	go func() { opened <- f.open(t.Context(), streamBody) }()
	next <- role
	resp := <-opened
	defer resp.Body.Close()
	_, err := io.ReadFull(resp.Body, make([]byte, len(role)))
	require.NoError(t, err)
	began := time.Now()
	next <- ": a comment\n\n"
	_, err = io.ReadFull(resp.Body, make([]byte, len(": a comment\n\n")))
	require.NoError(t, err)
	waited := time.Since(began)
	next <- word
	next <- done
	close(next)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	m := counters(c.reported("two that left", func(r api.GatewayReport) bool {
		m := counters(r, "m")
		return m != nil && m.Answers == 2
	}), "m")
	require.Equal(t, int64(1), m.FirstTokens)
	require.GreaterOrEqual(t, m.FirstTokenSeconds, waited.Seconds())
	require.Equal(t, 1.0, f.metric("remuda_gateway_time_to_first_token_seconds", "model", "m", "route", "chat"))
	require.Equal(t, 2.0, f.metric("remuda_gateway_time_to_first_byte_seconds", "model", "m", "route", "chat"))
}
