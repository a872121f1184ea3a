package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/internal/replica"
)

// turnstile is an engine at which each request stays until the test lets it go.
type turnstile struct {
	replica.Engine
	t *testing.T
	// entered has the IDs of those that came, in order.
	entered chan string
	// leave lets one go with each word, and all once it is closed.
	leave chan struct{}
}

func newTurnstile(t *testing.T, id string, slots int) *turnstile {
	t.Helper()
	s := &turnstile{t: t, entered: make(chan string, 1024), leave: make(chan struct{})}
	s.Engine = newEngine(t, id, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.entered <- r.Header.Get("X-Request-Id")
		select {
		case <-s.leave:
			answerAs(w, r, body)
		case <-r.Context().Done():
		}
	})
	s.Slots = slots
	return s
}

// answerAs answers with the request's ID, in a stream where that was asked for.
func answerAs(w http.ResponseWriter, r *http.Request, body []byte) {
	var asked struct{ Stream bool }
	_ = json.Unmarshal(body, &asked)
	if asked.Stream {
		sse(w, streamOf(r.Header.Get("X-Request-Id")))
		return
	}
	says(r.Header.Get("X-Request-Id"))(w, r)
}

func streamOf(id string) string { return fmt.Sprintf("data: {\"said\":%q}\n\ndata: [DONE]\n\n", id) }
func wholeOf(id string) string  { return fmt.Sprintf(`{"said":%q}`, id) }

// next is the ID of the next request that comes.
func (s *turnstile) next() string {
	s.t.Helper()
	select {
	case id := <-s.entered:
		return id
	case <-time.After(patience):
		s.t.Fatal("no request comes")
		return ""
	}
}

// order lets n requests go, one after the other, and returns who took each one's place.
func (s *turnstile) order(n int) []string {
	s.t.Helper()
	var out []string
	for range n {
		s.leave <- struct{}{}
		out = append(out, s.next())
	}
	return out
}

// later sends a request with an ID and returns at once. Where it fails there is no answer
// but the zero one.
func (f *fixture) later(id, body string, header ...string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		defer close(got)
		got <- f.post(body, append(header, "X-Request-Id", id)...)
	}()
	return got
}

// waiting waits until so many requests for the model wait.
func (f *fixture) waiting(model string, n int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d requests for %s wait", n, model), func() bool {
		return f.metric("remuda_gateway_queue_length", "model", model) == float64(n)
	})
}

// requireRest checks that nothing waits and nothing is in flight.
func (f *fixture) requireRest() {
	f.t.Helper()
	eventually(f.t, "all is at rest", func() bool {
		return f.metric("remuda_gateway_queue_length")+f.metric("remuda_gateway_in_flight")+f.metric("remuda_gateway_buffered_bytes") == 0
	})
}

func (a answer) requireWhole(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Equal(t, wholeOf(id), a.body)
}

func (a answer) retryAfter(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err, "Retry-After")
	return n
}

const unaryBody = `{"model":"m"}`

// TestSlotsGoToWhoWaitsLongest although others come all the time.
func TestSlotsGoToWhoWaitsLongest(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	const n = 8
	answers := make([]<-chan answer, n)
	var want []string
	for i := range n {
		id, body := fmt.Sprintf("r%d", i), unaryBody
		if i%2 == 1 {
			body = streamBody
		}
		answers[i] = f.later(id, body)
		if i == 0 {
			require.Equal(t, id, s.next())
			continue
		}
		f.waiting("m", i)
		want = append(want, id)
	}
	require.Equal(t, 1.0, f.metric("remuda_gateway_in_flight", "model", "m"))
	require.Positive(t, f.metric("remuda_gateway_queue_oldest_seconds", "model", "m"))
	require.Equal(t, want, s.order(n-1))
	s.leave <- struct{}{}
	for i, c := range answers {
		a, id := <-c, fmt.Sprintf("r%d", i)
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.status)
		require.Contains(t, []string{wholeOf(id), streamOf(id)}, a.body)
		require.Equal(t, "m:v:a", a.header.Get("X-Remuda-Replica"))
		require.Equal(t, "1", a.header.Get("X-Remuda-Attempts"))
	}
	require.Equal(t, float64(n-1), f.metric("remuda_gateway_queue_seconds", "model", "m"), "of those that waited")
	require.Empty(t, s.entered)
	f.requireRest()
}

