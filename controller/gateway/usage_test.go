package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
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
