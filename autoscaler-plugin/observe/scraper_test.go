package observe_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/testkit/consultest"
)

func TestTheFirstReportHasNumbers(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.5, 3, 7))
	other := newEngine(t, page("mistral", 0.9, 9, 9))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	register(t, agent, other.server.Listener.Addr().String(), replica.Name{Model: "mistral", Variant: "a100", ID: "2"}, "primary", 1, "passing")
	s := scraper(t, agent, func(c *observe.ScrapeConfig) { c.Interval = time.Hour })
	r := reportOf(t, s, askLlama)
	require.Len(t, r.Engines, 1)
	got := r.Engines[0]
	require.Equal(t, "llama:a100:1", got.View.Replica)
	require.Equal(t, "a100", got.Variant)
	require.Equal(t, 16, got.Slots)
	require.Equal(t, enginemetrics.ClassOK, got.View.Class)
	require.Equal(t, enginemetrics.Of(0.5), got.View.KVUsage)
	require.Equal(t, enginemetrics.Of(3), got.View.Waiting)
	require.Equal(t, enginemetrics.Of(7), got.View.Running)
	require.Zero(t, other.asked.Load(), "nobody wants it")
	require.Equal(t, "consul", s.Name())
}

func TestPeaksAreKept(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.9, 8, 16))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	s := scraper(t, agent, nil)
	reportOf(t, s, askLlama)
	e.show(page("llama", 0.1, 0, 1))
	r := await(t, s, askLlama, "a second reading", func(r observe.Report) bool { return r.Engines[0].View.Last.Running == enginemetrics.Of(1) })
	require.Equal(t, enginemetrics.Of(0.9), r.Engines[0].View.KVUsage)
	require.Equal(t, enginemetrics.Of(8), r.Engines[0].View.Waiting)
}

func TestOfAPairTheHolderIsRead(t *testing.T) {
	agent := consultest.New(t)
	old, holder := newEngine(t, page("llama", 0.9, 9, 9)), newEngine(t, page("llama", 0.2, 0, 1))
	register(t, agent, old.server.Listener.Addr().String(), name("a100", "1"), "primary", 7, "passing")
	register(t, agent, holder.server.Listener.Addr().String(), name("a100", "1"), "shadow", 8, "passing")
	s := scraper(t, agent, nil)
	r := reportOf(t, s, askLlama)
	require.Len(t, r.Engines, 1)
	require.Equal(t, enginemetrics.Of(0.2), r.Engines[0].View.KVUsage)
	require.Zero(t, old.asked.Load())
}

func TestEnginesThatMustNotBeUsed(t *testing.T) {
	agent := consultest.New(t)
	e, ill := newEngine(t, page("llama", 0.2, 0, 1)), newEngine(t, page("llama", 0.9, 9, 9))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 7, "passing")
	register(t, agent, ill.server.Listener.Addr().String(), name("a100", "1"), "shadow", 8, "critical")
	register(t, agent, ill.server.Listener.Addr().String(), name("l4", "2"), "primary", 1, "critical")
	s := scraper(t, agent, nil)
	r := reportOf(t, s, askLlama)
	require.Len(t, r.Engines, 1)
	require.Equal(t, enginemetrics.Of(0.2), r.Engines[0].View.KVUsage)
	require.Equal(t, map[string]int{"l4": 1}, r.NotPassing)
	require.Zero(t, ill.asked.Load())

	agent.NodeStatus("critical")
	require.Len(t, reportOf(t, s, askLlama).Engines, 1, "an engine on a node whose agent died may serve on")
}

