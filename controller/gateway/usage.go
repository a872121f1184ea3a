package gateway

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"remuda/controller/api"
)

// usageBook counts what keys use of models, for the controller, and what is left of keys' budgets. See
// api.UsageCounters for what is promised to it.
type usageBook struct {
	mu   sync.Mutex
	rows map[usageRow]*usageEntry
	// term is that of the last answer that took usage, 0 before the first.
	term uint64
	// spent is what each key has used since the gateway began, in tokens.
	spent map[string]int64
	// base is what keys with a budget had used by the controller's word, at which point they had
	// spent so much here.
	base map[string]spending
}

type usageRow struct{ key, model, day string }

type usageEntry struct {
	api.Usage
	// owed is since when it has not been delivered, zero if it has.
	owed time.Time
}

type spending struct {
	api.TokensUsed
	at int64
}

// usageDay is the form of a day.
const usageDay = time.DateOnly

// add counts what a request used.
func (b *usageBook) add(now time.Time, key, model string, u api.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows, b.spent = map[usageRow]*usageEntry{}, map[string]int64{}
	}
	at := usageRow{key, model, now.UTC().Format(usageDay)}
	e := b.rows[at]
	if e == nil {
		e = &usageEntry{}
		b.rows[at] = e
	}
	e.Requests += u.Requests
	e.PromptTokens += u.PromptTokens
	e.CachedTokens += u.CachedTokens
	e.CompletionTokens += u.CompletionTokens
	e.EstimatedTokens += u.EstimatedTokens
	if e.owed.IsZero() {
		e.owed = now
	}
	b.spent[key] += u.Tokens()
}

// usageReport is what a report has of usage.
type usageReport struct {
	counters []api.UsageCounters
	// complete: nothing else is owed, so that the controller's sums have what was spent until then.
	complete bool
	spent    map[string]int64
}

// report returns what is not delivered, and forgets days that are too old to be told.
func (b *usageBook) report(now time.Time) usageReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := now.UTC().AddDate(0, 0, -api.UsageReportDays).Format(usageDay)
	var r usageReport
	var owed []usageRow
	for at, e := range b.rows {
		switch {
		case at.day < oldest:
			delete(b.rows, at)
		case !e.owed.IsZero():
			owed = append(owed, at)
		}
	}
	slices.SortFunc(owed, func(x, y usageRow) int {
		return cmp.Or(b.rows[x].owed.Compare(b.rows[y].owed), cmp.Compare(x.key, y.key), cmp.Compare(x.model, y.model), cmp.Compare(x.day, y.day))
	})
	for _, at := range owed[:min(len(owed), api.MaxReportUsage)] {
		r.counters = append(r.counters, api.UsageCounters{Key: at.key, Model: at.model, Day: at.day, Usage: b.rows[at].Usage})
	}
	r.complete, r.spent = len(owed) <= api.MaxReportUsage, maps.Clone(b.spent)
	return r
}

// delivered takes the answer to a report.
func (b *usageBook) delivered(now time.Time, r usageReport, o api.GatewayOrders) {
	if o.UsageTerm == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.UsageTerm != b.term && b.term != 0 { // the controller may have lost the rest
		for _, e := range b.rows {
			if e.owed.IsZero() {
				e.owed = now
			}
		}
	}
	b.term = o.UsageTerm
	for _, c := range r.counters {
		if e := b.rows[usageRow{c.Key, c.Model, c.Day}]; e != nil && e.Usage == c.Usage {
			e.owed = time.Time{}
		}
	}
	if !r.complete {
		return
	}
	b.base = make(map[string]spending, len(r.spent))
	for key, n := range r.spent {
		b.base[key] = spending{at: n}
	}
	for key, used := range o.Budgets {
		b.base[key] = spending{TokensUsed: used, at: r.spent[key]}
	}
}

// follow takes what the controller says of keys that no answer has told of yet.
func (b *usageBook) follow(keys []api.GatewayKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.base != nil {
		return
	}
	b.base = map[string]spending{}
	for _, k := range keys {
		b.base[k.Name] = spending{TokensUsed: k.Used}
	}
}

// used returns what a key has used of its budgets, as far as this gateway knows.
func (b *usageBook) used(now time.Time, key string) (today, month int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.base[key]
	here := b.spent[key] - s.at
	day := now.UTC().Format(usageDay)
	if s.Day == day {
		today = s.Today
	}
	if len(s.Day) == len(day) && s.Day[:7] == day[:7] {
		month = s.ThisMonth
	}
	return today + here, month + here
}
