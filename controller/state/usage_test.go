package state_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

// today is the day of epoch.
const today = "2026-01-02"

// mark returns the counters of a gateway that has counted n requests with 10 tokens each.
func mark(day, gateway, key, model string, n int64) state.UsageMark {
	return state.UsageMark{Day: day, Gateway: gateway, Since: epoch.Add(-time.Hour), Key: key, Model: model,
		Usage: state.Usage{Requests: n, PromptTokens: 7 * n, CachedTokens: n, CompletionTokens: 3 * n, EstimatedTokens: 2 * n}}
}

func usageOf(n int64) state.Usage { return mark(today, "g", "k", "m", n).Usage }

func counters(at time.Time, marks ...state.UsageMark) *state.UsageCounters {
	return &state.UsageCounters{Marks: marks, Time: at}
}

// counted returns the command that counts counters.
func counted(u *state.UsageCounters, v *state.View) *state.CountUsage {
	count := u.Count(v)
	return &count.Command
}

// row returns the usage of a row, zero if there is none.
func (l *log) row(day, key, model string) state.Usage {
	for _, r := range l.store.View().UsageRows(nil, day) {
		if r.Day == day && r.Key == key && r.Model == model {
			return r.Usage
		}
	}
	return state.Usage{}
}

func TestUsageIsCountedOnce(t *testing.T) {
	l := newLog(t)
	l.must(counters(epoch, mark(today, "g", "k", "m", 5), mark(today, "h", "k", "m", 2), mark(today, "g", "k", "n", 1)))
	require.Equal(t, usageOf(5).Add(usageOf(2)), l.row(today, "k", "m"))
	require.Equal(t, usageOf(1), l.row(today, "k", "n"))

	// The same again, and what is older.
	require.False(t, l.apply(counters(epoch, mark(today, "g", "k", "m", 5), mark(today, "g", "k", "m", 3))).Changed)
	// Both of one batch count, the higher one once.
	l.must(counters(epoch, mark(today, "g", "k", "m", 8), mark(today, "g", "k", "m", 6)))
	require.Equal(t, usageOf(8).Add(usageOf(2)), l.row(today, "k", "m"))
	m := mark(today, "g", "k", "m", 9)
	require.Equal(t, int64(1), l.store.View().Uncounted(&m).Requests)

	// A gateway of the same name that began anew.
	restarted := mark(today, "g", "k", "m", 4)
	restarted.Since = epoch
	l.must(counters(epoch, restarted))
	require.Equal(t, int64(8+2+4), l.row(today, "k", "m").Requests)
	// A late report of its last life adds what was missing of that.
	l.must(counters(epoch, mark(today, "g", "k", "m", 9)))
	require.Equal(t, int64(9+2+4), l.row(today, "k", "m").Requests)
}

// TestUsageIsWrittenByOne: a command that was made before another one was applied changes nothing.
func TestUsageIsWrittenByOne(t *testing.T) {
	l := newLog(t)
	c := counted(counters(epoch, mark(today, "g", "k", "m", 5)), l.store.View())
	l.must(counters(epoch, mark(today, "h", "k", "m", 2)))
	require.ErrorIs(t, l.apply(c).Err, state.ErrConflict)
	require.Equal(t, usageOf(2), l.row(today, "k", "m"))
	l.must(counters(epoch, mark(today, "g", "k", "m", 5)))
	require.Equal(t, int64(7), l.row(today, "k", "m").Requests)
}

func TestDaysOfUsage(t *testing.T) {
	l := newLog(t)
	day := func(n int) string { return state.UsageDay(epoch.AddDate(0, 0, n)) }
	at := func(n int) time.Time { return epoch.AddDate(0, 0, n) }
	u := counters(epoch, mark(day(-4), "g", "k", "m", 1), mark(day(-3), "g", "k", "m", 1), mark(day(0), "g", "k", "m", 1), mark(day(1), "g", "k", "m", 1), mark(day(2), "g", "k", "m", 1))
	require.Equal(t, 2, u.Count(l.store.View()).Ignored)
	l.must(u)
	days := func() (rows, marks []string) {
		for _, r := range l.store.View().UsageRows(nil, "") {
			rows = append(rows, r.Day)
		}
		for _, m := range l.store.View().UsageMarks() {
			marks = append(marks, m.Day)
		}
		return rows, marks
	}
	rows, marks := days()
	require.Equal(t, []string{day(-3), day(0), day(1)}, rows)
	require.Equal(t, rows, marks)

	// A mark is kept for a day longer than its counters are taken.
	require.False(t, l.apply(counters(at(1))).Changed)
	l.must(counters(at(2)))
	rows, marks = days()
	require.Equal(t, []string{day(-3), day(0), day(1)}, rows)
	require.Equal(t, []string{day(0), day(1)}, marks)
	require.False(t, l.apply(counters(at(4), mark(day(0), "g", "k", "m", 2))).Changed)

	// Rows are kept for 92 days.
	l.must(counters(at(state.UsageDays - 1)))
	rows, marks = days()
	require.Equal(t, []string{day(0), day(1)}, rows)
	require.Empty(t, marks)
	l.must(counters(at(state.UsageDays)))
	rows, _ = days()
	require.Equal(t, []string{day(1)}, rows)
}