func TestEnginesThatCannotBeRead(t *testing.T) {
	huge := strings.Repeat("x", enginemetrics.MaxBytes+1)
	for what, c := range map[string]struct {
		change func(*fakeEngine)
		why    string
	}{
		"hangs":            {func(e *fakeEngine) { e.hang.Store(true) }, "deadline"},
		"says no":          {func(e *fakeEngine) { e.status.Store(http.StatusInternalServerError) }, "500"},
		"sends elsewhere":  {func(e *fakeEngine) { e.status.Store(http.StatusFound) }, "302"},
		"is cut off":       {func(e *fakeEngine) { e.show("vllm:num_requests_running 1") }, "truncated"},
		"is too large":     {func(e *fakeEngine) { e.show(huge) }, "too large"},
		"does not listen":  {func(e *fakeEngine) { _ = e.server.Listener.Close() }, "refused"},
		"is no engine":     {func(e *fakeEngine) { e.show("up 1\n") }, "the engine reports no waiting requests and no KV usage"},
		"has other models": {func(e *fakeEngine) { e.show(page("mistral", 0.1, 0, 0)) }, "label_mismatch"},
	} {
		t.Run(what, func(t *testing.T) {
			agent := consultest.New(t)
			e, good := newEngine(t, page("llama", 0.5, 3, 7)), newEngine(t, page("llama", 0.3, 0, 1))
			c.change(e)
			register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
			register(t, agent, good.server.Listener.Addr().String(), name("a100", "2"), "primary", 1, "passing")
			s := scraper(t, agent, func(cfg *observe.ScrapeConfig) {
				if what == "hangs" { // the others take what time a busy machine needs
					cfg.Timeout = 50 * time.Millisecond
				}
			})
			r := await(t, s, askLlama, "a reading of the good one", func(r observe.Report) bool {
				return len(r.Engines) == 2 && r.Engines[1].View.Class == enginemetrics.ClassOK && strings.Contains(r.Engines[0].View.Why, c.why)
			})
			require.Equal(t, enginemetrics.ClassUnknown, r.Engines[0].View.Class)
		})
	}
}

// An engine that hangs does not hold up the readings of the others.
func TestAnEngineThatHangsHoldsUpNoOther(t *testing.T) {
	agent := consultest.New(t)
	hangs, good := newEngine(t, ""), newEngine(t, page("llama", 0.3, 0, 1))
	hangs.hang.Store(true)
	register(t, agent, hangs.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	register(t, agent, good.server.Listener.Addr().String(), name("a100", "2"), "primary", 1, "passing")
	s := scraper(t, agent, func(c *observe.ScrapeConfig) { c.Timeout, c.Concurrency = patience, 2 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = s.Report(ctx, askLlama) // it waits for the first reading of each
	read := good.asked.Load()
	require.Eventually(t, func() bool { return good.asked.Load() >= read+5 }, patience/2, time.Millisecond, "it is read while the other hangs")
}

func TestAnEngineThatStopsAnsweringGetsStaleAndComesBack(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.5, 3, 7))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	var ahead atomic.Int64
	s := scraper(t, agent, func(c *observe.ScrapeConfig) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	await(t, s, askLlama, "a reading", func(r observe.Report) bool { return r.Engines[0].View.Class == enginemetrics.ClassOK })
	e.status.Store(http.StatusServiceUnavailable)
	r := await(t, s, askLlama, "staleness", func(r observe.Report) bool {
		ahead.Add(int64(time.Second))
		return r.Engines[0].View.Class == enginemetrics.ClassStale
	})
	require.Contains(t, r.Engines[0].View.Why, "503")
	require.Equal(t, enginemetrics.Of(7), r.Engines[0].View.Running, "the last known values")
	e.status.Store(http.StatusOK)
	await(t, s, askLlama, "the way back", func(r observe.Report) bool { return r.Engines[0].View.Class == enginemetrics.ClassOK })
}

func TestAConsulThatIsAwayChangesNothing(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.5, 3, 7))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	s := scraper(t, agent, nil)
	reportOf(t, s, askLlama)
	addr := agent.Addr()
	agent.Stop()
	await(t, s, askLlama, "the note", func(r observe.Report) bool { return len(r.Notes) == 1 })
	e.show(page("llama", 0.6, 3, 8))
	r := await(t, s, askLlama, "another reading", func(r observe.Report) bool { return r.Engines[0].View.Last.Running == enginemetrics.Of(8) })
	require.Contains(t, r.Notes[0], "Consul has been unreachable")
	agent.Listen(t, addr)
	await(t, s, askLlama, "consul's return", func(r observe.Report) bool { return len(r.Notes) == 0 })
}

