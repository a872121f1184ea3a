package study

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"remuda/tools/policystudy/frontier"
	"remuda/tools/policystudy/policies"
)

// Report writes a table for each trace, cold start and target wait, and a first table that
// compares predictive, as it ships, with the best peer.
func Report(dir string, waits []time.Duration, goal float64) (string, error) {
	rows, err := Read(dir)
	if err != nil {
		return "", err
	}
	type world struct {
		trace string
		cold  time.Duration
	}
	var worlds []world
	for _, r := range rows {
		for _, d := range r.Days {
			if len(d.Late) != len(waits) {
				return "", fmt.Errorf("report on %s: %s of %s was run for %d target waits, and %d are asked for: name those of the run with -target-wait", dir, r.Policy, r.Trace, len(d.Late), len(waits))
			}
		}
		if w := (world{r.Trace, r.Cold}); r.Phase == Test && !slices.Contains(worlds, w) {
			worlds = append(worlds, w)
		}
	}
	if len(worlds) == 0 {
		return "", fmt.Errorf("report on %s: it has no results of the phase test", dir)
	}
	var summary, tables strings.Builder
	fmt.Fprintf(&summary, "| trace | cold start | target wait | predictive: GPU-hours, in time | best tuned peer | difference by day | days left out | best peer in hindsight | actions: ours, HPA's | clairvoyant | lower bound |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, w := range worlds {
		for i, wait := range waits {
			c := comparison{rows: rows, trace: w.trace, cold: w.cold, wait: i, own: wait, goal: goal}
			c.summary(&summary)
			c.table(&tables)
		}
	}
	return summary.String() + tables.String(), nil
}

type comparison struct {
	rows  []Row
	trace string
	cold  time.Duration
	wait  int
	own   time.Duration
	goal  float64
}

// find is the row of the second half.
func (c *comparison) find(policy, setting string) *Row {
	for i := range c.rows {
		r := &c.rows[i]
		if r.Trace == c.trace && r.Cold == c.cold && r.Phase == Test && r.Policy == policy && r.Setting == setting && (r.Wait == 0 || r.Wait == c.own) {
			return r
		}
	}
	return nil
}

// tuned is the second half of the setting that training chose.
func (c *comparison) tuned(policy string) *Row {
	if r := choose(slices.Clone(c.rows), c.trace, c.cold, Train, policy, c.wait, c.own, c.goal); r != nil {
		return c.find(policy, r.Setting)
	}
	return nil
}

// hindsight is the best setting on the second half, of those that were run there.
func (c *comparison) hindsight(policy string) *Row {
	return choose(slices.Clone(c.rows), c.trace, c.cold, Test, policy, c.wait, c.own, c.goal)
}

// shipped is predictive with its defaults.
func (c *comparison) shipped() *Row {
	return c.find(policies.Predictive, fmt.Sprintf("goal=%g", c.goal))
}

// best is the cheapest peer that reaches the goal.
func (c *comparison) best(of func(string) *Row) *Row {
	var best *Row
	for _, p := range policies.Names() {
		if p == policies.Predictive {
			continue
		}
		r := of(p)
		if r == nil || r.outcome(c.wait, -1).inTime() < c.goal {
			continue
		}
		if best == nil || r.outcome(c.wait, -1).hours < best.outcome(c.wait, -1).hours {
			best = r
		}
	}
	return best
}

func (c *comparison) text(r *Row) string {
	if r == nil {
		return "none reaches the goal"
	}
	o := r.outcome(c.wait, -1)
	miss := ""
	if o.inTime() < c.goal {
		miss = ", misses"
	}
	return fmt.Sprintf("%s, %.3f %%%s", number(o.hours), 100*o.inTime(), miss)
}

func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func (c *comparison) summary(b *strings.Builder) {
	ours := c.shipped()
	if ours == nil {
		return
	}
	peer := c.best(c.tuned)
	difference, without := "-", "-"
	if peer != nil {
		difference, without = c.compare(ours, peer)
	}
	name := func(r *Row) string {
		if r == nil {
			return c.text(r)
		}
		return r.Policy + " " + c.text(r)
	}
	actions := "-"
	if hpa := c.tuned(policies.HPA); hpa != nil {
		actions = fmt.Sprintf("%.0f, %.0f", ours.outcome(c.wait, -1).actions, hpa.outcome(c.wait, -1).actions)
	}
	bound := func(policy string) string {
		if r := c.find(policy, ""); r != nil {
			return number(r.outcome(c.wait, -1).hours)
		}
		return "not run"
	}
	fmt.Fprintf(b, "| %s | %v | %v | %s | %s | %s | %s | %s | %s | %s | %s |\n", c.trace, c.cold, c.own, c.text(ours), name(peer), difference, without,
		name(c.best(c.hindsight)), actions, bound(Clairvoyant), bound(LowerBound))
}

// compare gives how much dearer ours is, in percent, with an interval of 95 % over days, and
// the range when each day in turn is left out.
func (c *comparison) compare(ours, peer *Row) (difference, without string) {
	total := 100 * (ours.outcome(c.wait, -1).hours/peer.outcome(c.wait, -1).hours - 1)
	n := min(len(ours.Days), len(peer.Days))
	if n < 3 {
		return fmt.Sprintf("%+.1f %%", total), "-"
	}
	var by []float64
	low, high := math.Inf(1), math.Inf(-1)
	for i := range n {
		by = append(by, 100*(ours.Days[i].GPUHours/peer.Days[i].GPUHours-1))
		v := 100 * (ours.outcome(c.wait, i).hours/peer.outcome(c.wait, i).hours - 1)
		low, high = math.Min(low, v), math.Max(high, v)
	}
	days, err := frontier.Mean(by, 0.95)
	if err != nil {
		return err.Error(), "-"
	}
	return fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", total, days.Low, days.High), fmt.Sprintf("%+.1f to %+.1f %%", low, high)
}

func (c *comparison) table(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s, cold start %v, target wait %v\n\n| policy | setting | | GPU-hours | in time | worst day | late in the worst hour | and episode | actions |\n|---|---|---|---|---|---|---|---|---|\n", c.trace, c.cold, c.own)
	for _, p := range append(policies.Names(), Clairvoyant, LowerBound) {
		seen := map[*Row]string{}
		var order []*Row
		add := func(r *Row, as string) {
			if r == nil {
				return
			}
			if _, ok := seen[r]; !ok {
				order = append(order, r)
			}
			seen[r] = strings.TrimSpace(seen[r] + " " + as)
		}
		switch p {
		case Clairvoyant, LowerBound:
			add(c.find(p, ""), "")
		case policies.Predictive:
			add(c.shipped(), "as shipped")
			add(c.tuned(p), "tuned")
			add(c.hindsight(p), "hindsight")
		default:
			add(c.tuned(p), "tuned")
			add(c.hindsight(p), "hindsight")
		}
		for _, r := range order {
			o := r.outcome(c.wait, -1)
			if p == LowerBound {
				fmt.Fprintf(b, "| %s | | | %s | | | | | |\n", p, number(o.hours))
				continue
			}
			worst := 1.0
			for _, d := range r.Days {
				if d.Requests > 0 {
					worst = math.Min(worst, 1-float64(d.Late[c.wait])/float64(d.Requests))
				}
			}
			episode := "-" // a result of an older study
			if c.wait < len(r.WorstEpisode) {
				episode = fmt.Sprint(r.WorstEpisode[c.wait])
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %.3f %% | %.3f %% | %.0f | %s | %.0f |\n", p, r.Setting, seen[r], number(o.hours), 100*o.inTime(), 100*worst, o.worst, episode, o.actions)
		}
	}
}