func TestTokensUsed(t *testing.T) {
	l := newLog(t)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l.must(counters(at, mark("2026-02-28", "g", "a", "m", 1), mark("2026-03-01", "g", "a", "m", 10), mark("2026-03-01", "g", "a", "n", 5), mark("2026-03-02", "g", "b", "m", 100)))
	l.must(counters(at.AddDate(0, 0, 4), mark("2026-03-04", "g", "a", "m", 1000)))
	for _, tt := range []struct {
		day  string
		want map[string]state.TokensUsed
	}{
		{"2026-02-28", map[string]state.TokensUsed{"a": {Today: 10, ThisMonth: 10}}},
		{"2026-03-01", map[string]state.TokensUsed{"a": {Today: 150, ThisMonth: 150}}},
		{"2026-03-02", map[string]state.TokensUsed{"a": {ThisMonth: 150}, "b": {Today: 1000, ThisMonth: 1000}}},
		{"2026-03-05", map[string]state.TokensUsed{"a": {ThisMonth: 10150}, "b": {ThisMonth: 1000}}},
		{"2026-04-01", map[string]state.TokensUsed{}},
	} {
		require.Equal(t, tt.want, l.store.View().TokensUsed(nil, tt.day), tt.day)
	}
}

// TestUsageOfManyKeys: what has no row of its own is counted under another name, and marks keep the
// keys apart.
func TestUsageOfManyKeys(t *testing.T) {
	l := newLog(t)
	marks := make([]state.UsageMark, state.MaxUsageRows-1)
	for i := range marks {
		marks[i] = mark(today, "g", fmt.Sprint("k", i), "m", 1)
	}
	l.must(counters(epoch, marks...))
	more := counters(epoch, mark(today, "g", "x", "m", 3), mark(today, "g", "y", "m", 4), mark(today, "g", "z", "n", 5), mark(today, "g", "k7", "m", 6), mark("2026-01-01", "g", "y", "m", 7))
	require.Equal(t, 2, more.Count(l.store.View()).Other)
	l.must(more)
	require.Equal(t, usageOf(3), l.row(today, "x", "m"))
	require.Equal(t, usageOf(4), l.row(today, state.KeyOther, "m"))
	require.Equal(t, usageOf(5), l.row(today, state.KeyOther, "n"))
	require.Equal(t, usageOf(6), l.row(today, "k7", "m"))
	require.Equal(t, usageOf(7), l.row("2026-01-01", "y", "m"), "another day has room")

	require.False(t, l.apply(more).Changed)
	l.must(counters(epoch, mark(today, "g", "y", "m", 6), mark(today, "g", "w", "m", 1)))
	require.Equal(t, int64(6+1), l.row(today, state.KeyOther, "m").Requests)
}

// TestUsageWaitsForAMark: what cannot have a mark would be counted again.
func TestUsageWaitsForAMark(t *testing.T) {
	l := newLog(t)
	const batch = 10_000
	for gateway := range state.MaxUsageMarks / batch {
		c := counters(epoch)
		for i := range batch {
			c.Marks = append(c.Marks, mark(today, fmt.Sprint("g", gateway), fmt.Sprint("k", i), "m", 1))
		}
		l.must(c)
	}
	late := mark(today, "h", "k1", "m", 5)
	more := counters(epoch, mark(today, "g0", "k1", "m", 3), late)
	require.Equal(t, 1, more.Count(l.store.View()).Deferred)
	l.must(more)
	require.Equal(t, usageOf(5), l.store.View().Uncounted(&late))
	require.Equal(t, int64(state.MaxUsageMarks/batch+2), l.row(today, "k1", "m").Requests)
}