func TestAConsulThatNeverAnswered(t *testing.T) {
	agent := consultest.New(t)
	agent.Refuse(http.StatusForbidden)
	s := scraper(t, agent, func(c *observe.ScrapeConfig) { c.FirstWait = 30 * time.Millisecond })
	_, err := s.Report(t.Context(), askLlama)
	require.ErrorContains(t, err, "Consul has not returned a list of engines yet")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Report(ctx, askLlama)
	require.ErrorIs(t, err, context.Canceled)

	e := newEngine(t, page("llama", 0.5, 3, 7))
	agent.Refuse(0)
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	require.Eventually(t, func() bool {
		r, err := s.Report(t.Context(), askLlama)
		return err == nil && len(r.Engines) == 1 && r.Engines[0].View.Class == enginemetrics.ClassOK
	}, patience, time.Millisecond)
}

func TestReplicasThatConsulHasNoMore(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.5, 3, 7))
	one := name("a100", "1")
	register(t, agent, e.server.Listener.Addr().String(), one, "primary", 1, "passing")
	var ahead atomic.Int64
	s := scraper(t, agent, func(c *observe.ScrapeConfig) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	q := askLlama
	q.Replicas = []string{"llama:a100:1", "llama:a100:2"}
	r := reportOf(t, s, q)
	require.Len(t, r.Engines, 2)
	require.Contains(t, r.Engines[1].View.Why, "Consul lists no usable engine of it")
	require.True(t, r.Engines[1].Gone)
	require.False(t, r.Engines[0].Gone)
	deregister(t, agent, one.ServiceID("primary"))
	r = await(t, s, q, "its leave", func(r observe.Report) bool { return r.Engines[0].Gone })
	require.Equal(t, "a100", r.Engines[0].Variant)
	await(t, s, q, "its end", func(r observe.Report) bool {
		ahead.Add(int64(time.Second))
		return r.Engines[0].View.Class == enginemetrics.ClassUnknown
	})
	require.Empty(t, reportOf(t, s, askLlama).Engines)
}

