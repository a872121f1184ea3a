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
	// budgets are those of the controller's keys that have one.
	budgets map[string]budget
	// base is what the controller last said of keys with a budget.
	base map[string]spending
	// waiting is how many requests of a key wait until this gateway may use more of its budget; more is
	// closed with the next answer of the controller.
	waiting map[string]int
	more    chan struct{}
}

type usageRow struct{ key, model, day string }

type usageEntry struct {
	api.Usage
	// owed is since when it has not been delivered, zero if it has.
	owed time.Time
}

// spending is what a key had used when it had spent so much here, and how much more it may use here: its
// share. Requests that were let in may go beyond it.
type spending struct {
	api.TokensUsed
	at, share int64
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
	// claims are those of budgets.
	claims []api.ShareClaim
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
	r.claims = b.claims(now, r.complete)
	return r
}

// maxBudgets is how many budgets a report claims at most. What is in use comes first.
const maxBudgets = api.MaxReportShares / 4

// claims returns what this gateway holds and needs of budgets: twice what it has used since the last answer, or
// all if requests wait. counted: the report has all usage. mu is held.
func (b *usageBook) claims(now time.Time, counted bool) []api.ShareClaim {
	out := make([]api.ShareClaim, 0, len(b.budgets))
	units := func(n int64) int { return int(min(max(n, 0), api.MaxShareUnits)) }
	for key, of := range b.budgets {
		s := b.base[key]
		here := b.spent[key] - s.at
		c := api.ShareClaim{Kind: api.ShareBudget, Name: key, Of: units(b.left(now, key, of)), Held: units(s.share), Need: units(2 * here)}
		if counted {
			c.Used = units(here)
		}
		if b.waiting[key] > 0 {
			c.Need = api.MaxShareUnits
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y api.ShareClaim) int {
		return cmp.Or(cmp.Compare(min(y.Need, 1), min(x.Need, 1)), cmp.Compare(x.Name, y.Name))
	})
	return out[:min(len(out), maxBudgets)]
}

// delivered takes the answer to a report.
func (b *usageBook) delivered(now time.Time, r usageReport, o api.GatewayOrders) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.UsageTerm != 0 {
		b.taken(now, r, o)
	}
	shares := map[string]int64{}
	for _, s := range o.Shares {
		if s.Kind == api.ShareBudget {
			shares[s.Name] = int64(s.Units)
		}
	}
	for key := range b.budgets {
		s := b.base[key]
		s.share = shares[key]
		b.base[key] = s
	}
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
}

// taken notes that the controller has taken the usage of a report. mu is held.
func (b *usageBook) taken(now time.Time, r usageReport, o api.GatewayOrders) {
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

// follow takes the controller's keys, and what it says of the use of those that no answer has told of yet.
func (b *usageBook) follow(keys []api.GatewayKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.base == nil
	if first {
		b.base = map[string]spending{}
	}
	b.budgets = map[string]budget{}
	for _, k := range keys {
		if k.HasBudget() {
			b.budgets[k.Name] = budget{day: k.TokensPerDay, month: k.TokensPerMonth}
		}
		if first {
			b.base[k.Name] = spending{TokensUsed: k.Used}
		}
	}
}

// ask returns the error for a further request of a key that has used up a budget. If only this gateway's part
// is used up, it returns a channel that is closed when that may be another one.
func (b *usageBook) ask(now time.Time, key string) (*apiError, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of, limited := b.budgets[key]
	if !limited {
		return nil, nil
	}
	today, month := b.used(now, key)
	utc := now.UTC()
	switch s := b.base[key]; {
	case of.month > 0 && month >= of.month:
		next := time.Date(utc.Year(), utc.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		return errBudget(key, "month", of.month, next.Sub(utc)), nil
	case of.day > 0 && today >= of.day:
		next := time.Date(utc.Year(), utc.Month(), utc.Day()+1, 0, 0, 0, 0, time.UTC)
		return errBudget(key, "day", of.day, next.Sub(utc)), nil
	case s.share > b.spent[key]-s.at:
		return nil, nil
	}
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return nil, b.more
}

// wait counts requests that wait until this gateway may use more of a key's budget.
func (b *usageBook) wait(key string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = map[string]int{}
	}
	if b.waiting[key] += n; b.waiting[key] == 0 {
		delete(b.waiting, key)
	}
}

// left returns how much is left of a key's budgets, as far as this gateway knows. mu is held.
func (b *usageBook) left(now time.Time, key string, of budget) int64 {
	today, month := b.used(now, key)
	left := int64(api.MaxShareUnits)
	if of.day > 0 {
		left = min(left, of.day-today)
	}
	if of.month > 0 {
		left = min(left, of.month-month)
	}
	return left
}

// used returns what a key has used, as far as this gateway knows. mu is held.
func (b *usageBook) used(now time.Time, key string) (today, month int64) {
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
