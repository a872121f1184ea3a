package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Usage is what requests have used. In JSON it is a list of its counters, in this order: a busy
// cluster writes many of them.
type Usage struct {
	// Requests is how many requests there were, and CachedTokens are those of PromptTokens that
	// an engine had in its cache. EstimatedTokens are those of PromptTokens and CompletionTokens that
	// were estimated.
	Requests, PromptTokens, CachedTokens, CompletionTokens, EstimatedTokens int64
}

// usageCounters is how many counters there are.
const usageCounters = 5

func (u Usage) counters() [usageCounters]int64 {
	return [usageCounters]int64{u.Requests, u.PromptTokens, u.CachedTokens, u.CompletionTokens, u.EstimatedTokens}
}

// MarshalJSON implements json.Marshaler.
func (u Usage) MarshalJSON() ([]byte, error) { return json.Marshal(u.counters()) }

// UnmarshalJSON implements json.Unmarshaler.
func (u *Usage) UnmarshalJSON(b []byte) error {
	var l []int64
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	if len(l) != usageCounters {
		return fmt.Errorf("usage is a list of %d numbers: must be %d", len(l), usageCounters)
	}
	*u = Usage{l[0], l[1], l[2], l[3], l[4]}
	return nil
}

// MaxUsage is the maximum of a gateway's counter: the sum over a thousand gateways does not overflow.
const MaxUsage = math.MaxInt64 >> 10

// Tokens is how many tokens count against a budget.
func (u Usage) Tokens() int64 { return addUsage(u.PromptTokens, u.CompletionTokens) }

// Add returns the sum. A counter that would overflow stays at its maximum.
func (u Usage) Add(o Usage) Usage { return u.combine(o, addUsage) }

// Max returns the higher one of each counter.
func (u Usage) Max(o Usage) Usage { return u.combine(o, func(a, b int64) int64 { return max(a, b) }) }

// since returns by how much the counters are above was, which is not above them.
func (u Usage) since(was Usage) Usage {
	return u.combine(was, func(a, b int64) int64 { return a - b })
}

func (u Usage) combine(o Usage, with func(a, b int64) int64) Usage {
	return Usage{
		Requests: with(u.Requests, o.Requests), PromptTokens: with(u.PromptTokens, o.PromptTokens), CachedTokens: with(u.CachedTokens, o.CachedTokens),
		CompletionTokens: with(u.CompletionTokens, o.CompletionTokens), EstimatedTokens: with(u.EstimatedTokens, o.EstimatedTokens),
	}
}

