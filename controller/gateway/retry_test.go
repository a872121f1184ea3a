package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// retrying gives the defaults of retries and waiting, and room in the budget, which is not
// what most of these tests are about.
func retrying(c *gateway.Config) {
	patient(c)
	c.Retries.BudgetFloor = 1000
}

// leftAlone keeps an engine that has failed out of the rest of the test, however slow the
// machine is.
func leftAlone(c *gateway.Config) {
	c.Routing.Suspect, c.Routing.SuspectMax = time.Hour, time.Hour
}

// hitMeter counts the requests that an engine reads, and when.
type hitMeter struct {
	mu sync.Mutex
	at []time.Time
}

func (m *hitMeter) hit() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, time.Now())
	return len(m.at)
}

func (m *hitMeter) hits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at)
}

// between is the time from one hit to another one.
func (m *hitMeter) between(i, j int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[j].Sub(m.at[i])
}

// of counts the requests of a handler.
func (m *hitMeter) of(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		m.hit()
		h(w, r)
	}
}

// answersWhole answers well: a stream where one is asked for.
func answersWhole(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if strings.Contains(string(body), `"stream":true`) {
			sse(w, fmt.Sprintf("data: {\"said\":%q}\n\n", text), "data: [DONE]\n\n")
			return
		}
		says(text)(w, r)
	}
}

const wholeStream = "data: {\"said\":\"b\"}\n\ndata: [DONE]\n\n"

// failsWith answers with an error of an engine.
func failsWith(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// resets ends a connection with RST.
func resets(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// saysNothing says nothing until the gateway has gone away.
func saysNothing(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestRefusalsAreNotRetried(t *testing.T) {
	t.Parallel()
	const own = `{"error":{"message":"no","type":"x","param":null,"code":null}}`
	for _, code := range []int{400, 401, 403, 404, 408, 409, 413, 422, 429, 501, 505} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			f := newGateway(t, retrying)
			var m hitMeter
			h := m.of(failsWith(code, "application/json", own))
			f.engines(newEngine(t, "a", h), newEngine(t, "b", h))
			a := f.post(`{"model":"m"}`)
			require.Equal(t, code, a.status)
			require.Equal(t, own, a.body)
			require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
			require.Equal(t, 1, m.hits())
			require.Zero(t, f.metric("remuda_gateway_retries_total"))
		})
	}
	for _, code := range []int{404, 501} {
		t.Run(fmt.Sprintf("%d that is text", code), func(t *testing.T) {
			f := newGateway(t, retrying)
			var m hitMeter
			h := m.of(failsWith(code, "text/plain", "no"))
			f.engines(newEngine(t, "a", h), newEngine(t, "b", h))
			f.post(`{"model":"m"}`)
			require.Equal(t, 1, m.hits())
		})
	}
}

func TestOwnErrorAfterAllAttempts(t *testing.T) {
	t.Parallel()
	own := func(who string) string {
		return fmt.Sprintf(`{"error":{"message":"out of %s","type":"x","param":null,"code":7}}`, who)
	}
	t.Run("of three engines", func(t *testing.T) {
		f := newGateway(t, retrying)
		var m hitMeter
		var engines []replica.Engine
		for _, id := range []string{"a", "b", "c"} {
			engines = append(engines, newEngine(t, id, m.of(failsWith(503, "application/json", own(id)))))
		}
		f.engines(engines...)
		a := f.post(`{"model":"m"}`)
		require.Equal(t, 503, a.status)
		id, _ := strings.CutPrefix(a.header.Get("X-Remuda-Replica"), "m:v:")
		require.Equal(t, strings.Replace(own(id), "7", `"7"`, 1), a.body, "it is the last one's")
		require.Equal(t, "application/json", a.header.Get("Content-Type"))
		require.Equal(t, "3", a.header.Get("X-Remuda-Attempts"))
		require.Equal(t, 3, m.hits())
		for _, id := range []string{"a", "b", "c"} {
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "replica", "m:v:"+id, "kind", "status"), "each was asked once")
		}
	})
	t.Run("of the only engine", func(t *testing.T) {
		f := newGateway(t, retrying)
		var m hitMeter
		f.engines(newEngine(t, "a", m.of(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			failsWith(500, "application/json", own("a"))(w, r)
		})))
		a := f.post(`{"model":"m"}`)
		require.Equal(t, 500, a.status)
		require.Equal(t, strings.Replace(own("a"), "7", `"7"`, 1), a.body)
		require.Equal(t, "7", a.header.Get("Retry-After"))
		require.Equal(t, 3, m.hits())
	})
	t.Run("where the budget allows no other attempt", func(t *testing.T) {
		f := newGateway(t, retrying, func(c *gateway.Config) {
			c.Retries.BudgetRatio, c.Retries.BudgetFloor, c.Queue.Wait = 0, 0, 100*time.Millisecond
		})
		var m hitMeter
		h := m.of(failsWith(500, "application/json", own("a")))
		f.engines(newEngine(t, "a", h), newEngine(t, "b", h))
		a := f.post(`{"model":"m"}`)
		require.Equal(t, 500, a.status)
		require.Equal(t, strings.Replace(own("a"), "7", `"7"`, 1), a.body)
		require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
		require.Equal(t, 1, m.hits())
		require.Equal(t, 1.0, f.metric("remuda_gateway_retry_budget_spent_total", "model", "m"))
	})
}

