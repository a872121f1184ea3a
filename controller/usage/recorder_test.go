package usage_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/controller/usage"
)

func TestUsageIsCommittedInBatches(t *testing.T) {
	c := newCluster(t, 1)
	term, _ := c.report(report("g", counters(today, "a", "m", 5), counters(today, "b", "m", 1)))
	require.Equal(t, uint64(1), term)
	c.report(report("g", counters(today, "a", "m", 6)))
	c.report(report("h", counters(today, "a", "m", 10)))
	require.Empty(t, c.entries, "nothing is committed with a report")
	require.Equal(t, 3, c.commit())
	require.Len(t, c.entries, 1)
	require.Equal(t, int64(16), requests(c.leader.store.View(), today, "a", "m"))
	require.Equal(t, int64(1), requests(c.leader.store.View(), today, "b", "m"))

	// The same again, and what is older, is no change.
	c.report(report("g", counters(today, "a", "m", 6), counters(today, "b", "m", 1)))
	c.report(report("g", counters(today, "a", "m", 5)))
	require.Zero(t, c.commit())
	require.Len(t, c.entries, 1)
}

// TestALateReport is one that arrives after a newer one of the same gateway.
func TestALateReport(t *testing.T) {
	c := newCluster(t, 1)
	c.report(report("g", counters(today, "a", "m", 6)))
	c.report(report("g", counters(today, "a", "m", 5)))
	c.commit()
	require.Equal(t, int64(6), requests(c.leader.store.View(), today, "a", "m"))
}

// TestAReportDuringACommit is counted by the next one.
func TestAReportDuringACommit(t *testing.T) {
	c := newCluster(t, 1)
	c.report(report("g", counters(today, "a", "m", 6)))
	c.next = func() outcome {
		c.report(report("g", counters(today, "a", "m", 8), counters(today, "b", "m", 1)))
		return committed
	}
	c.commit()
	require.Equal(t, int64(6), requests(c.leader.store.View(), today, "a", "m"))
	c.next = func() outcome { return committed }
	c.commit()
	require.Equal(t, int64(8), requests(c.leader.store.View(), today, "a", "m"))
	require.Equal(t, int64(1), requests(c.leader.store.View(), today, "b", "m"))
}

// TestALargeReportIsSeveralCommands: a command has a length that Raft takes at once.
func TestALargeReportIsSeveralCommands(t *testing.T) {
	c := newCluster(t, 1)
	for i := range 5 {
		c.report(report(fmt.Sprint("g", i), many(0, api.MaxReportUsage)...))
	}
	require.Equal(t, 5*api.MaxReportUsage, c.commit())
	require.Len(t, c.entries, 3)
	for _, e := range c.entries {
		require.Less(t, len(e), 1<<20)
	}
	require.Equal(t, int64(5), requests(c.leader.store.View(), today, "k17", "m"))
}

// TestFailedCommits: whatever becomes of a command, the next one counts what is missing.
func TestFailedCommits(t *testing.T) {
	for name, what := range map[string]outcome{"refused": refused, "lost": lost, "late": inLimbo, "unheard": unheard} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.report(report("g", counters(today, "a", "m", 5)))
			c.next = func() outcome { return what }
			require.Zero(t, c.commit())
			c.report(report("g", counters(today, "a", "m", 7)))
			c.next = func() outcome { return committed }
			c.commit()
			require.Equal(t, int64(7), requests(c.leader.store.View(), today, "a", "m"))
			c.commit()
			require.Equal(t, int64(7), requests(c.leader.store.View(), today, "a", "m"))
		})
	}
}

// TestWhatALeaderHasNotCommitted is sent again, as the term is another one.
func TestWhatALeaderHasNotCommitted(t *testing.T) {
	c := newCluster(t, 2)
	first, _ := c.report(report("g", counters(today, "a", "m", 5)))
	c.commit()
	c.report(report("g", counters(today, "a", "m", 9), counters(today, "b", "m", 1)))
	c.elect(c.servers[1], false)
	second, _ := c.report(report("g", counters(today, "b", "m", 2)))
	require.NotEqual(t, first, second)
	c.report(report("g", counters(today, "a", "m", 9)))
	c.commit()
	require.Equal(t, int64(9), requests(c.leader.store.View(), today, "a", "m"))
	require.Equal(t, int64(2), requests(c.leader.store.View(), today, "b", "m"))

	// The first one leads again, and has forgotten what it never committed.
	c.elect(c.servers[0], false)
	third, _ := c.report(report("g", counters(today, "a", "m", 10)))
	require.Equal(t, second+1, third)
	c.commit()
	require.Equal(t, int64(10), requests(c.leader.store.View(), today, "a", "m"))
	require.Equal(t, int64(2), requests(c.leader.store.View(), today, "b", "m"))
}

