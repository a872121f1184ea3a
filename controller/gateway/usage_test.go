package gateway

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/share"
)

func took(prompt int64) api.Usage { return api.Usage{Requests: 1, PromptTokens: prompt} }

func TestUsageBookTellsUntilItIsTaken(t *testing.T) {
	var b usageBook
	now := time.Date(2026, 1, 30, 23, 0, 0, 0, time.UTC)
	b.add(now, "k", "m", took(5))
	r := b.report(now)
	require.Equal(t, []api.UsageCounters{{Key: "k", Model: "m", Day: "2026-01-30", Usage: took(5)}}, r.counters)
	b.delivered(now, r, api.GatewayOrders{})
	require.Len(t, b.report(now).counters, 1, "the answer took nothing")
	r = b.report(now)
	b.add(now, "k", "m", took(1)) // while the report was on its way
	b.delivered(now, r, api.GatewayOrders{UsageTerm: 7})
	r = b.report(now)
	require.Equal(t, api.Usage{Requests: 2, PromptTokens: 6}, r.counters[0].Usage)
	b.delivered(now, r, api.GatewayOrders{UsageTerm: 7})
	require.Empty(t, b.report(now).counters)

	b.add(now.Add(2*time.Hour), "k", "m", took(3)) // the next day
	r = b.report(now)
	require.Len(t, r.counters, 1)
	b.delivered(now, r, api.GatewayOrders{UsageTerm: 8}) // another leader
	r = b.report(now)
	require.Len(t, r.counters, 1, "what the new leader has is not told again")
	require.Equal(t, "2026-01-30", r.counters[0].Day)
	require.Empty(t, b.report(now.AddDate(0, 0, 10)).counters, "nobody wants it any more")
}

func TestUsageBookKnowsBudgets(t *testing.T) {
	var b usageBook
	now := time.Date(2026, 1, 30, 12, 0, 0, 0, time.UTC)
	used := func(at time.Time) [2]int64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		today, month := b.used(at, "k")
		return [2]int64{today, month}
	}
	b.follow([]api.GatewayKey{{Name: "k", Used: api.TokensUsed{Day: "2026-01-30", Today: 10, ThisMonth: 100}}})
	require.Equal(t, [2]int64{10, 100}, used(now))
	b.add(now, "k", "m", took(5))
	require.Equal(t, [2]int64{15, 105}, used(now), "what is used here counts at once")
	r := b.report(now)
	b.add(now, "k", "m", took(2))
	b.delivered(now, r, api.GatewayOrders{UsageTerm: 1, Budgets: map[string]api.TokensUsed{"k": {Day: "2026-01-30", Today: 40, ThisMonth: 140}}})
	require.Equal(t, [2]int64{42, 142}, used(now), "and nothing counts twice")
	require.Equal(t, [2]int64{2, 142}, used(now.Add(24*time.Hour)), "a new day")
	require.Equal(t, [2]int64{2, 2}, used(now.Add(48*time.Hour)), "a new month")
}

// Whatever is lost on the way, a controller that takes each row's latest counters, and forgets some of
// them when its term changes, has all that was used once the last report was taken.
func TestUsageBookLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b usageBook
		now := time.Date(2026, 1, 30, 12, 0, 0, 0, time.UTC)
		has, want := map[string]int64{}, map[string]int64{}
		term := uint64(1)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"use", "report", "answer lost", "not taken", "another leader"}).Draw(t, "what") {
			case "use":
				key := fmt.Sprint("k", rapid.IntRange(0, 3).Draw(t, "key"))
				b.add(now, key, "m", took(1))
				want[key]++
			case "another leader":
				term++
				clear(has)
			case "report", "answer lost", "not taken":
				r := b.report(now)
				for _, c := range r.counters {
					has[c.Key] = c.PromptTokens
				}
				b.delivered(now, r, api.GatewayOrders{UsageTerm: rapid.SampledFrom([]uint64{0, term}).Draw(t, "term")})
			}
		}
		for range 3 {
			r := b.report(now)
			for _, c := range r.counters {
				has[c.Key] = c.PromptTokens
			}
			b.delivered(now, r, api.GatewayOrders{UsageTerm: term})
		}
		require.Equal(t, want, has)
	})
}

// budgetKey is a key with a budget of so many tokens a day.
func budgetKey(tokens int64) api.GatewayKey {
	return api.GatewayKey{Name: "k", KeyLimits: api.KeyLimits{TokensPerDay: tokens}}
}

// spender is a gateway with a key that has a budget.
type spender struct {
	name     string
	book     *usageBook
	spent    int64
	sequence uint64
	heard    time.Time // when its last report was taken
}

// spenders are gateways with one controller, whose leader changes.
type spenders struct {
	t      *rapid.T
	now    time.Time
	budget int64
	all    []*spender
	store  *gatewayreport.Store
	term   uint64
	// counted is by gateway, and committed what of that no leader loses.
	counted, committed map[string]int64
	// beyond is by how much requests that were let in have exceeded shares.
	beyond int64
}

