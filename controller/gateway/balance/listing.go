package balance

import (
	"slices"
	"strings"
	"time"
)

// Model is a model that can be listed.
type Model struct {
	Name string
	// First is when the table first heard of the model.
	First time.Time
}

// Models returns the models that exist for the controller or have an engine which may
// get requests, sorted by name.
func (t *Table) Models(now time.Time) []Model {
	var out []Model
	for name, m := range t.models {
		if t.listed(m, now) {
			out = append(out, Model{Name: name, First: m.first})
		}
	}
	slices.SortFunc(out, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Lookup returns a model that Models lists, or Pick's error.
func (t *Table) Lookup(now time.Time, name string) (Model, error) {
	if !t.ready {
		return Model{}, ErrNoList
	}
	m := t.models[name]
	switch {
	case m == nil || !t.known(m, now):
		return Model{}, ErrUnknownModel
	case !t.listed(m, now):
		return Model{}, ErrNoEngine
	}
	return Model{Name: name, First: m.first}, nil
}

// Endpoints returns the engines of a model that may serve, those of draining replicas as well, sorted by
// service ID.
func (t *Table) Endpoints(now time.Time, name string) []*Endpoint {
	m := t.models[name]
	if m == nil {
		return nil
	}
	var out []*Endpoint
	for _, e := range m.engines {
		if t.usable(e, now) {
			out = append(out, e.Endpoint)
		}
	}
	return out
}

func (t *Table) listed(m *model, now time.Time) bool {
	return m.exists || slices.ContainsFunc(m.engines, func(e *engine) bool { return t.usable(e, now) })
}

// Load is the state of one model, for metrics.
type Load struct {
	Model    string
	InFlight int
	// Work is the cost of what is in flight, in tokens.
	Work int64
	// Slots are those of engines that may serve, Free the free ones of them where no
	// breaker is open.
	Slots, Free int
	// Active engines get requests; Draining ones do not, see Table.Away; Open ones have a
	// breaker that is open or half-open; Kept ones are used although Consul does not
	// vouch for them; Fenced ones have been superseded by a higher token; NotPassing
	// ones are known.
	Active, Draining, Open, Kept, Fenced, NotPassing int
}

// Loads returns the state of every known model, sorted by name. Each engine
// counts in one state.
func (t *Table) Loads(now time.Time) []Load {
	out := make([]Load, 0, len(t.models))
	for name, m := range t.models {
		l := Load{Model: name, InFlight: m.inFlight, Work: m.work}
		serving := t.serving(m, now)
		for _, e := range m.engines {
			if t.serves(e, now, serving) {
				l.Slots += e.Slots
				if e.breaker.closed() {
					l.Free += max(e.Slots-e.inFlight, 0)
				}
			}
			switch {
			case !t.there(e, now):
			case e.Token.Compare(e.top.token) < 0:
				l.Fenced++
			case !t.used(e, now):
				l.NotPassing++
			case !e.breaker.closed():
				l.Open++
			case !e.passing:
				l.Kept++
			case e.top.draining:
				l.Draining++
			default:
				l.Active++
			}
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Load) int { return strings.Compare(a.Model, b.Model) })
	return out
}

// State is what can be done for a model.
type State struct {
	// Known: Pick does not say ErrUnknownModel. Exists and Stopped are what the
	// controller says.
	Known, Exists, Stopped bool
	// Usable is how many engines may serve, whether they are free or not: Pick says
	// ErrNoEngine where it is 0. Open is how many of them have a breaker that is open
	// or half-open.
	Usable, Open int
	// Draining is how many engines could serve, did their replicas not drain.
	Draining int
	// Starting is how many replicas the controller says are on their way.
	Starting int
	// Problem is why no replica comes, empty where nothing is known of one.
	Problem Problem
	// InFlight is how many requests are at engines.
	InFlight int
}

// State returns the state of a model, the zero State for one that was never heard of.
func (t *Table) State(now time.Time, name string) State {
	m := t.models[name]
	if m == nil {
		return State{}
	}
	s := State{Known: t.known(m, now), Exists: m.exists, Stopped: m.stopped, Starting: t.orders.Starting[name], Problem: t.orders.Problems[name], InFlight: m.inFlight}
	serving := t.serving(m, now)
	for _, e := range m.engines {
		switch {
		case t.serves(e, now, serving):
			s.Usable++
			if !e.breaker.closed() {
				s.Open++
			}
		case e.top.draining && t.usable(e, now):
			s.Draining++
		}
	}
	return s
}
