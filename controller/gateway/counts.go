package gateway

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
)

// counts count a model's requests since its processor was made. They never fall. A request
// that goes on at another engine has finished once, and its time there is added.
type counts struct {
	api.Counters
	// last is when they last changed.
	last time.Time
}

func (c *counts) came(now time.Time) {
	c.Arrived++
	c.last = now
}

// refuse notes that a request was turned away for want of capacity.
func (c *counts) refuse(now time.Time) {
	c.Refused++
	c.last = now
}

// left notes that a request has left an engine.
func (c *counts) left(now time.Time, l *lease) {
	if l.first {
		c.Finished++
	}
	c.ServedSeconds += max(now.Sub(l.began).Seconds(), 0)
	c.last = now
}

// counters returns those of the models that have queues, in that order, and then of the
// others, those that changed last first: what is left out of a report counts nothing at
// present. Processors live for as long as their model has engines or requests, and
// Routing.Remember beyond, so that the number of idle ones is bounded by that of the models
// that exist. mu is held.
func (d *roster) counters(queues []api.QueueLoad, most int) []api.ModelCounters {
	all := make([]*processor, 0, len(d.processors))
	queued := make(map[string]bool, len(queues))
	for i := range queues {
		queued[queues[i].Model] = true
		all = append(all, d.processors[queues[i].Model])
	}
	for _, p := range d.processors {
		if !queued[p.model] && !p.counts.last.IsZero() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all[len(queues):], func(a, b *processor) int {
		return cmp.Or(b.counts.last.Compare(a.counts.last), strings.Compare(a.model, b.model))
	})
	out := make([]api.ModelCounters, 0, min(len(all), most))
	for _, p := range all[:min(len(all), most)] {
		out = append(out, api.ModelCounters{Model: p.model, Counters: p.counts.Counters})
	}
	return out
}
