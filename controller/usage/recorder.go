package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/share"
	"remuda/controller/state"
)

const (
	// MaxUncounted is how many counters are kept in memory before they are committed: 20 reports of
	// gateways that send all they have to a new leader.
	MaxUncounted = 20 * api.MaxReportUsage
	// batch is how many counters one command has at most: about 600 KB.
	batch = 2000
	// conflictTries is how often a command is made anew at once. Only a command of an earlier leader
	// conflicts with it.
	conflictTries = 3
)

// Raft is the server's part in the cluster, as *raft.Node is.
type Raft interface {
	Store() *state.Store
	Apply(ctx context.Context, c state.Command) (state.Result, error)
	WhileLeader(ctx context.Context, lead func(ctx context.Context, term uint64))
}

var _ Raft = (*raft.Node)(nil)

// Config says how usage is counted.
type Config struct {
	Raft Raft
	// Interval is the time between two commits, and MaxInterval the longest. Between them it is
	// PerCounter for each counter of the last commit.
	Interval, MaxInterval, PerCounter time.Duration

	// Now is the clock.
	Now    func() time.Time
	Logger hclog.Logger
	// Registerer, nil: no metrics.
	Registerer prometheus.Registerer
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Interval:    5 * time.Second,        // what a leader and a gateway can lose at the same moment
		MaxInterval: 30 * time.Second,       // well below a minute, with the gateways' reports
		PerCounter:  100 * time.Millisecond, // a counter is about 320 bytes of the log: 280 MB a day
		Now:         time.Now,
		Logger:      hclog.NewNullLogger(),
	}
}

func (c *Config) validate() error {
	var errs []error
	if c.Raft == nil || c.Now == nil || c.Logger == nil {
		errs = append(errs, errors.New("raft, clock and logger must be set"))
	}
	if c.Interval < time.Millisecond || c.MaxInterval < c.Interval || c.PerCounter < 0 {
		errs = append(errs, fmt.Errorf("interval is %s, max interval is %s and per counter is %s: must be at least 1ms, at least the interval, and not negative", c.Interval, c.MaxInterval, c.PerCounter))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	return nil
}

// Recorder has the reported counters that may not be counted yet. Its methods may be called from
// several goroutines at once.
type Recorder struct {
	cfg     Config
	log     hclog.Logger
	metrics *metrics

	mu   sync.Mutex // guards the fields below; held for short computations only
	term uint64     // the term of leadership in which uncounted was reported
	// leading: Run commits.
	leading bool
	// uncounted has the counters as the marks that there will be once they are counted, by ID.
	uncounted map[string]state.UsageMark
	// used is what all keys have used as of usedDay and of the state at usedAt.
	used    map[string]state.TokensUsed
	usedDay string
	usedAt  *state.View

	// The fields below are used by the one goroutine that commits. They keep a condition from being
	// logged again while it lasts.
	failing, deferring bool
	otherDay           string
}

// New checks cfg. Nothing is started.
func New(cfg Config) (*Recorder, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Recorder{cfg: cfg, log: cfg.Logger, uncounted: map[string]state.UsageMark{}}
	r.metrics = newMetrics(r)
	if cfg.Registerer != nil {
		for _, c := range r.metrics.collectors() {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("usage: metrics: %w", err)
			}
		}
	}
	return r, nil
}

// Run commits what was reported while this server leads, until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	r.cfg.Raft.WhileLeader(ctx, func(ctx context.Context, term uint64) {
		r.Begin(term)
		r.lead(true)
		defer r.lead(false)
		timer := time.NewTimer(r.cfg.Interval)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				timer.Reset(r.pause(r.commit(ctx)))
			}
		}
	})
}

// pause returns the time until the next commit, after one of n counters.
func (r *Recorder) pause(n int) time.Duration {
	return min(max(time.Duration(n)*r.cfg.PerCounter, r.cfg.Interval), r.cfg.MaxInterval)
}

// Begin starts a term of leadership, and forgets what was reported before: the gateways send it
// again. It does nothing for the present term and earlier ones.
func (r *Recorder) Begin(term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if term > r.term {
		r.term = term
		clear(r.uncounted)
	}
}

// Report takes the usage of a report that passes Validate, and sets in the report's claims of budgets how much
// is left of them. It returns the present term, or 0 if there is no room for the usage, and Budgets.
func (r *Recorder) Report(report api.GatewayReport) (term uint64, budgets map[string]api.TokensUsed) {
	term, budgets = r.take(report), r.Budgets()
	v := r.cfg.Raft.Store().View()
	for i := range report.Shares {
		if c := &report.Shares[i]; c.Kind == api.ShareBudget {
			share.Budget(c, leftOf(v.Key(nil, c.Name), budgets[c.Name]), term != 0)
		}
	}
	return term, budgets
}

// leftOf returns how many tokens are left of a key's budgets.
func leftOf(k *state.Key, used api.TokensUsed) int64 {
	left := int64(api.MaxShareUnits)
	switch {
	case k == nil:
		return 0
	case k.TokensPerDay > 0:
		left = min(left, k.TokensPerDay-used.Today)
	}
	if k.TokensPerMonth > 0 {
		left = min(left, k.TokensPerMonth-used.ThisMonth)
	}
	return left
}