// TestHungEngineIsIsolated: it costs one request its first-byte timeout, and then no more
// than a probe now and then.
func TestHungEngineIsIsolated(t *testing.T) {
	t.Parallel()
	const firstByte, open = 5 * time.Second, 600 * time.Millisecond // the good one answers long before
	f := newGateway(t, retrying, func(c *gateway.Config) {
		c.Timeouts.FirstByte, c.Routing.Suspect, c.Routing.SuspectMax = firstByte, open, open
	})
	var hung hitMeter
	var mended atomic.Bool
	a := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		hung.hit()
		if mended.Load() {
			says("a")(w, r)
			return
		}
		<-r.Context().Done()
	})
	f.engines(a, newEngine(t, "b", says("b")))
	for hung.hits() == 0 {
		require.JSONEq(t, `{"said":"b"}`, f.post(`{"model":"m"}`).body)
	}
	require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "timeout"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "open"))

	// Clients hammer; one request is a probe when the time is over, and none beside it.
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	for range 4 {
		clients.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if a := f.post(`{"model":"m"}`); a.status != http.StatusOK {
					t.Errorf("a client was told of it: %d %s", a.status, a.body)
				}
			}
		})
	}
	eventually(t, "two probes", func() bool { return hung.hits() >= 3 })
	mended.Store(true)
	require.GreaterOrEqual(t, hung.between(0, 1), open)
	require.GreaterOrEqual(t, hung.between(1, 2), open)
	eventually(t, "it is used again", func() bool { return hung.hits() > 8 })
	cancel()
	clients.Wait()
	require.Zero(t, f.metric("remuda_gateway_engines", "model", "m", "state", "open"))
	require.Zero(t, f.metric("remuda_gateway_requests_total", "code", "504"))
}

// TestGarbageEngineIsEjected at its first answer, until Consul lists another process there.
func TestGarbageEngineIsEjected(t *testing.T) {
	t.Parallel()
	for name, garbage := range map[string]string{
		"not HTTP": "\x00\xff\x13\x37 garbage\r\n\r\n",
		"not JSON": "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
	} {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t, retrying, func(c *gateway.Config) { c.Routing.Suspect, c.Routing.SuspectMax = time.Hour, time.Hour })
			var m hitMeter
			bad := newRawEngine(t, "a", func(c net.Conn) {
				m.hit()
				_, _ = io.WriteString(c, garbage)
			})
			b := newEngine(t, "b", says("b"))
			f.engines(bad, b)
			var clients sync.WaitGroup
			for range 4 {
				clients.Go(func() {
					for range 15 {
						if a := f.post(`{"model":"m"}`); a.status != http.StatusOK || a.body != `{"said":"b"}` {
							t.Errorf("a client was told of it: %d %s", a.status, a.body)
						}
					}
				})
			}
			clients.Wait()
			require.LessOrEqual(t, m.hits(), 4, "those that were on their way")
			require.Positive(t, m.hits())
			hits := m.hits()
			require.Equal(t, map[string]int{`{"said":"b"}`: 20}, f.who(20))
			require.Equal(t, hits, m.hits())
			require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "open"))

			again := newEngine(t, "a", says("a"))
			again.Token = replica.Token{Counter: 9}
			f.engines(again, b)
			require.Equal(t, map[string]int{`{"said":"a"}`: 5, `{"said":"b"}`: 5}, f.who(10))
		})
	}
}

