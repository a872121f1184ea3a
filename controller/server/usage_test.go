package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/server"
	"remuda/controller/state"
	"remuda/controller/usage"
)

// usageOf is what n requests have used that take 10 tokens each.
func usageOf(n int64) api.Usage {
	return api.Usage{Requests: n, PromptTokens: 7 * n, CachedTokens: n, CompletionTokens: 3 * n, EstimatedTokens: 2 * n}
}

func usageReport(gateway string, of ...api.UsageCounters) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Since: epoch, Usage: of}
}

func used(day, key, model string, n int64) api.UsageCounters {
	return api.UsageCounters{Day: day, Key: key, Model: model, Usage: usageOf(n)}
}

// clocked is a single member with a clock, which usage is counted by as well.
func clocked(t *testing.T, now func() time.Time) *member {
	return cluster(t, 1, settings{server: func(c *server.Config) {
		c.Now = now
		uc := usage.DefaultConfig()
		uc.Raft, uc.Interval, uc.MaxInterval, uc.Now = c.Raft.(*raft.Node), 20*time.Millisecond, 20*time.Millisecond, now
		r, err := usage.New(uc)
		require.NoError(t, err)
		c.Usage = r
	}})[0]
}

func TestUsage(t *testing.T) {
	m := clocked(t, func() time.Time { return epoch })
	c := m.client
	of := func(q api.UsageQuery) api.UsageReport {
		t.Helper()
		r, _, err := c.Usage(t.Context(), q, api.QueryOptions{})
		require.NoError(t, err)
		return r
	}
	require.Equal(t, api.UsageReport{Since: "2025-12-27", Until: "2026-01-02", Rows: []api.UsageRow{}}, of(api.UsageQuery{}))
	_, meta, err := c.Usage(t.Context(), api.UsageQuery{}, api.QueryOptions{})
	require.NoError(t, err)

	orders := reported(t, c, usageReport("g", used("2026-01-01", "a", "m", 1), used("2026-01-02", "a", "m", 2), used("2026-01-02", "b", "n", 4), used("2026-01-02", "a", "n", 8), used("2026-01-03", "a", "n", 99)))
	require.Empty(t, orders.Budgets)
	reported(t, c, usageReport("h", used("2026-01-02", "a", "m", 16)))
	// One who waits gets it.
	_, _, err = c.Usage(t.Context(), api.UsageQuery{}, api.QueryOptions{Index: meta.Index, Wait: patience})
	require.NoError(t, err)
	eventually(t, "the reports to be committed", func() bool { return of(api.UsageQuery{}).Total == usageOf(31) })

	row := func(day, key, model string, n int64) api.UsageRow {
		return api.UsageRow{Day: day, Key: key, Model: model, Usage: usageOf(n)}
	}
	for _, tt := range []struct {
		query api.UsageQuery
		since string
		total int64
		want  []api.UsageRow
	}{
		{api.UsageQuery{}, "2025-12-27", 31, []api.UsageRow{row("2026-01-01", "a", "m", 1), row("2026-01-02", "a", "m", 18), row("2026-01-02", "a", "n", 8), row("2026-01-02", "b", "n", 4)}},
		{api.UsageQuery{By: api.UsageByKey}, "2025-12-27", 31, []api.UsageRow{row("", "a", "", 27), row("", "b", "", 4)}},
		{api.UsageQuery{By: api.UsageByModel}, "2025-12-27", 31, []api.UsageRow{row("", "", "m", 19), row("", "", "n", 12)}},
		{api.UsageQuery{By: api.UsageByDay, Days: 92}, "2025-10-03", 31, []api.UsageRow{row("2026-01-01", "", "", 1), row("2026-01-02", "", "", 30)}},
		{api.UsageQuery{By: api.UsageByDay, Days: 1}, "2026-01-02", 30, []api.UsageRow{row("2026-01-02", "", "", 30)}},
		{api.UsageQuery{By: api.UsageByModel, Key: "a"}, "2025-12-27", 27, []api.UsageRow{row("", "", "m", 19), row("", "", "n", 8)}},
		{api.UsageQuery{By: api.UsageByKey, Model: "n"}, "2025-12-27", 12, []api.UsageRow{row("", "a", "", 8), row("", "b", "", 4)}},
		{api.UsageQuery{Key: "nobody"}, "2025-12-27", 0, []api.UsageRow{}},
	} {
		require.Equal(t, api.UsageReport{Since: tt.since, Until: "2026-01-02", Rows: tt.want, Total: usageOf(tt.total)}, of(tt.query), "%+v", tt.query)
	}
}