func TestBadUsage(t *testing.T) {
	for _, tt := range []struct {
		want string
		edit func(*state.UsageMark)
	}{
		{`day is "2026-02-30"`, func(m *state.UsageMark) { m.Day = "2026-02-30" }},
		{`day is "2026-1-2"`, func(m *state.UsageMark) { m.Day = "2026-1-2" }},
		{"key is empty", func(m *state.UsageMark) { m.Key = "" }},
		{"spaces and control characters", func(m *state.UsageMark) { m.Model = "a\x1fb" }},
		{"gateway is empty", func(m *state.UsageMark) { m.Gateway = "" }},
		{"since is missing", func(m *state.UsageMark) { m.Since = time.Time{} }},
		{"since is in the year", func(m *state.UsageMark) { m.Since = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) }},
		{"a counter of -1", func(m *state.UsageMark) { m.Usage.CachedTokens = -1 }},
		{"a counter of 9223372036854775807: must be 0 to 9007199254740991", func(m *state.UsageMark) { m.Usage.PromptTokens = math.MaxInt64 }},
	} {
		m := mark(today, "g", "k", "m", 1)
		require.NoError(t, m.Check())
		tt.edit(&m)
		require.ErrorContains(t, m.Check(), tt.want)
		if m.Since.Year() < 0 {
			continue // no log has it
		}
		l := newLog(t)
		require.ErrorContains(t, l.apply(&state.CountUsage{Marks: []state.UsageMark{m}}).Err, tt.want)
	}
	l := newLog(t)
	require.ErrorContains(t, l.apply(&state.CountUsage{Rows: []state.UsageRow{{Day: today, Key: "k", Model: "m", Usage: state.Usage{Requests: -1}}}}).Err, "a counter of -1")
}

// TestUsageDoesNotOverflow: a sum stays at its maximum.
func TestUsageDoesNotOverflow(t *testing.T) {
	l := newLog(t)
	for i := range 2000 {
		m := mark(today, fmt.Sprint("g", i), "k", "m", 1)
		m.Usage.PromptTokens, m.Usage.CompletionTokens = state.MaxUsage, state.MaxUsage
		l.must(counters(epoch, m))
	}
	require.Equal(t, int64(math.MaxInt64), l.row(today, "k", "m").PromptTokens)
	require.Equal(t, int64(math.MaxInt64), l.store.View().TokensUsed(nil, today)["k"].Today)
}

func TestSnapshotsOfUsage(t *testing.T) {
	l := full(t)
	l.must(counters(epoch, mark(today, "g", "k", "m", 5), mark("2026-01-01", "g", "k", "m", 5)))
	again := restored(t, snapshotOf(t, l.store))
	require.Equal(t, l.store.View().UsageRows(nil, ""), again.View().UsageRows(nil, ""))
	require.Equal(t, l.store.View().UsageMarks(), again.View().UsageMarks())
	goesOn := &log{t: t, store: again, index: l.index}
	goesOn.must(counters(epoch, mark(today, "g", "k", "m", 7)))
	require.Equal(t, usageOf(7), goesOn.row(today, "k", "m"))
}

// drawUsage draws counters of several gateways, some of which begin anew.
func drawUsage(t *rapid.T) *state.UsageCounters {
	c := &state.UsageCounters{Time: epoch.AddDate(0, 0, between(0, 9).Draw(t, "day"))}
	for range between(0, 4).Draw(t, "counters") {
		m := mark(state.UsageDay(c.Time.AddDate(0, 0, between(-5, 2).Draw(t, "of")/2)), pick([]string{"g", "h"}).Draw(t, "gateway"),
			pick([]string{"k0", "k1", state.KeyAnonymous}).Draw(t, "key"), pick([]string{"m0", "m1"}).Draw(t, "model"), int64(between(0, 20).Draw(t, "requests")))
		m.Since = m.Since.Add(time.Duration(between(0, 1).Draw(t, "life")) * time.Minute)
		c.Marks = append(c.Marks, m)
	}
	return c
}

// checkUsage adds up by itself what the counters are above the marks.
func checkUsage(t require.TestingT, c *state.UsageCounters, before, after *state.View) {
	type cell struct{ day, key, model string }
	want, had := map[cell]int64{}, map[string]int64{}
	for _, r := range before.UsageRows(nil, state.UsageDay(c.Time.AddDate(0, 0, 1-state.UsageDays))) {
		want[cell{r.Day, r.Key, r.Model}] = r.Usage.Requests
	}
	for _, m := range before.UsageMarks() {
		had[m.ID()] = m.Usage.Requests
	}
	for _, m := range c.Marks {
		if m.Day < state.UsageDay(c.Time.AddDate(0, 0, -3)) || m.Day > state.UsageDay(c.Time.AddDate(0, 0, 1)) {
			continue
		}
		require.Zero(t, after.Uncounted(&m))
		if grown := m.Usage.Requests - had[m.ID()]; grown > 0 {
			want[cell{m.Day, m.Key, m.Model}] += grown
			had[m.ID()] = m.Usage.Requests
		}
	}
	is := map[cell]int64{}
	for _, r := range after.UsageRows(nil, "") {
		is[cell{r.Day, r.Key, r.Model}] = r.Usage.Requests
		require.Equal(t, usageOf(r.Usage.Requests), r.Usage)
	}
	require.Equal(t, want, is)
}