func (w *spenders) add() {
	g := &spender{name: fmt.Sprint("g", w.term, len(w.all)), book: &usageBook{}, heard: w.now}
	g.book.follow([]api.GatewayKey{budgetKey(w.budget)})
	w.all = append(w.all, g)
}

func (w *spenders) total() (sum int64) {
	for _, n := range w.counted {
		sum += n
	}
	return sum
}

// report sends a report. taken: the controller has room for the usage. answered: the gateway gets the answer.
func (w *spenders) report(g *spender, taken, answered bool) {
	r := g.book.report(w.now)
	g.sequence++
	report := api.GatewayReport{Gateway: g.name, Sequence: g.sequence, Since: w.now, Shares: r.claims}
	orders := api.GatewayOrders{}
	if taken {
		orders.UsageTerm = w.term
		for _, c := range r.counters {
			w.counted[g.name] = max(w.counted[g.name], c.Tokens())
		}
	}
	left := w.budget - w.total()
	for i := range report.Shares {
		share.Budget(&report.Shares[i], left, taken)
	}
	require.NoError(w.t, w.store.Put(report))
	g.heard = w.now
	orders.Shares = w.store.Orders(g.name).Shares
	orders.Budgets = map[string]api.TokensUsed{"k": {Day: w.now.Format(usageDay), Today: w.total(), ThisMonth: w.total()}}
	if answered {
		g.book.delivered(w.now, r, orders)
	}
}

// spend has a request of so many tokens answered if it is let in.
func (w *spenders) spend(g *spender, tokens int64) bool {
	if e, more := g.book.ask(w.now, "k"); e != nil || more != nil {
		return false
	}
	s := g.book.base["k"]
	w.beyond += max(0, tokens-max(0, s.share-(g.book.spent["k"]-s.at)))
	g.book.add(w.now, "k", "m", took(tokens))
	g.spent += tokens
	return true
}

// pass lets time pass. No gateway is silent for longer than its shares last, nor for half of that after
// another leader has begun.
func (w *spenders) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, g := range w.all {
		if w.now.Sub(g.heard) > gatewayreport.ShareTTL/2 {
			w.report(g, true, rapid.Bool().Draw(w.t, "answered"))
		}
	}
}

// Several gateways never exceed a budget but by what the requests take that were let in, whatever is lost of
// reports and answers, and nothing of it stays unused.
func TestBudgetIsDivided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &spenders{t: t, now: time.Date(2026, 1, 30, 12, 0, 0, 0, time.UTC), budget: rapid.Int64Range(1, 2000).Draw(t, "budget"), term: 1, counted: map[string]int64{}, committed: map[string]int64{}}
		w.store = gatewayreport.New(10*time.Second, func() time.Time { return w.now })
		w.store.Begin(1)
		for range rapid.IntRange(1, 4).Draw(t, "gateways") {
			w.add()
		}
		check := func() {
			sum := w.beyond
			dead := maps.Clone(w.counted)
			for _, g := range w.all {
				delete(dead, g.name)
				sum -= g.spent
			}
			for _, n := range dead { // what a dead one had not reported is lost
				sum -= n
			}
			require.GreaterOrEqual(t, w.budget+sum, int64(0), "more than the budget of %d was used", w.budget)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			g := rapid.SampledFrom(w.all).Draw(t, "gateway")
			switch rapid.SampledFrom([]string{"spend", "spend", "spend", "report", "report", "report", "pass", "commit", "elect", "end"}).Draw(t, "what") {
			case "spend":
				for range rapid.IntRange(1, 20).Draw(t, "requests") {
					w.spend(g, rapid.Int64Range(1, 50).Draw(t, "tokens"))
				}
			case "report":
				w.report(g, rapid.IntRange(0, 9).Draw(t, "taken") > 0, rapid.IntRange(0, 3).Draw(t, "answered") > 0)
			case "pass":
				w.pass(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
			case "commit":
				w.committed = maps.Clone(w.counted)
			case "elect":
				w.term++
				w.store.Begin(w.term)
				w.counted = maps.Clone(w.committed)
			case "end": // another one comes
				w.all = slices.DeleteFunc(w.all, func(o *spender) bool { return o == g })
				w.add()
			}
			check()
		}
		// One gateway alone has requests: it gets what is left.
		last := w.all[0]
		last.book.wait("k", 1)
		for range 20 {
			w.now = w.now.Add(500 * time.Millisecond)
			for _, g := range w.all {
				w.report(g, true, true)
			}
			for w.spend(last, 1) {
				check()
			}
		}
		w.report(last, true, true)
		require.GreaterOrEqual(t, w.total(), w.budget, "it is used up")
	})
}
