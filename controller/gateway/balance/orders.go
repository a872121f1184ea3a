package balance

import "time"

// Orders are what the controller says. They hold until others come.
type Orders struct {
	// Index is that of the controller's state.
	Index uint64
	// Models are those that exist, true where the model is stopped.
	Models map[string]bool
	// Draining are the replicas that are to get no new request.
	Draining map[string]bool
	// Starting is how many replicas of a model are on their way and do not serve yet.
	Starting map[string]int
	// Problems are why models without a serving replica get none.
	Problems map[string]Problem
	// Away: the controller cannot be reached, and these are its last words. See
	// Table.Away.
	Away bool
}

// Problem is why no replica of a model comes: State is api.QueueCantPlace or
// api.QueueLoadFailed, and a failed one is tried again at RetryAt.
type Problem struct {
	State          string
	Message        string
	Since, RetryAt time.Time
}

// Direct takes new orders. A model that exists is known though it has no engine.
// A replica that drains gets no new request, also where the model has no other: it is
// then wanted anew. See Away for the exception.
func (t *Table) Direct(now time.Time, o Orders) Changes {
	t.orders = o
	for name, m := range t.models {
		stopped, exists := o.Models[name]
		m.exists, m.stopped = exists, stopped
	}
	for name, stopped := range o.Models {
		if t.models[name] == nil {
			t.models[name] = &model{first: now, exists: true, stopped: stopped}
		}
	}
	for name, r := range t.tops {
		r.draining = o.Draining[name]
	}
	t.share()
	var ch Changes
	t.index(now, &ch)
	return ch
}

// Away tells whether the controller is away. Until it is back, replicas that drain serve
// where the model has no other usable engine: nobody is there to start one. So do replicas without
// a share, see SetShares.
func (t *Table) Away(away bool) {
	t.orders.Away = away
	t.share()
}

// Stopped tells whether the controller keeps the model from running.
func (t *Table) Stopped(name string) bool {
	m := t.models[name]
	return m != nil && m.stopped
}

// Wanted tells whether the controller would run the model, had it a reason to.
func (t *Table) Wanted(name string) bool {
	m := t.models[name]
	return m != nil && m.exists && !m.stopped
}
