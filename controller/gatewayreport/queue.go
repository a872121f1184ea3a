package gatewayreport

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
)

// states orders the states of a queue by precedence, the weakest first. If gateways report
// different states of a model, the last in this order applies: for example, a model that one
// gateway can serve is ready.
var states = []api.QueueState{api.QueueStopped, api.QueueProvisioning, api.QueueCantPlace, api.QueueLoadFailed, api.QueueDeploying, api.QueueReady, api.QueueBusy}

// queueErrors returns all errors of a queue.
func queueErrors(q api.QueueLoad) []error {
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
	if q.WaitingTokens < 0 || q.WaitingTokens > maxCount {
		bad("waiting tokens is %d: must be 0 to %d", q.WaitingTokens, maxCount)
	}
	if !(q.CompletedPerSecond >= 0 && q.CompletedPerSecond <= math.MaxFloat64) {
		bad("completed per second is %g: must be 0 or more", q.CompletedPerSecond)
	}
	if n := len(q.Requests); n > api.MaxReportRequests {
		bad("%d requests: must be at most %d", n, api.MaxReportRequests)
	} else if q.Waiting >= 0 && n > q.Waiting {
		bad("%d requests but only %d waiting", n, q.Waiting)
	}
	return errs
}

// add adds another gateway's queue of the same model to q.
func add(q *api.Queue, o *api.QueueLoad) {
	if slices.Index(states, o.State) > slices.Index(states, q.State) {
		q.State = o.State
	}
	q.Waiting += o.Waiting
	q.WaitingTokens += o.WaitingTokens
	q.InFlight += o.InFlight
	q.CompletedPerSecond += o.CompletedPerSecond
	if !o.OldestAt.IsZero() && (q.OldestAt.IsZero() || o.OldestAt.Before(q.OldestAt)) {
		q.OldestAt = o.OldestAt
	}
	q.Gateways++
}

// newest returns when the newest of the listed waiting requests came, or the oldest of all if
// none is listed.
func newest(q *api.QueueLoad) time.Time {
	at := q.OldestAt
	for _, r := range q.Requests {
		if r.Started.After(at) {
			at = r.Started
		}
	}
	return at
}

// Queues returns the queues of all live gateways together, by model. It omits models of which no
// gateway reports anything.
func (s *Store) Queues() map[string]api.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	out := map[string]api.Queue{}
	for _, e := range s.gateways {
		for model, q := range e.queues {
			sum := out[model]
			sum.Model = model
			add(&sum, q)
			out[model] = sum
		}
	}
	return out
}

// Waiting returns how many requests wait for an engine at all live gateways together, by model.
// It omits models for which no request waits.
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

// QueueOf returns the queue of a model at each live gateway, sorted by the gateway's name, and the
// requests that the gateways list: first those that wait, by position, then those in flight,
// oldest first.
func (s *Store) QueueOf(model string) (of []api.GatewayQueue, requests []api.QueuedRequest) {
	of = []api.GatewayQueue{}
	for name, e := range s.live() {
		if q := e.queues[model]; q != nil {
			of = append(of, api.GatewayQueue{Gateway: name, State: q.State, Waiting: q.Waiting, InFlight: q.InFlight, OldestAt: q.OldestAt, CompletedPerSecond: q.CompletedPerSecond})
			requests = append(requests, e.requests(name, func(m string, _ api.Request) bool { return m == model })...)
		}
	}
	slices.SortFunc(of, func(a, b api.GatewayQueue) int { return strings.Compare(a.Gateway, b.Gateway) })
	sortRequests(requests)
	return of, requests
}

// Find returns where the gateways report requests of this ID. They list only some requests: the
// first api.MaxReportRequests of each queue and the oldest ones of each replica.
func (s *Store) Find(id string) []api.QueuedRequest {
	out := []api.QueuedRequest{}
	for name, e := range s.live() {
		out = append(out, e.requests(name, func(_ string, r api.Request) bool { return r.ID == id })...)
	}
	sortRequests(out)
	return out
}

// live returns the reports of the live gateways. They may be read without the lock.
func (s *Store) live() map[string]*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(s.now())
	return maps.Clone(s.gateways)
}

// requests returns the requests of a report for which want returns true.
func (e *entry) requests(gateway string, want func(model string, r api.Request) bool) []api.QueuedRequest {
	var out []api.QueuedRequest
	for _, q := range e.report.Queues {
		for i, r := range q.Requests {
			if want(q.Model, r) {
				out = append(out, api.QueuedRequest{ID: r.ID, Key: r.Key, Started: r.Started, Gateway: gateway, Model: q.Model, Position: i + 1})
			}
		}
	}
	for _, l := range e.report.Replicas {
		model := modelOf(l.Name)
		for _, r := range l.Requests {
			if want(model, r) {
				out = append(out, api.QueuedRequest{ID: r.ID, Key: r.Key, Started: r.Started, Gateway: gateway, Model: model, Replica: l.Name})
			}
		}
	}
	return out
}

// modelOf returns the model of a valid replica name.
func modelOf(name string) string {
	rest := name[:max(strings.LastIndexByte(name, ':'), 0)]
	return rest[:max(strings.LastIndexByte(rest, ':'), 0)]
}

// sortRequests sorts waiting requests first.
func sortRequests(ps []api.QueuedRequest) {
	slices.SortFunc(ps, func(a, b api.QueuedRequest) int {
		if (a.Position == 0) != (b.Position == 0) {
			return cmp.Compare(b.Position, a.Position)
		}
		return cmp.Or(cmp.Compare(a.Position, b.Position), a.Started.Compare(b.Started), strings.Compare(a.Gateway, b.Gateway), strings.Compare(a.ID, b.ID))
	})
}