func TestBudgets(t *testing.T) {
	c := newCluster(t, 1)
	_, budgets := c.report(report("g", counters(today, "day", "m", 1)))
	require.Empty(t, budgets, "no key has a budget")
	c.setKey("day", state.KeyLimits{TokensPerDay: 1000})
	c.setKey("month", state.KeyLimits{TokensPerMonth: 1000})
	c.setKey("idle", state.KeyLimits{TokensPerMonth: 1000})
	c.setKey("free", state.KeyLimits{})
	used := func(today, month int64) api.TokensUsed {
		return api.TokensUsed{Day: state.UsageDay(c.clock.time()), Today: today, ThisMonth: month}
	}

	// What is reported counts at once, of all gateways, and not twice once it is committed.
	_, budgets = c.report(report("g", counters(today, "month", "m", 2), counters(today, "free", "m", 7), counters("2026-01-01", "month", "m", 30)))
	want := map[string]api.TokensUsed{"day": used(10, 10), "month": used(20, 320)}
	require.Equal(t, want, budgets)
	c.commit()
	_, budgets = c.report(report("h"))
	require.Equal(t, want, budgets)
	_, budgets = c.report(report("h", counters(today, "month", "n", 1)))
	want["month"] = used(30, 330)
	require.Equal(t, want, budgets)
	_, budgets = c.report(report("g", counters(today, "month", "m", 2)))
	require.Equal(t, want, budgets)
	c.commit()
	require.Equal(t, want, c.leader.recorder.Budgets())

	// The next day, and the next month.
	c.clock.advance(24 * time.Hour)
	require.Equal(t, map[string]api.TokensUsed{"day": used(0, 10), "month": used(0, 330)}, c.leader.recorder.Budgets())
	c.clock.advance(30 * 24 * time.Hour)
	require.Empty(t, c.leader.recorder.Budgets())
}