// TestManyClientsShareFewSlots: each gets its own answer, and no engine ever has more
// requests than slots.
func TestManyClientsShareFewSlots(t *testing.T) {
	const clients, rounds = 48, 12
	f := newGateway(t, patient)
	var engines []replica.Engine
	var most [3]atomic.Int64
	for i := range most {
		var now atomic.Int64
		slots := int64(i + 1)
		e := newEngine(t, string(rune('a'+i)), func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if n := now.Add(1); n > slots {
				t.Errorf("%d requests at an engine of %d slots", n, slots)
			} else if n > most[i].Load() {
				most[i].Store(n)
			}
			runtime.Gosched()
			now.Add(-1) // before the gateway can know that the slot is free
			answerAs(w, r, body)
		})
		e.Slots = int(slots)
		engines = append(engines, e)
	}
	f.engines(engines...)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for round := range rounds {
				id, body, want := fmt.Sprintf("c%d-%d", c, round), unaryBody, wholeOf
				if (c+round)%2 == 0 {
					body, want = streamBody, streamOf
				}
				a := f.post(body, "X-Request-Id", id)
				if a.err != nil || a.status != http.StatusOK || a.body != want(id) {
					t.Errorf("%s: status %d, error %v, body %q", id, a.status, a.err, a.body)
				}
			}
		})
	}
	wg.Wait()
	f.requireRest()
	require.Equal(t, float64(clients*rounds), f.metric("remuda_gateway_requests_total", "model", "m", "code", "200"))
	require.Positive(t, f.metric("remuda_gateway_queue_seconds", "model", "m"), "some have waited")
	for i := range most {
		require.Positive(t, most[i].Load(), "engine %d was used", i)
	}
}

// TestClientsThatComeAndGo leave no slot taken, no request in the queue, no memory and no
// goroutine.
func TestClientsThatComeAndGo(t *testing.T) {
	const clients, rounds = 32, 10
	f := newGateway(t, patient, func(c *gateway.Config) {
		c.Queue.CommentAfter, c.Queue.CommentEvery = time.Millisecond, time.Millisecond
	})
	var busy atomic.Bool
	busy.Store(true)
	s := newTurnstile(t, "s", 4)
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rest := time.NewTimer(rand.N(4 * time.Millisecond)) // an engine takes its time
		defer rest.Stop()
		select {
		case <-rest.C:
			answerAs(w, r, body)
		case <-r.Context().Done():
		}
	})
	e.Slots = 4
	f.engines(e)
	f.post(unaryBody)
	f.client.CloseIdleConnections()
	goroutines := runtime.NumGoroutine()
	var wg sync.WaitGroup
	var served, left atomic.Int64
	for c := range clients {
		wg.Go(func() {
			for round := range rounds {
				stays := rand.N(30 * time.Millisecond)
				if round == c%rounds { // some are served however slow the machine is
					stays = patience
				}
				ctx, cancel := context.WithTimeout(context.Background(), stays)
				body := unaryBody
				if (c+round)%2 == 0 {
					body = streamBody
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(body))
				if err != nil {
					t.Error(err)
				}
				resp, err := f.client.Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				cancel()
				if err == nil {
					served.Add(1)
				} else {
					left.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, served.Load())
	require.Positive(t, left.Load())
	f.requireRest()
	eventually(t, "no goroutine is left", func() bool {
		f.client.CloseIdleConnections()
		return runtime.NumGoroutine() <= goroutines+6
	})
	// All slots are there, and none twice.
	f.engines(s.Engine)
	f.requireSlots(s, 4)
}

// requireSlots checks that the engine takes so many requests at once and no more.
func (f *fixture) requireSlots(s *turnstile, slots int) {
	f.t.Helper()
	answers := make([]<-chan answer, 0, slots+1)
	for i := range slots + 1 {
		answers = append(answers, f.later(fmt.Sprintf("slot%d", i), unaryBody))
	}
	for range slots {
		s.next()
	}
	f.waiting("m", 1)
	require.Empty(f.t, s.entered)
	close(s.leave)
	for i, a := range answers {
		(<-a).requireWhole(f.t, fmt.Sprintf("slot%d", i))
	}
	f.requireRest()
}

// TestSlotsOfOneEngineAfterCancels: the same engine has all its slots when clients left
// while they waited and while they were served.
func TestSlotsOfOneEngineAfterCancels(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	s := newTurnstile(t, "a", 3)
	f.engines(s.Engine)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 12 {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(unaryBody))
			if resp, err := f.client.Do(req); err == nil {
				resp.Body.Close()
				t.Error("an answer came")
			}
		})
	}
	for range 3 {
		s.next()
	}
	f.waiting("m", 9)
	cancel()
	wg.Wait()
	f.requireRest()
	// Some of those that waited may have had a slot for a moment.
	for len(s.entered) > 0 {
		s.next()
	}
	f.counted(12, "code", "499")
	f.requireSlots(s, 3)
}