// TestRetryStorm: every engine fails everything. What the engines get is bounded by the
// budget; a gateway whose budget is wide shows that it is the budget that does it.
func TestRetryStorm(t *testing.T) {
	const ratio, floor, window = 0.2, 20.0, 100 * time.Millisecond
	storm := func(t *testing.T, rounds int, change func(*gateway.Config)) (requests, attempts int64, took time.Duration) {
		f := newGateway(t, retrying, func(c *gateway.Config) {
			c.Retries.BudgetRatio, c.Retries.BudgetFloor, c.Retries.BudgetWindow = ratio, floor, window
			// No breaker helps.
			c.Routing.Suspect, c.Routing.SuspectMax = time.Millisecond, time.Millisecond
			c.Queue.Wait = 300 * time.Millisecond
			change(c)
		})
		var m hitMeter
		raw := func(id string, answer func(net.Conn)) replica.Engine {
			e := newRawEngine(t, id, func(c net.Conn) { m.hit(); answer(c) })
			e.Slots = 64
			return e
		}
		f.engines(
			raw("a", resets),
			raw("b", func(c net.Conn) { _, _ = io.WriteString(c, "garbage\r\n\r\n") }),
			raw("c", func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 500 x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
			}))
		began := time.Now()
		var sent atomic.Int64
		var clients sync.WaitGroup
		for range 200 {
			clients.Go(func() {
				for range rounds {
					sent.Add(1)
					if a := f.post(`{"model":"m"}`); a.status < 500 {
						t.Errorf("status %d: %s", a.status, a.body)
					}
				}
			})
		}
		clients.Wait()
		took = time.Since(began)
		require.EqualValues(t, sent.Load(), f.metric("remuda_gateway_requests_total", "model", "m"))
		return sent.Load(), int64(m.hits()), took
	}
	// The budget is kept over windows: one more than fits into the time has begun.
	bound := func(requests int64, took time.Duration) float64 {
		return float64(requests)*(1+ratio) + floor*(took+window).Seconds()
	}
	t.Run("within the budget", func(t *testing.T) {
		requests, attempts, took := storm(t, 3, func(*gateway.Config) {})
		require.LessOrEqual(t, float64(attempts), bound(requests, took), "%d requests in %s", requests, took)
		require.Greater(t, attempts, requests/20, "the engines were asked")
	})
	t.Run("with a wide budget the bound is broken", func(t *testing.T) {
		requests, attempts, _ := storm(t, 1, func(c *gateway.Config) { c.Retries.BudgetFloor, c.Queue.Wait = 1e6, patience })
		require.Greater(t, attempts, 2*requests, "most requests have all their attempts")
		require.LessOrEqual(t, attempts, 3*requests, "three attempts are the most for one request")
	})
}

func TestOneAttemptSwitchesRetriesOff(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer func(net.Conn)
		code   string
		status int
	}{
		"reset":   {resets, "engine_gone", 502},
		"garbage": {func(c net.Conn) { _, _ = io.WriteString(c, "garbage\r\n\r\n") }, "engine_protocol_error", 502},
		"text": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 503 x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno")
		}, "engine_error", 502},
		"hung": {saysNothing, "engine_timeout", 504},
	}
	one := func(c *gateway.Config) {
		retrying(c)
		c.Retries.Attempts = 1
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t, one, func(cfg *gateway.Config) {
				if c.status == http.StatusGatewayTimeout {
					cfg.Timeouts.FirstByte = 300 * time.Millisecond
				}
			})
			var m hitMeter
			h := func(conn net.Conn) { m.hit(); c.answer(conn) }
			f.engines(newRawEngine(t, "a", h), newRawEngine(t, "b", h))
			a := f.post(`{"model":"m"}`)
			a.requireError(t, c.status, c.code)
			require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
			require.Equal(t, 1, m.hits())
			require.Zero(t, f.metric("remuda_gateway_retries_total"))
		})
	}
	t.Run("refused", func(t *testing.T) {
		f := newGateway(t, one)
		f.engines(deadEngine(t, "a"), deadEngine(t, "b"))
		f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
		require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total"))
	})
}