// TestBudgetMetrics: the leader reports the used share of each budget, also of keys without usage.
func TestBudgetMetrics(t *testing.T) {
	c := newCluster(t, 1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(c.leader.recorder.Collectors()...)
	shares := func() map[string]float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, f := range families {
			if f.GetName() == "remuda_controller_key_budget_used_ratio" {
				for _, m := range f.GetMetric() {
					out[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		return out
	}
	c.setKey("both", state.KeyLimits{TokensPerDay: 40, TokensPerMonth: 640})
	c.setKey("idle", state.KeyLimits{TokensPerDay: 1000})
	c.setKey("free", state.KeyLimits{})
	c.report(report("g", counters(today, "both", "m", 2), counters(today, "free", "m", 7), counters("2026-01-01", "both", "m", 30)))
	require.Empty(t, shares(), "it does not lead")
	c.leader.recorder.Lead(true)
	require.Equal(t, map[string]float64{"both day": 0.5, "both month": 0.5, "idle day": 0}, shares())
	c.clock.advance(24 * time.Hour)
	require.Equal(t, map[string]float64{"both day": 0, "both month": 0.5, "idle day": 0}, shares())
}

func TestMemoryIsBounded(t *testing.T) {
	c := newCluster(t, 1)
	c.next = func() outcome { return refused }
	full := usage.MaxUncounted / api.MaxReportUsage
	for i := range full {
		term, _ := c.report(report(fmt.Sprint("g", i), many(0, api.MaxReportUsage)...))
		require.Equal(t, uint64(1), term)
	}
	term, _ := c.report(report("late", many(0, 1)...))
	require.Zero(t, term, "there is no room")
	term, _ = c.report(report("g0", counters(today, "k0", "m", 2)))
	require.Equal(t, uint64(1), term, "it takes no room")
	c.commit()
	c.next = func() outcome { return committed }
	c.commit()
	term, _ = c.report(report("late", many(0, 1)...))
	require.Equal(t, uint64(1), term)
	c.commit()
	require.Equal(t, int64(full+2), requests(c.leader.store.View(), today, "k0", "m"))
	require.Equal(t, int64(full), requests(c.leader.store.View(), today, "k1", "m"))
}

// TestLateUsage is not counted, and takes no memory.
func TestLateUsage(t *testing.T) {
	c := newCluster(t, 1)
	term, _ := c.report(report("g", counters("2025-12-29", "a", "m", 1), counters("2025-12-30", "a", "m", 1), counters("2026-01-03", "a", "m", 1), counters("2026-01-04", "a", "m", 1)))
	require.Equal(t, uint64(1), term)
	require.Equal(t, 2, c.commit())
	c.next = func() outcome { return refused }
	c.report(report("g", counters("2025-12-30", "a", "m", 2)))
	c.commit()
	c.clock.advance(24 * time.Hour)
	c.next = func() outcome { return committed }
	require.Zero(t, c.commit())
	require.Equal(t, int64(1), requests(c.leader.store.View(), "2025-12-30", "a", "m"))
}

// TestOldDays go without any report.
func TestOldDays(t *testing.T) {
	c := newCluster(t, 1)
	c.report(report("g", counters(today, "a", "m", 1)))
	c.commit()
	c.clock.advance(100 * 24 * time.Hour)
	c.commit()
	require.Empty(t, c.leader.store.View().UsageRows(nil, ""))
	require.Empty(t, c.leader.store.View().UsageMarks())
	entries := len(c.entries)
	c.commit()
	require.Len(t, c.entries, entries)
}

func TestValidate(t *testing.T) {
	require.NoError(t, usage.Validate(report("g")))
	require.NoError(t, usage.Validate(api.GatewayReport{Gateway: "g"}), "a report without usage needs no start")
	require.NoError(t, usage.Validate(report("g", many(0, api.MaxReportUsage)...)))
	require.ErrorContains(t, usage.Validate(report("g", many(0, api.MaxReportUsage+1)...)), "usage has 1001 entries: must be at most 1000")
	r := report("g", counters("today", "a b", "", 1), counters(today, "a", "m", 1), counters(today, "a", "m", 2))
	err := usage.Validate(r)
	for _, want := range []string{`day is "today": must be a date, such as "2006-01-02"`, `key "a b": spaces`, "model is empty", `duplicate usage of key "a" and model "m" on 2026-01-02`} {
		require.ErrorContains(t, err, want)
	}
	r = report("g", counters(today, "a", "m", 1))
	r.Since = time.Time{}
	require.ErrorContains(t, usage.Validate(r), "since is missing")
	for want, edit := range map[string]func(*api.Usage){
		"a counter of -1":                          func(u *api.Usage) { u.Requests = -1 },
		"a counter of 9223372036854775807":         func(u *api.Usage) { u.CompletionTokens = math.MaxInt64 },
		"8 cached tokens: must be at most the":     func(u *api.Usage) { u.CachedTokens = 8 },
		"11 estimated tokens: must be at most":     func(u *api.Usage) { u.EstimatedTokens = 11 },
		"must be at most all tokens, 10":           func(u *api.Usage) { u.EstimatedTokens = 11 },
		"must be at most the tokens of prompts, 7": func(u *api.Usage) { u.CachedTokens = 8 },
	} {
		r := report("g", counters(today, "a", "m", 1))
		edit(&r.Usage[0].Usage)
		require.ErrorContains(t, usage.Validate(r), want)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := usage.New(usage.Config{Interval: time.Second, MaxInterval: 1})
	for _, want := range []string{"raft, clock and logger must be set", "interval is 1s, max interval is 1ns"} {
		require.ErrorContains(t, err, want)
	}
}

// leading is a Raft of one server that leads for as long as Run runs, and counts commands.
type leading struct {
	store *state.Store
	mu    sync.Mutex
	at    []time.Time
	index uint64
}

func (l *leading) Store() *state.Store { return l.store }

func (l *leading) WhileLeader(ctx context.Context, lead func(context.Context, uint64)) { lead(ctx, 1) }

func (l *leading) Apply(_ context.Context, c state.Command) (state.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.at) == 3 {
		l.at = append(l.at, time.Time{})
		return state.Result{}, raft.ErrBusy
	}
	data, err := state.Encode(c)
	if err != nil {
		return state.Result{}, err
	}
	l.index++
	l.at = append(l.at, time.Now())
	return l.store.Apply(l.index, data), nil
}

// TestPaceOfCommits: one command soon after a change, and the next ones the later the more they
// had.
func TestPaceOfCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := state.New()
		require.NoError(t, err)
		l := &leading{store: store}
		cfg := usage.DefaultConfig()
		cfg.Raft = l
		r, err := usage.New(cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		day := state.UsageDay(time.Now())
		began := time.Now()
		after := func(d time.Duration, n int) {
			t.Helper()
			time.Sleep(time.Until(began.Add(d)))
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			require.Len(t, l.at, n, "after %s", d)
		}
		after(4*time.Second, 0)
		r.Report(report("g", counters(day, "a", "m", 1)))
		after(4900*time.Millisecond, 0)
		after(5*time.Second, 1)
		after(60*time.Second, 1)
		u := make([]api.UsageCounters, 200)
		for i := range u {
			u[i] = counters(day, fmt.Sprint("k", i), "m", 1)
		}
		r.Report(report("g", u...))
		after(65*time.Second, 2)
		r.Report(report("g", counters(day, "a", "m", 2)))
		after(84*time.Second, 2)
		after(85*time.Second, 3)
		r.Report(report("g", counters(day, "a", "m", 3)))
		after(90*time.Second, 4) // it fails
		after(95*time.Second, 5)
		require.Equal(t, int64(3), requests(store.View(), day, "a", "m"))
		cancel()
		<-done
	})
}