func TestModelsThatNobodyAsksForAreNotRead(t *testing.T) {
	agent := consultest.New(t)
	e := newEngine(t, page("llama", 0.5, 3, 7))
	register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	var ahead atomic.Int64
	s := scraper(t, agent, func(c *observe.ScrapeConfig) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	reportOf(t, s, askLlama)
	ahead.Store(int64(11 * time.Minute))
	last, quiet := e.asked.Load(), 0
	require.Eventually(t, func() bool {
		if now := e.asked.Load(); now != last {
			last, quiet = now, 0
		} else {
			quiet++
		}
		return quiet == 3 // for sixty intervals each
	}, patience, 300*time.Millisecond)
	require.Equal(t, enginemetrics.ClassOK, reportOf(t, s, askLlama).Engines[0].View.Class, "who asks again gets new numbers at once")
}

func TestAClockThatJumps(t *testing.T) {
	for what, by := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(what, func(t *testing.T) {
			agent := consultest.New(t)
			e := newEngine(t, page("llama", 0.5, 3, 7))
			register(t, agent, e.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
			var ahead atomic.Int64
			s := scraper(t, agent, func(c *observe.ScrapeConfig) {
				c.Now = func() time.Time { return time.Now().Round(0).Add(time.Duration(ahead.Load())) }
			})
			reportOf(t, s, askLlama)
			ahead.Store(int64(by))
			before := e.asked.Load()
			await(t, s, askLlama, "readings after the jump", func(r observe.Report) bool {
				return e.asked.Load() > before+2 && r.Engines[0].View.Class == enginemetrics.ClassOK && r.Engines[0].View.Age < time.Minute
			})
		})
	}
}

func TestDialects(t *testing.T) {
	agent := consultest.New(t)
	tgi := newEngine(t, "tgi_batch_current_size 3\ntgi_queue_size 2\n")
	silent := newEngine(t, "")
	register(t, agent, tgi.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	register(t, agent, silent.server.Listener.Addr().String(), name("cpu", "2"), "primary", 1, "passing")
	s := scraper(t, agent, nil)
	q := askLlama
	q.Dialects = map[string]string{"cpu": "ollama"}
	r := reportOf(t, s, q)
	require.Equal(t, "tgi", r.Engines[0].View.Last.Dialect)
	require.Equal(t, enginemetrics.Of(2), r.Engines[0].View.Waiting)
	require.Equal(t, enginemetrics.ClassUnknown, r.Engines[1].View.Class)
	require.Equal(t, "ollama", r.Engines[1].View.Last.Dialect)
	require.Zero(t, silent.asked.Load(), "there is nothing to read")

	q.Dialects = map[string]string{"cpu": "vllm"} // the policy was changed
	await(t, s, q, "its readings", func(observe.Report) bool { return silent.asked.Load() > 0 })
	q.Dialects = map[string]string{"cpu": "cobol"}
	_, err := s.Report(t.Context(), q)
	require.ErrorIs(t, err, enginemetrics.ErrUnknownDialect)
}

// Two policies may have a job group of one model each, that show it in different ways.
func TestJobGroupsAreReadEachInItsWay(t *testing.T) {
	agent := consultest.New(t)
	a, b := newEngine(t, page("org/llama", 0.5, 3, 7)), newEngine(t, page("llama", 0.4, 1, 2))
	register(t, agent, a.server.Listener.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	register(t, agent, b.server.Listener.Addr().String(), name("l4", "2"), "primary", 1, "passing")
	s := scraper(t, agent, func(c *observe.ScrapeConfig) { c.Interval = time.Hour })
	group := func(variant, shown string) observe.Question {
		return observe.Question{Model: "llama", Shown: shown, Group: &observe.JobGroup{Variant: variant}}
	}
	first, second := group("a100", "org/llama"), group("l4", "llama")
	reportOf(t, s, first)
	reportOf(t, s, second)
	for range 3 {
		for _, q := range []observe.Question{first, second} {
			r := reportOf(t, s, q)
			require.Len(t, r.Engines, 2)
			require.Equal(t, enginemetrics.ClassOK, r.Engines[0].View.Class, "%s: %s", q.Shown, r.Engines[0].View.Why)
			require.Equal(t, enginemetrics.ClassOK, r.Engines[1].View.Class, "%s: %s", q.Shown, r.Engines[1].View.Why)
		}
	}
	require.Equal(t, []int64{1, 1}, []int64{a.asked.Load(), b.asked.Load()}, "neither question makes the other one new")
}

func TestTheSimulator(t *testing.T) {
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger, cfg.Exit = "llama", "1.2.3", hclog.NewNullLogger(), func(int) {}
	server, err := sim.New(cfg)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	agent := consultest.New(t)
	register(t, agent, ln.Addr().String(), name("a100", "1"), "primary", 1, "passing")
	s := scraper(t, agent, nil)
	r := await(t, s, askLlama, "a reading", func(r observe.Report) bool { return r.Engines[0].View.Class == enginemetrics.ClassOK })
	require.Equal(t, enginemetrics.Of(0), r.Engines[0].View.KVUsage)
	require.Equal(t, enginemetrics.Of(4096*16), r.Engines[0].View.Last.KVTokens)
	await(t, s, askLlama, "rates", func(r observe.Report) bool { return r.Engines[0].View.Rates.Finished == enginemetrics.Of(0) })
}

func TestNewScraperNamesEveryBadField(t *testing.T) {
	_, err := observe.NewScraper(observe.ScrapeConfig{})
	for _, field := range []string{"watcher", "interval", "timeout", "first wait", "idle after", "concurrency"} {
		require.ErrorContains(t, err, field)
	}
}
