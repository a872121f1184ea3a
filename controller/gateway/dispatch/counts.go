package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
)

// counts count a model's requests since the dispatcher knows it. They never fall. A request
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

// refuse notes that a request was turned away for want of capacity. mu is held.
func (d *Dispatcher) refuse(now time.Time, m *model) {
	m.counts.Refused++
	if d.goals[m.name] > 0 {
		m.counts.Late++
	}
	m.counts.last = now
}

// left notes that a request has left an engine.
func (c *counts) left(now time.Time, g *Grant) {
	if g.first {
		c.Finished++
	}
	c.ServedSeconds += max(now.Sub(g.began).Seconds(), 0)
	c.last = now
}

// End is how a request that an engine had ended.
type End struct {
	// FirstByte and FirstToken are the times from its arrival to the first byte of its answer and to the first token
	// of a streamed one, 0 if there was none.
	FirstByte, FirstToken time.Duration
	Failed                bool
}

// Ended notes the end of a request that an engine had.
func (d *Dispatcher) Ended(model string, end End) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.models[model]
	if m == nil {
		return
	}
	if end.FirstByte > 0 {
		m.counts.Answers++
		m.counts.FirstByteSeconds += end.FirstByte.Seconds()
	}
	if end.FirstToken > 0 {
		m.counts.FirstTokens++
		m.counts.FirstTokenSeconds += end.FirstToken.Seconds()
	}
	if end.Failed {
		m.counts.Errors++
	}
	m.counts.last = time.Now()
}

// counters returns those of the models that have queues, in that order, and then of the
// others, those that changed last first: what is left out of a report counts nothing at
// present. Models live here for as long as they have engines or requests, and
// Routing.Remember beyond, so that the number of idle ones is bounded by that of the models
// that exist. mu is held.
func (d *Dispatcher) counters(queues []api.QueueLoad, most int) []api.ModelCounters {
	all := make([]*model, 0, len(d.models))
	queued := make(map[string]bool, len(queues))
	for i := range queues {
		queued[queues[i].Model] = true
		all = append(all, d.models[queues[i].Model])
	}
	for _, m := range d.models {
		if !queued[m.name] && !m.counts.last.IsZero() {
			all = append(all, m)
		}
	}
	slices.SortFunc(all[len(queues):], func(a, b *model) int {
		return cmp.Or(b.counts.last.Compare(a.counts.last), strings.Compare(a.name, b.name))
	})
	out := make([]api.ModelCounters, 0, min(len(all), most))
	for _, m := range all[:min(len(all), most)] {
		out = append(out, api.ModelCounters{Model: m.name, Counters: m.counts.Counters})
	}
	return out
}

// Queues returns what the models have, those with the longest queues first, and the counters of
// all. At most so many models are listed, and so many requests are named.
func (d *Dispatcher) Queues(models, requests int) ([]api.QueueLoad, []api.ModelCounters) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var out []api.QueueLoad
	for _, m := range d.models {
		s := d.table.State(now, m.name)
		q := api.QueueLoad{Model: m.name, State: stateOf(s), Waiting: m.queue.Len(), WaitingTokens: m.queue.Prompt(), InFlight: s.InFlight, OldestAt: m.queue.Oldest(), CompletedPerSecond: m.drain.PerSecond(now)}
		if q.Waiting == 0 && q.InFlight == 0 && q.CompletedPerSecond == 0 {
			continue
		}
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b api.QueueLoad) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.InFlight, a.InFlight), strings.Compare(a.Model, b.Model))
	})
	counters := d.counters(out, models)
	out = out[:min(len(out), models)]
	for i := range out {
		n := min(out[i].Waiting, api.MaxReportRequests, requests)
		requests -= n
		if n == 0 {
			continue
		}
		for _, w := range d.models[out[i].Model].queue.All(now, n) {
			out[i].Requests = append(out[i].Requests, api.Request{ID: w.ID, Key: w.Key, Started: w.Arrived})
		}
	}
	return out, counters
}

// Length is how long a queue is.
type Length struct {
	Waiting int
	Oldest  time.Time
}

// Lengths returns the length of every model's queue.
func (d *Dispatcher) Lengths() map[string]Length {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]Length, len(d.models))
	for name, m := range d.models {
		out[name] = Length{Waiting: m.queue.Len(), Oldest: m.queue.Oldest()}
	}
	return out
}