// TestBudgetsOfKeys are in the answers to reports, and do not wake gateways.
func TestBudgetsOfKeys(t *testing.T) {
	var mu sync.Mutex
	now := epoch
	m := clocked(t, func() time.Time { mu.Lock(); defer mu.Unlock(); return now })
	c := m.client
	for name, l := range map[string]api.KeyLimits{
		"budget":         limits(func(l *api.KeyLimits) { l.TokensPerMonth = 1000 }),
		"free":           limits(),
		api.KeyAnonymous: limits(func(l *api.KeyLimits) { l.TokensPerDay = 50 }),
	} {
		_, err := c.SetKey(t.Context(), name, api.KeyRequest{KeyLimits: l})
		require.NoError(t, err)
	}
	_, gateway, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	orders := reported(t, c, usageReport("g", used("2026-01-01", "budget", "m", 3), used("2026-01-02", "budget", "m", 1), used("2026-01-02", "free", "m", 7)))
	want := map[string]api.TokensUsed{"budget": {Day: "2026-01-02", Today: 10, ThisMonth: 40}}
	require.Equal(t, want, orders.Budgets)
	orders = reported(t, c, usageReport("h", used("2026-01-02", "budget", "m", 2), used("2026-01-02", api.KeyAnonymous, "m", 1)))
	want = map[string]api.TokensUsed{"budget": {Day: "2026-01-02", Today: 30, ThisMonth: 60}, api.KeyAnonymous: {Day: "2026-01-02", Today: 10, ThisMonth: 10}}
	require.Equal(t, want, orders.Budgets)

	// Committed, they are in the state of gateways, whose index is the same.
	eventually(t, "the usage to be committed", func() bool {
		s, _, err := c.Key(t.Context(), "budget", api.QueryOptions{})
		require.NoError(t, err)
		return s.Used == want["budget"]
	})
	g, meta, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, gateway.Index, meta.Index)
	is := map[string]api.TokensUsed{}
	for _, k := range g.Keys {
		is[k.Name] = k.Used
	}
	require.Equal(t, map[string]api.TokensUsed{"budget": want["budget"], api.KeyAnonymous: want[api.KeyAnonymous], "free": {}}, is)

	// The day after.
	mu.Lock()
	now = now.Add(24 * time.Hour)
	mu.Unlock()
	orders = reported(t, c, usageReport("h"))
	require.Equal(t, map[string]api.TokensUsed{"budget": {Day: "2026-01-03", ThisMonth: 60}, api.KeyAnonymous: {Day: "2026-01-03", ThisMonth: 10}}, orders.Budgets)
	status, _, err := c.Key(t.Context(), "budget", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.TokensUsed{Day: "2026-01-03", ThisMonth: 60}, status.Used)
	g, _, err = c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.TokensUsed{Day: "2026-01-03", ThisMonth: 10}, g.Keys[0].Used)
}

// TestUsageIsNoNewsOfTheLoad: it would have the controller plan anew with each report.
func TestUsageIsNoNewsOfTheLoad(t *testing.T) {
	t.Parallel()
	m := one(t)
	day := state.UsageDay(time.Now())
	reported(t, m.client, usageReport("g", used(day, "a", "m", 1)))
	changed := m.loads.Changed()
	reported(t, m.client, usageReport("g", used(day, "a", "m", 2)))
	select {
	case <-changed:
		t.Fatal("the load is the same")
	default:
	}
}

// reportingGateway is a gateway that does what api.UsageCounters demands.
type reportingGateway struct {
	name        string
	since       time.Time
	counts      map[string]int64 // by key
	undelivered map[string]bool
	term        uint64
}

func (g *reportingGateway) report(ctx context.Context, c *api.Client, day string) error {
	r := api.GatewayReport{Gateway: g.name, Index: 1, Since: g.since}
	for key := range g.undelivered {
		r.Usage = append(r.Usage, used(day, key, "m", g.counts[key]))
	}
	orders, err := c.GatewayReport(ctx, r)
	if err != nil || orders.UsageTerm == 0 {
		return cmp.Or(err, errors.New("the usage was not taken"))
	}
	clear(g.undelivered)
	if orders.UsageTerm != g.term {
		g.term = orders.UsageTerm
		for key := range g.counts {
			g.undelivered[key] = true
		}
		for _, u := range r.Usage {
			delete(g.undelivered, u.Key)
		}
	}
	return nil
}