func TestTimeoutOfTheClient(t *testing.T) {
	t.Parallel()
	t.Run("before the first byte", func(t *testing.T) {
		for name, head := range map[string]string{
			"nothing came":  "",
			"a header came": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n",
		} {
			for _, body := range []string{`{"model":"m"}`, streamBody} {
				t.Run(name+" "+body, func(t *testing.T) {
					t.Parallel()
					f := newGateway(t, retrying)
					var m hitMeter
					left := make(chan struct{}, 1)
					h := func(c net.Conn) {
						m.hit()
						_, _ = io.WriteString(c, head)
						saysNothing(c)
						left <- struct{}{}
					}
					f.engines(newRawEngine(t, "a", h), newRawEngine(t, "b", h))
					began := time.Now()
					a := f.post(body, "X-Remuda-Timeout", "3s") // the engine is reached long before
					a.requireError(t, http.StatusGatewayTimeout, "deadline_exceeded")
					require.GreaterOrEqual(t, time.Since(began), 3*time.Second)
					require.NotEmpty(t, a.header.Get("Retry-After"))
					require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
					select {
					case <-left:
					case <-time.After(patience):
						t.Fatal("the engine works on")
					}
					require.Equal(t, 1, m.hits(), "who has no time has none for another attempt")
					require.Zero(t, f.metric("remuda_gateway_upstream_errors_total"), "the engine is not to blame")
				})
			}
		}
	})
	t.Run("bounds all attempts together", func(t *testing.T) {
		t.Parallel()
		f := newGateway(t, retrying, func(c *gateway.Config) { c.Timeouts.FirstByte = 500 * time.Millisecond })
		f.engines(newRawEngine(t, "a", saysNothing), newRawEngine(t, "b", saysNothing))
		a := f.post(`{"model":"m"}`, "X-Remuda-Timeout", "800ms")
		require.Equal(t, http.StatusGatewayTimeout, a.status, a.body)
	})
	t.Run("not after it", func(t *testing.T) {
		t.Parallel()
		f := newGateway(t, retrying)
		read := make(chan struct{})
		f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			sse(w, "data: {}\n\n")
			select {
			case <-read:
			case <-r.Context().Done():
				return
			}
			sse(w, "data: [DONE]\n\n")
		}))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(streamBody))
		require.NoError(t, err)
		req.Header.Set("X-Remuda-Timeout", "4s")
		resp, err := f.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		time.AfterFunc(4500*time.Millisecond, func() { close(read) }) // the client's time is over before
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", string(b))
	})
	// The engine is silent after it has begun: that is its fault, whatever time the client had.
	for name, c := range map[string]struct{ head, body string }{
		"silence in a stream":  {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n", streamBody},
		"silence in an answer": {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{", `{"model":"m"}`},
		"silence in an error":  {"HTTP/1.1 503 x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n", `{"model":"m"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newGateway(t, retrying, func(c *gateway.Config) { c.Timeouts.StreamIdle = 500 * time.Millisecond })
			f.engines(newRawEngine(t, "a", func(conn net.Conn) { _, _ = io.WriteString(conn, c.head); saysNothing(conn) }))
			first := make(chan answer, 1)
			go func() { first <- f.post(c.body, "X-Remuda-Timeout", "50s") }()
			eventually(t, "the engine is blamed", func() bool {
				return f.metric("remuda_gateway_upstream_errors_total", "kind", "timeout") > 0 || len(first) > 0
			})
			require.Equal(t, 1.0, f.metric("remuda_gateway_upstream_errors_total", "kind", "timeout"))
			f.engines(newEngine(t, "b", answersWhole("b")))
			a := <-first
			if c.body == streamBody {
				requireBroken(t, a, "data: {}\n\n", "engine_timeout")
				return
			}
			require.JSONEq(t, `{"said":"b"}`, a.body)
		})
	}
}
