package load

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// State is what a model is at, for a gateway.
type State string

// States, the one that says least first. Of several gateways' states the last of these
// is that of all together: one that serves serves, whatever the others have not heard.
const (
	Cancelled    State = "CANCELLED"    // nothing runs, and nothing will: the model is stopped
	Provisioning State = "PROVISIONING" // nothing runs, and the controller is being asked
	Deploying    State = "DEPLOYING"    // the controller is bringing a replica up
	Ready        State = "READY"        // a replica serves and nothing is in flight
	Busy         State = "BUSY"         // requests are in flight
)

var states = []State{Cancelled, Provisioning, Deploying, Ready, Busy}

// Queue is what a gateway has of one model, or all gateways have together.
type Queue struct {
	Model string
	State State
	// Waiting is how many requests wait for an engine, InFlight how many are at one.
	Waiting, InFlight int
	// Oldest is when the one that has waited longest came, zero where none waits.
	Oldest time.Time
	// Served is how many requests ended per second lately.
	Served float64
	// Requests are some of those that wait, in the order in which they would be served, at
	// most MaxRequests. What is added up has none.
	Requests []Request
	// Gateways is how many gateways have something of the model; of what is added up.
	Gateways int
}

// validate names everything that is wrong with the queue.
func (q Queue) validate() []error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("queue of model %q: "+format, append([]any{q.Model}, args...)...))
	}
	if err := checkName(q.Model); err != nil {
		bad("%w", err)
	}
	if !slices.Contains(states, q.State) {
		bad("state is %q: must be one of %v", q.State, states)
	}
	if q.Waiting < 0 || q.InFlight < 0 {
		bad("waiting is %d and in flight is %d: must be 0 or more", q.Waiting, q.InFlight)
	}
	if !(q.Served >= 0 && q.Served <= math.MaxFloat64) {
		bad("served per second is %g: must be 0 or more", q.Served)
	}
	if n := len(q.Requests); n > MaxRequests {
		bad("%d requests: must be at most %d", n, MaxRequests)
	} else if q.Waiting >= 0 && n > q.Waiting {
		bad("%d requests but only %d waiting", n, q.Waiting)
	}
	return errs
}

// add adds what another gateway has of the same model.
func (q *Queue) add(o *Queue) {
	if slices.Index(states, o.State) > slices.Index(states, q.State) {
		q.State = o.State
	}
	q.Waiting += o.Waiting
	q.InFlight += o.InFlight
	q.Served += o.Served
	if !o.Oldest.IsZero() && (q.Oldest.IsZero() || o.Oldest.Before(q.Oldest)) {
		q.Oldest = o.Oldest
	}
	q.Gateways++
}

// newest returns when the newest of the waiting requests that are named came, or the oldest
// of all where none is named.
func (q *Queue) newest() time.Time {
	at := q.Oldest
	for _, r := range q.Requests {
		if r.Started.After(at) {
			at = r.Started
		}
	}
	return at
}

// Queues returns what all live gateways have of each model together, by model. A model of
// which none has anything is not there.
func (s *Store) Queues() map[string]Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := map[string]Queue{}
	for _, e := range s.gateways {
		for model, q := range e.queues {
			sum := out[model]
			sum.Model = model
			sum.add(q)
			out[model] = sum
		}
	}
	return out
}

// Waiting returns how many requests wait for an engine at all live gateways together, by
// model; models for which none waits are not there.
func (s *Store) Waiting() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := map[string]int{}
	for _, e := range s.gateways {
		for model, q := range e.queues {
			if q.Waiting > 0 {
				out[model] += q.Waiting
			}
		}
	}
	return out
}

// Place is where a request is: it waits, or is at a replica.
type Place struct {
	Request
	Gateway, Model string
	// Replica is empty while it waits.
	Replica string
	// Position is its place in its gateway's queue, 1 is next; 0 where it does not wait.
	Position int
}

// QueueOf is all about one model's queue: what each live gateway has of it, by the
// gateway's name, and the requests that they name, first those that wait, by position, and
// then those in flight, oldest first.
func (s *Store) QueueOf(model string) (of map[string]Queue, requests []Place) {
	of = map[string]Queue{}
	for name, e := range s.live() {
		if q := e.queues[model]; q != nil {
			of[name] = *q
			requests = append(requests, e.places(name, func(m string, _ Request) bool { return m == model })...)
		}
	}
	sortPlaces(requests)
	return of, requests
}

// Find returns where the gateways say that requests of this ID are. They name only some:
// the first MaxRequests of each queue and the oldest MaxRequests of each replica.
func (s *Store) Find(id string) []Place {
	var out []Place
	for name, e := range s.live() {
		out = append(out, e.places(name, func(_ string, r Request) bool { return r.ID == id })...)
	}
	sortPlaces(out)
	return out
}

// live returns the reports of the gateways that live, to be read without the lock.
func (s *Store) live() map[string]*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	return maps.Clone(s.gateways)
}

// places returns the requests of a report that are wanted.
func (e *entry) places(gateway string, want func(model string, r Request) bool) []Place {
	var out []Place
	for _, q := range e.report.Queues {
		for i, r := range q.Requests {
			if want(q.Model, r) {
				out = append(out, Place{Request: r, Gateway: gateway, Model: q.Model, Position: i + 1})
			}
		}
	}
	for _, l := range e.report.Replicas {
		model := modelOf(l.Name)
		for _, r := range l.Requests {
			if want(model, r) {
				out = append(out, Place{Request: r, Gateway: gateway, Model: model, Replica: l.Name})
			}
		}
	}
	return out
}

// modelOf returns the model of a replica's name, which was validated.
func modelOf(name string) string {
	rest := name[:max(strings.LastIndexByte(name, ':'), 0)]
	return rest[:max(strings.LastIndexByte(rest, ':'), 0)]
}

// sortPlaces puts those that wait first.
func sortPlaces(ps []Place) {
	slices.SortFunc(ps, func(a, b Place) int {
		if (a.Position == 0) != (b.Position == 0) {
			return cmp.Compare(b.Position, a.Position)
		}
		return cmp.Or(cmp.Compare(a.Position, b.Position), a.Started.Compare(b.Started), strings.Compare(a.Gateway, b.Gateway), strings.Compare(a.ID, b.ID))
	})
}
