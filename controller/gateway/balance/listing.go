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

func (t *Table) listed(m *model, now time.Time) bool {
	return m.exists || slices.ContainsFunc(m.engines, func(e *engine) bool { return t.usable(e, now) })
}

// Load is the state of one model, for metrics.
type Load struct {
	Model    string
	InFlight int
	// Active engines get requests; Draining ones only when no Active one is left, Suspect
	// ones when no other is;
	// Kept ones are used although Consul does not vouch for them; Fenced ones have been superseded by a higher token; NotPassing ones are known.
	Active, Draining, Suspect, Kept, Fenced, NotPassing int
}

// Loads returns the state of every known model, sorted by name. Each engine
// counts in one state.
func (t *Table) Loads(now time.Time) []Load {
	out := make([]Load, 0, len(t.models))
	for name, m := range t.models {
		l := Load{Model: name, InFlight: m.inFlight}
		for _, e := range m.engines {
			switch {
			case !t.there(e, now):
			case e.Token < e.top.token:
				l.Fenced++
			case !t.used(e, now):
				l.NotPassing++
			case now.Before(e.suspectUntil):
				l.Suspect++
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