// TestNewEngineTakesWhoWaits, also one that has more slots than it had.
func TestNewEngineTakesWhoWaits(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient)
	a, b := newTurnstile(t, "a", 1), newTurnstile(t, "b", 2)
	f.engines(a.Engine)
	var answers []<-chan answer
	for i := range 6 {
		answers = append(answers, f.later(strconv.Itoa(i), unaryBody))
	}
	a.next()
	f.waiting("m", 5)
	f.engines(a.Engine, b.Engine)
	b.next()
	b.next()
	f.waiting("m", 3)
	a.Slots = 3
	f.engines(a.Engine, b.Engine)
	a.next()
	a.next()
	f.waiting("m", 1)
	// An engine that goes keeps what it has, and frees no slot of another.
	f.engines(b.Engine)
	close(a.leave)
	eventually(t, "those at the engine that went are served", func() bool { return f.metric("remuda_gateway_in_flight") == 2 })
	f.waiting("m", 1)
	require.Empty(t, b.entered)
	close(b.leave)
	for i, c := range answers {
		(<-c).requireWhole(t, strconv.Itoa(i))
	}
}

// TestQueueFull: what is beyond the queue's length is refused at once, with a time in which
// the queue drains where that is known.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	const length = 10
	f := newGateway(t, patient, func(c *gateway.Config) {
		c.Queue.Length, c.RetryAfter = length, 77*time.Second
	})
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	answers := []<-chan answer{f.later("first", unaryBody)}
	s.next()
	fill := func(round string) {
		for i := range length {
			answers = append(answers, f.later(fmt.Sprintf("%s%d", round, i), unaryBody))
		}
		f.waiting("m", length)
	}
	fill("a")
	for _, body := range []string{unaryBody, streamBody} {
		a := f.post(body)
		e := a.requireError(t, http.StatusTooManyRequests, "queue_full")
		require.Equal(t, "rate_limit_error", e.Type)
		require.Contains(t, e.Message, `"m"`)
		require.Equal(t, 77, a.retryAfter(t), "nothing has been served yet")
	}
	require.Equal(t, 2.0, f.metric("remuda_gateway_queue_full_total", "model", "m"))
	require.Equal(t, 2.0, f.metric("remuda_gateway_requests_total", "model", "m", "code", "429"))
	f.waiting("m", length)

	// One that goes makes room for one.
	began := time.Now()
	s.order(5)
	f.waiting("m", length-5)
	for i := range 5 {
		answers = append(answers, f.later(fmt.Sprintf("b%d", i), unaryBody))
	}
	f.waiting("m", length)
	a := f.post(unaryBody)
	a.requireError(t, http.StatusTooManyRequests, "queue_full")
	// 5 have ended, which is 4 in the time between; less than about 2 s counts as that.
	slowest := (length + 1) * max(time.Since(began).Seconds(), 2) / 4
	got := a.retryAfter(t)
	require.GreaterOrEqual(t, got, 2, "11 at 4 in no less than 1.9 s")
	require.LessOrEqual(t, float64(got), slowest+1)
	close(s.leave)
	for _, c := range answers {
		require.Equal(t, http.StatusOK, (<-c).status)
	}
	f.requireRest()
}

// TestStuckModelDelaysNobody: a model's full queue is no other model's.
func TestStuckModelDelaysNobody(t *testing.T) {
	t.Parallel()
	c := newBoss(t)
	f := newGateway(t, patient, c.config, func(c *gateway.Config) { c.Queue.Length = 20 })
	stuck := newTurnstile(t, "s", 1)
	stuck.Name.Model = "stuck"
	f.engines(stuck.Engine, newEngine(t, "a", says("a")))
	c.change(func() {
		c.index, c.state.Models = 2, []api.GatewayModel{{Name: "m"}, {Name: "stuck"}, {Name: "cold"}}
	})
	f.follows(2)
	var answers []<-chan answer
	for range 21 {
		answers = append(answers, f.later("", `{"model":"stuck"}`), f.later("", `{"model":"cold"}`))
	}
	stuck.next()
	f.waiting("stuck", 20)
	f.waiting("cold", 20)
	began := time.Now()
	const n = 20
	require.Equal(t, map[string]int{wholeOf("a"): n}, f.who(n))
	require.Less(t, time.Since(began), patience/2)
	require.Zero(t, f.metric("remuda_gateway_queue_seconds", "model", "m"), "none of them has waited")
	report := c.reported("all queues", func(r api.GatewayReport) bool {
		return len(r.Queues) == 3 && r.Queues[2].Model == "m" && r.Queues[2].InFlight == 0
	})
	require.Equal(t, []string{"stuck", "cold", "m"}, []string{report.Queues[0].Model, report.Queues[1].Model, report.Queues[2].Model})
	for i, state := range []string{api.QueueBusy, api.QueueProvisioning, api.QueueReady} {
		require.Equal(t, state, report.Queues[i].State)
	}
	close(stuck.leave)
	cold := newEngine(t, "c", says("c"))
	cold.Name.Model = "cold"
	f.engines(stuck.Engine, cold)
	codes := map[int]int{}
	for _, c := range answers {
		codes[(<-c).status]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 41, http.StatusTooManyRequests: 1}, codes)
}