// addUsage adds two counters, which are not negative.
func addUsage(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// UsageRow is what a key has used of a model on a day.
type UsageRow struct {
	// Day is in UTC, as "2006-01-02".
	Day, Key, Model string
	Usage           Usage
}

func (r *UsageRow) key() string { return r.Day + "\x1f" + r.Key + "\x1f" + r.Model }

// UsageMark is how much of a gateway's counters is contained in the row of that day, key and model.
// The counters of the gateway only grow, so that the difference is what is to be counted.
type UsageMark struct {
	Day string
	// Gateway is the gateway's name, and Since when it began to count: a gateway that is started
	// again begins at 0.
	Gateway    string
	Since      time.Time
	Key, Model string
	Usage      Usage
}

// ID is what a mark is known by.
func (m *UsageMark) ID() string {
	return strings.Join([]string{m.Day, m.Gateway, m.Since.UTC().Format(time.RFC3339Nano), m.Key, m.Model}, "\x1f")
}

// Bounds of usage.
const (
	// UsageDays is for how many days rows are kept, today included.
	UsageDays = 92
	// UsageReportDays is for how many days after a day its usage is counted. Marks are kept for one
	// day longer: the clocks of servers differ.
	UsageReportDays = 3
	// MaxUsageRows is how many rows of one day have a key of their own. What more keys use is added
	// to the rows of KeyOther.
	MaxUsageRows = 10_000
	// MaxUsageMarks is how many marks there are. What would need more is counted later.
	MaxUsageMarks = 100_000
)

const usageDay = "2006-01-02"

// UsageDay returns the day of a time, in UTC.
func UsageDay(t time.Time) string { return t.UTC().Format(usageDay) }

// usageDayAfter returns the day that many days after the day of t, or before it.
func usageDayAfter(t time.Time, days int) string { return UsageDay(t.UTC().AddDate(0, 0, days)) }

// CountsUsageOf reports whether usage of a day is counted at a time.
func CountsUsageOf(day string, now time.Time) bool {
	return day >= usageDayAfter(now, -UsageReportDays) && day <= usageDayAfter(now, 1)
}

func checkUsageDay(day string) error {
	if t, err := time.Parse(usageDay, day); err != nil || UsageDay(t) != day {
		return fmt.Errorf("day is %q: must be a date, such as %q", day, usageDay)
	}
	return nil
}

// Check returns all that is wrong with a mark.
func (m *UsageMark) Check() error {
	errs := append(m.Usage.problems(m.Day, m.Key, m.Model, MaxUsage), checkName("gateway", m.Gateway), checkTime("since", &m.Since))
	if m.Since.IsZero() {
		errs = append(errs, errors.New("since is missing: must be the time at which the gateway began to count"))
	}
	return errors.Join(errs...)
}

// problems returns what is wrong with the usage of a day, a key and a model. Some may be nil.
func (u Usage) problems(day, key, model string, highest int64) []error {
	errs := []error{checkUsageDay(day), checkName("key", key), checkName("model", model)}
	for _, n := range u.counters() {
		if n < 0 || n > highest {
			errs = append(errs, fmt.Errorf("usage of key %q and model %q has a counter of %d: must be 0 to %d", key, model, n, highest))
		}
	}
	return errs
}

// CountUsage writes rows of usage, the marks of what they contain, and removes those of old days. It
// is rejected if one of the two tables has changed since it was made: nothing else writes them.
type CountUsage struct {
	Rows  []UsageRow  `json:",omitempty"`
	Marks []UsageMark `json:",omitempty"`
	// RowsSince and MarksSince are the first days of which rows and marks are kept, empty if none
	// are to be removed.
	RowsSince  string `json:",omitempty"`
	MarksSince string `json:",omitempty"`
	// Index is that of the last change of the two tables as it was made, 0 if there was none.
	Index uint64
}

// Type implements Command.
func (*CountUsage) Type() Type { return TypeCountUsage }

// Level implements the method that package raft asks for; see Level.
func (*CountUsage) Level() int { return levelKeys }

// Empty reports whether it changes nothing.
func (c *CountUsage) Empty() bool {
	return len(c.Rows) == 0 && len(c.Marks) == 0 && c.RowsSince == "" && c.MarksSince == ""
}

func (c *CountUsage) apply(t *txn) *Error {
	if is := usageIndex(t.Txn); is != c.Index {
		return conflict("", "usage has changed since it was read: its index is %d, not %d", is, c.Index)
	}
	var errs []error
	for i := range c.Rows {
		errs = append(errs, c.Rows[i].Usage.problems(c.Rows[i].Day, c.Rows[i].Key, c.Rows[i].Model, math.MaxInt64)...)
	}
	for i := range c.Marks {
		errs = append(errs, c.Marks[i].Check())
	}
	if err := invalid("", errs...); err != nil {
		return err
	}
	for i := range c.Rows {
		row := c.Rows[i]
		if old := first[UsageRow](t.Txn, TableUsage, byID, row.key()); old == nil || *old != row {
			t.put(TableUsage, &row)
		}
	}
	for i := range c.Marks {
		mark := c.Marks[i]
		if old := first[UsageMark](t.Txn, TableUsageMarks, byID, mark.ID()); old == nil || old.Usage != mark.Usage {
			t.put(TableUsageMarks, &mark)
		}
	}
	for _, row := range from[UsageRow](t.Txn, TableUsage, "", func(r *UsageRow) bool { return r.Day < c.RowsSince }) {
		t.remove(TableUsage, row)
	}
	for _, mark := range from[UsageMark](t.Txn, TableUsageMarks, "", func(m *UsageMark) bool { return m.Day < c.MarksSince }) {
		t.remove(TableUsageMarks, mark)
	}
	return nil
}

// usageIndex returns the index of the last change of the two tables.
func usageIndex(txn *memdb.Txn) uint64 {
	last := uint64(0)
	for _, table := range []Table{TableUsage, TableUsageMarks} {
		if row := first[indexRow](txn, tableIndex, byID, string(table)); row != nil {
			last = max(last, row.Value)
		}
	}
	return last
}

// from returns the rows from a key on, in the order of keys, as long as while returns true.
func from[T any](t *memdb.Txn, table Table, key string, while func(*T) bool) []*T {
	it, err := t.LowerBound(string(table), byID, key)
	if err != nil {
		panic(err) // As in first.
	}
	var rows []*T
	for raw := it.Next(); raw != nil; raw = it.Next() {
		row, ok := raw.(*T)
		if !ok || !while(row) {
			break
		}
		rows = append(rows, row)
	}
	return rows
}

// UsageCounters are counters of gateways that may not be counted yet, in any order. Counting them
// again changes nothing.
type UsageCounters struct {
	// Marks are what the marks will be, once all is counted; each passes Check.
	Marks []UsageMark
	// Time is now: it decides which days are counted and kept.
	Time time.Time
}

// UsageCount is a command that counts usage, and what it leaves out.
type UsageCount struct {
	Command CountUsage
	// Ignored are the counters of days that are not counted, Other those added to the rows of
	// KeyOther, and Deferred those that wait for room for a mark.
	Ignored, Other, Deferred int
}

// Count returns the command that counts what the counters are above the marks.
func (r *UsageCounters) Count(v *View) UsageCount {
	out := UsageCount{Command: CountUsage{Index: usageIndex(v.txn)}}
	c := &out.Command
	marks, rows := map[string]*UsageMark{}, map[string]*UsageRow{}
	room := usageRoom{view: v, rows: map[string]int{}}
	for i := range r.Marks {
		m := r.Marks[i]
		if !CountsUsageOf(m.Day, r.Time) {
			out.Ignored++
			continue
		}
		id, was := m.ID(), Usage{}
		if old := marks[id]; old != nil {
			was = old.Usage
		} else if old := first[UsageMark](v.txn, TableUsageMarks, byID, id); old != nil {
			was = old.Usage
		} else if !room.mark() {
			out.Deferred++
			continue
		}
		m.Usage = m.Usage.Max(was)
		grown := m.Usage.since(was)
		if grown == (Usage{}) {
			continue
		}
		marks[id] = &m
		// The row as it will be, one of KeyOther if there is no room for another one.
		find := func(key string) *UsageRow {
			row := UsageRow{Day: m.Day, Key: key, Model: m.Model}
			if rows[row.key()] == nil {
				old := first[UsageRow](v.txn, TableUsage, byID, row.key())
				if old == nil && key != KeyOther && !room.row(m.Day) {
					return nil
				}
				if old != nil {
					row = *old
				}
				rows[row.key()] = &row
			}
			return rows[row.key()]
		}
		row := find(m.Key)
		if row == nil {
			out.Other++
			row = find(KeyOther)
		}
		row.Usage = row.Usage.Add(grown)
	}
	for _, id := range sortedKeys(marks) {
		c.Marks = append(c.Marks, *marks[id])
	}
	for _, key := range sortedKeys(rows) {
		c.Rows = append(c.Rows, *rows[key])
	}
	// The clock of the next leader may be behind.
	rowsSince, marksSince := usageDayAfter(r.Time, 1-UsageDays), usageDayAfter(r.Time, -UsageReportDays-1)
	if old := from(v.txn, TableUsage, "", func(row *UsageRow) bool { return row.Day < rowsSince }); len(old) > 0 {
		c.RowsSince = rowsSince
	}
	if old := from(v.txn, TableUsageMarks, "", func(m *UsageMark) bool { return m.Day < marksSince }); len(old) > 0 {
		c.MarksSince = marksSince
	}
	return out
}

// usageRoom is how many rows and marks a command may add. It is read when it matters.
type usageRoom struct {
	view  *View
	marks *int
	rows  map[string]int // by day
}

// mark takes the place of a new mark, and returns false if there is none.
func (r *usageRoom) mark() bool {
	if r.marks == nil {
		left := MaxUsageMarks - len(r.view.UsageMarks())
		r.marks = &left
	}
	*r.marks--
	return *r.marks >= 0
}

// row takes the place of a new row of a day, and returns false if there is none.
func (r *usageRoom) row(day string) bool {
	left, known := r.rows[day]
	if !known {
		left = MaxUsageRows - len(from(r.view.txn, TableUsage, day, func(row *UsageRow) bool { return row.Day == day }))
	}
	r.rows[day] = left - 1
	return left > 0
}

// UsageRows returns the rows from a day on, sorted by day, key and model.
func (v *View) UsageRows(ws memdb.WatchSet, since string) []*UsageRow {
	v.watch(ws, TableUsage)
	return from(v.txn, TableUsage, since, func(*UsageRow) bool { return true })
}

// TokensUsed is how many tokens a key has used.
type TokensUsed struct {
	// Today is on a day, ThisMonth in its calendar month up to that day.
	Today, ThisMonth int64
}

// Add adds what was used of a model on a day, as of another day.
func (u TokensUsed) Add(day, of string, tokens int64) TokensUsed {
	if day == of {
		u.Today = addUsage(u.Today, tokens)
	}
	if day <= of && strings.HasPrefix(day, month(of)) {
		u.ThisMonth = addUsage(u.ThisMonth, tokens)
	}
	return u
}

// month returns the beginning that all days of the month of a day have.
func month(day string) string { return day[:len("2006-01-")] }

// TokensUsed returns what each key has used as of a day, by name. Keys that have used nothing in its
// month are left out.
func (v *View) TokensUsed(ws memdb.WatchSet, day string) map[string]TokensUsed {
	v.watch(ws, TableUsage)
	out := map[string]TokensUsed{}
	for _, row := range from(v.txn, TableUsage, month(day), func(row *UsageRow) bool { return row.Day <= day }) {
		out[row.Key] = out[row.Key].Add(row.Day, day, row.Usage.Tokens())
	}
	return out
}

// Uncounted returns how much of a gateway's counters is not counted yet.
func (v *View) Uncounted(m *UsageMark) Usage {
	old := first[UsageMark](v.txn, TableUsageMarks, byID, m.ID())
	if old == nil {
		return m.Usage
	}
	return m.Usage.Max(old.Usage).since(old.Usage)
}

// UsageMarks returns all marks.
func (v *View) UsageMarks() []*UsageMark {
	return from(v.txn, TableUsageMarks, "", func(*UsageMark) bool { return true })
}

// watch adds a table to the watch set: LowerBound has no channel.
func (v *View) watch(ws memdb.WatchSet, table Table) {
	it, err := v.txn.Get(string(table), byID)
	if err != nil {
		panic(err) // As in first.
	}
	ws.Add(it.WatchCh())
	ws.Add(v.abandoned)
}