// take takes the usage of a report, and returns the present term, or 0 if there is no room.
func (r *Recorder) take(report api.GatewayReport) (term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, now := r.cfg.Raft.Store().View(), r.cfg.Now()
	news := map[string]state.UsageMark{}
	for _, m := range marksOf(report) {
		if v.Uncounted(&m) == (state.Usage{}) || !state.CountsUsageOf(m.Day, now) {
			continue
		}
		id := m.ID()
		m.Usage = m.Usage.Max(r.uncounted[id].Usage)
		news[id] = m
	}
	total := len(r.uncounted)
	for id := range news {
		if _, known := r.uncounted[id]; !known {
			total++
		}
	}
	if total > MaxUncounted {
		return 0
	}
	for id, m := range news {
		r.uncounted[id] = m
	}
	return r.term
}

// Budgets returns what the keys with a budget have used at all gateways, as far as it was reported.
// Keys that have used nothing this month are left out.
func (r *Recorder) Budgets() map[string]api.TokensUsed {
	v, day := r.cfg.Raft.Store().View(), state.UsageDay(r.cfg.Now())
	limited := map[string]bool{}
	for _, k := range v.Keys(nil) {
		if k.HasBudget() {
			limited[k.Name] = true
		}
	}
	if len(limited) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.usedAt == nil || r.usedDay != day || !v.Unchanged(r.usedAt, state.TableUsage) {
		r.used, r.usedDay = v.TokensUsed(nil, day), day
	}
	r.usedAt = v // an older one would keep rows in memory that are gone
	out := map[string]state.TokensUsed{}
	for key, used := range r.used {
		if limited[key] {
			out[key] = used
		}
	}
	for _, m := range r.uncounted {
		if limited[m.Key] {
			out[m.Key] = out[m.Key].Add(m.Day, day, v.Uncounted(&m).Tokens())
		}
	}
	budgets := make(map[string]api.TokensUsed, len(out))
	for key, used := range out {
		if used.ThisMonth > 0 {
			budgets[key] = api.TokensUsed{Day: day, Today: used.Today, ThisMonth: used.ThisMonth}
		}
	}
	return budgets
}

// commit counts what was reported, and returns of how many counters it wrote marks.
func (r *Recorder) commit(ctx context.Context) int {
	marks, written := r.countable(), 0
	for first := 0; first == 0 || first < len(marks); first += batch {
		n, err := r.count(ctx, marks[first:min(first+batch, len(marks))])
		written += n
		if ctx.Err() != nil {
			return written // the next leader counts it
		}
		if failing := err != nil; failing != r.failing {
			r.failing = failing
			if failing {
				r.log.Warn("cannot commit usage: it is kept in memory", "counters", len(marks), "error", err)
			} else {
				r.log.Info("committing usage again")
			}
		}
		if err != nil {
			break
		}
	}
	return written
}

// countable returns what may be counted, in a fixed order. It forgets counters of days that are not
// counted any more.
func (r *Recorder) countable() []state.UsageMark {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, late := r.cfg.Now(), 0
	marks := make([]state.UsageMark, 0, len(r.uncounted))
	for id, m := range r.uncounted {
		if !state.CountsUsageOf(m.Day, now) {
			delete(r.uncounted, id)
			late++
			continue
		}
		marks = append(marks, m)
	}
	if late > 0 {
		r.log.Warn("usage was reported too late and is not counted", "counters", late, "days", state.UsageReportDays)
	}
	slices.SortFunc(marks, func(a, b state.UsageMark) int { return strings.Compare(a.ID(), b.ID()) })
	return marks
}

// count commits one command, and returns how many marks it has.
func (r *Recorder) count(ctx context.Context, marks []state.UsageMark) (int, error) {
	for try := 1; ; try++ {
		v := r.cfg.Raft.Store().View()
		count := (&state.UsageCounters{Marks: marks, Time: r.cfg.Now()}).Count(v)
		r.logLimits(count)
		if !count.Command.Empty() {
			_, err := r.cfg.Raft.Apply(ctx, &count.Command)
			r.metrics.committed(err)
			if errors.Is(err, state.ErrConflict) && try < conflictTries {
				continue
			}
			if err != nil {
				return 0, err
			}
		}
		r.forget(marks)
		return len(count.Command.Marks), nil
	}
}

// forget drops the counters that are counted now.
func (r *Recorder) forget(marks []state.UsageMark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.cfg.Raft.Store().View()
	for i := range marks {
		id := marks[i].ID()
		if m, ok := r.uncounted[id]; ok && v.Uncounted(&m) == (state.Usage{}) {
			delete(r.uncounted, id)
		}
	}
}

// logLimits logs what the bounds of the state leave out.
func (r *Recorder) logLimits(c state.UsageCount) {
	if day := state.UsageDay(r.cfg.Now()); c.Other > 0 && r.otherDay != day {
		r.otherDay = day
		r.log.Warn("too many keys and models have usage on one day: more of them are counted as key \""+state.KeyOther+"\", and their budgets do not hold", "limit", state.MaxUsageRows)
	}
	if deferring := c.Deferred > 0; deferring != r.deferring {
		r.deferring = deferring
		if deferring {
			r.log.Warn("too many counters of gateways: usage waits in memory until those of past days are forgotten", "waiting", c.Deferred, "limit", state.MaxUsageMarks)
		}
	}
}

func (r *Recorder) lead(leading bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading = leading
}

func (r *Recorder) leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leading
}

// waiting is how many counters the leader has not counted yet, 0 on other servers.
func (r *Recorder) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return 0
	}
	return len(r.uncounted)
}