// TestUsageSurvivesLeaders: on real Raft, while the leader is stopped or hands over again and
// again, gateways lose answers, and one of them is started again. Nothing is lost or counted twice.
func TestUsageSurvivesLeaders(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{free: true})
	var urls []string
	for _, m := range ms {
		urls = append(urls, m.url)
	}
	// Usage is of a feature level above 1: a leader proposes it before it has reached all members only
	// if the state has it already.
	eventually(t, "the leader to know the feature levels of all", func() bool {
		_, err := leaderOf(t, ms).client.SetKey(t.Context(), "k0", api.KeyRequest{KeyLimits: limits()})
		return err == nil
	})
	day := state.UsageDay(time.Now())
	const keys = 3
	total := map[string]int64{}
	var mu sync.Mutex
	ctx, stop := context.WithCancel(t.Context())
	living, end := context.WithCancel(t.Context())
	var wg, counting sync.WaitGroup
	for i := range 3 {
		client := newClient(t, nil, "", urls...)
		g := &reportingGateway{name: fmt.Sprint("g", i), since: time.Now(), counts: map[string]int64{}, undelivered: map[string]bool{}}
		counting.Add(1)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprint("k", rand.N(keys))
				g.counts[key]++
				g.undelivered[key] = true
				mu.Lock()
				total[key]++
				mu.Unlock()
				// One in four answers is lost, and so are reports.
				limit := 2 * time.Second
				if rand.N(4) == 0 {
					limit = time.Duration(rand.N(int64(3 * time.Millisecond)))
				}
				once, cancel := context.WithTimeout(ctx, limit)
				_ = g.report(once, client, day)
				cancel()
			}
			// It begins anew, and reports of its last life still arrive.
			next := &reportingGateway{name: g.name, since: time.Now(), counts: map[string]int64{"k0": 5}, undelivered: map[string]bool{"k0": true}}
			mu.Lock()
			total["k0"] += 5
			mu.Unlock()
			counting.Done()
			for living.Err() == nil {
				_ = g.report(living, client, day)
				_ = next.report(living, client, day)
				time.Sleep(10 * time.Millisecond) // gateways at rest report seldom
			}
		})
	}
	for range 4 {
		leader := leaderOf(t, ms)
		time.Sleep(time.Duration(rand.N(int64(150 * time.Millisecond))))
		to := ""
		for _, m := range ms {
			if m != leader {
				to = m.node.ID()
			}
		}
		if err := leader.node.TransferLeadership(t.Context(), to); err != nil && !errors.Is(err, raft.ErrNotLeader) {
			t.Log("transfer:", err)
		}
	}
	leaderOf(t, ms).close() // the others elect one of them
	left := leaderOf(t, ms)
	time.Sleep(50 * time.Millisecond)
	stop()
	counting.Wait()
	defer wg.Wait()
	defer end()

	eventually(t, "the usage of all reports", func() bool {
		r, _, err := left.client.Usage(t.Context(), api.UsageQuery{By: api.UsageByKey}, api.QueryOptions{})
		if err != nil {
			return false
		}
		is := map[string]int64{}
		for _, row := range r.Rows {
			require.Equal(t, usageOf(row.Requests), row.Usage)
			require.LessOrEqual(t, row.Requests, total[row.Key], "counted twice")
			is[row.Key] = row.Requests
		}
		return fmt.Sprint(is) == fmt.Sprint(total)
	})
}

// TestUsageNeedsTheFeatureLevel: while a member cannot apply it, usage stays in memory.
func TestUsageNeedsTheFeatureLevel(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{raft: func(c *raft.Config) { c.FeatureLevel = 1 }})[0]
	day := state.UsageDay(time.Now())
	reported(t, m.client, usageReport("g", used(day, "a", "m", 1)))
	_, err := m.client.SetKey(t.Context(), "k", api.KeyRequest{KeyLimits: limits()})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "not all servers have feature level 2")
	r, _, err := m.client.Usage(t.Context(), api.UsageQuery{}, api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, r.Rows)
}
