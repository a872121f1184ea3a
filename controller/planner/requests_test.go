package planner_test

import (
	"slices"
	"time"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// clients send requests to what serves, through a gateway that leaves an engine alone after
// five failures in a row. Then it asks it once after 2 s, 4 s and so on, up to 30 s, or every
// 2 s if it leaves all engines of the model alone.
type clients struct {
	// each is how many requests a replica gets in a tick. 0: there are no clients.
	each int
	// fails is the share of its requests that a replica fails, evenly spread; nil: none.
	fails func(*state.Replica) float64
	of    map[string]*requests // by replica
	// bad are replicas that fail all of their requests, whatever fails returns.
	bad map[string]bool
	// failed counts all failures since the test last set it to zero.
	failed int
}

// requests are those at one replica that have ended.
type requests struct {
	ended []request // the newest last
	// row are the failures since the last answer, first and last when they were.
	row         int
	first, last time.Time
	// probe is when the engine is asked again, early the same if it leaves all alone, and wait
	// how long it was left alone for.
	probe, early time.Time
	wait         time.Duration
	// owed is the share of failures that were not yet made.
	owed float64
}

type request struct {
	at     time.Time
	failed bool
}

func (q *requests) end(now time.Time, failed bool) {
	q.ended = append(slices.DeleteFunc(q.ended, func(r request) bool { return !now.Before(r.at.Add(30 * time.Second)) }), request{now, failed})
	if !failed {
		q.row, q.wait, q.probe, q.early = 0, 0, time.Time{}, time.Time{}
		return
	}
	if q.row == 0 || !now.Before(q.last.Add(2*time.Minute)) {
		q.row, q.first = 0, now
	}
	q.row, q.last = q.row+1, now
	if q.row >= 5 {
		q.wait = min(max(2*q.wait, 2*time.Second), 30*time.Second)
		q.probe, q.early = now.Add(q.wait), now.Add(2*time.Second)
	}
}

// outcomes are what the load store would say; see load.Outcomes.
func (q *requests) outcomes(now time.Time) (recent, row planner.Outcomes) {
	var first, last time.Time
	for _, r := range q.ended {
		switch {
		case !now.Before(r.at.Add(30 * time.Second)):
		case !r.failed:
			recent.Answered++
		default:
			recent.Failed++
			if last = r.at; first.IsZero() {
				first = r.at
			}
		}
	}
	recent.Over = last.Sub(first)
	if q.row > 0 && now.Before(q.last.Add(2*time.Minute)) {
		row = planner.Outcomes{Failed: int64(q.row), Over: q.last.Sub(q.first)}
	}
	return recent, row
}

// ask lets the clients send their requests of one tick.
func (w *world) ask() {
	c := &w.clients
	serves := func(r *state.Replica) bool {
		j := w.nomad[r.Name.String()]
		return r.Status == state.StatusServing && j != nil && j.serving(w.now) && !w.down[r.Placement.Node]
	}
	for _, r := range w.view().Replicas(nil) {
		name := r.Name.String()
		if c.each == 0 || !serves(r) {
			continue
		}
		if c.of[name] == nil {
			c.of[name] = &requests{}
		}
		q := c.of[name]
		alone := !slices.ContainsFunc(w.view().ReplicasOf(nil, r.Name.Model), func(o *state.Replica) bool {
			of := c.of[o.Name.String()]
			return serves(o) && (of == nil || of.probe.IsZero())
		})
		for range c.each {
			if due := map[bool]time.Time{false: q.probe, true: q.early}[alone]; w.now.Before(due) {
				continue
			}
			if c.fails != nil {
				q.owed += c.fails(r)
			}
			if c.bad[name] {
				q.owed = 1
			}
			failed := q.owed >= 1
			if q.end(w.now, failed); failed {
				c.failed++
				q.owed--
			}
		}
	}
}

// outcomes are those of a replica's requests.
func (w *world) outcomes(name string) (recent, row planner.Outcomes) {
	if q := w.clients.of[name]; q != nil {
		return q.outcomes(w.now)
	}
	return planner.Outcomes{}, planner.Outcomes{}
}
