package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"remuda/autoscaler-plugin/allocate"
	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/predictive"
	"remuda/autoscaler-plugin/utilization"
)

// Call is everything that a decision goes by. It is a plain value that survives a round
// trip through JSON.
type Call struct {
	Strategy string  `json:"strategy"`
	Options  Options `json:"options"`
	// Now is the clock, in nanoseconds since 1970.
	Now      int64            `json:"now_ns"`
	Snapshot observe.Snapshot `json:"snapshot"`
	// State is as it was before.
	State State `json:"state"`
	// Usage is the average of the seconds that requests spent in the model or waiting for
	// it, per minute, and Forecast the same of last week. Only remuda-utilization's.
	Usage    enginemetrics.Value `json:"usage,omitzero"`
	Forecast enginemetrics.Value `json:"forecast,omitzero"`
	// Refused is how many requests gateways turned away for want of capacity, per minute of
	// the same window; absent where nobody counts them. Only remuda-utilization's.
	Refused enginemetrics.Value `json:"refused_per_minute,omitzero"`
	// Finished and Arrived are how many requests left engines and came, per minute of that window.
	Finished enginemetrics.Value `json:"finished_per_minute,omitzero"`
	Arrived  enginemetrics.Value `json:"arrived_per_minute,omitzero"`
}

// Directions of an Answer.
const (
	Up   = "up"
	Down = "down"
	None = "none"
)

// Answer is what was decided.
type Answer struct {
	Direction string `json:"direction"`
	// Current is how many replicas there were, Count how many there should be: the sum of
	// Targets.
	Current int            `json:"current"`
	Count   int            `json:"count"`
	Targets map[string]int `json:"targets,omitempty"`
	Reason  string         `json:"reason"`
	// Inert says why the strategy cannot judge anything, which a person must see to; empty
	// where it can.
	Inert string `json:"inert,omitempty"`

	// What the strategy's own rules said.
	Capacity    *capacity.Answer      `json:"capacity,omitempty"`
	Recommended *hpa.Recommendation   `json:"recommended,omitempty"`
	HPA         *hpa.Decision         `json:"hpa,omitempty"`
	Utilization *utilization.Decision `json:"utilization,omitempty"`
	Predictive  *predictive.Decision  `json:"predictive,omitempty"`
}

// Decide answers the call, and returns the state as it is afterwards.
func (c *Call) Decide() (Answer, State) {
	d, s, elapsed := c.prepared()
	a := d.decide(&s, elapsed)
	return a, s
}

// decide is Decide of a prepared call.
func (c *Call) decide(s *State, elapsed time.Duration) Answer {
	current := c.Snapshot.Current()
	d := decision{Call: c, state: s, elapsed: elapsed, variants: c.variants(),
		answer: Answer{Direction: None, Current: current, Count: current, Targets: c.currents()}}
	d.low, d.high = c.bounds(current)
	d.run()
	return d.answer
}

// keepCurrent raises each variant to its current number, and returns the names of those that it
// raised. Where that is too many in all, nothing is added either.
func (c *Call) keepCurrent(a *Answer, high int) (raised []string) {
	current := c.currents()
	for _, v := range slices.Sorted(maps.Keys(current)) {
		if a.Targets[v] < current[v] {
			a.Targets[v] = current[v]
			raised = append(raised, v)
		}
	}
	if allocate.Sum(a.Targets) > max(high, a.Current) {
		a.Targets = current
	}
	return raised
}

// wakesItself tells that the strategy's own rules bring a sleeping model back: Replicate's
// scaler goes from 0 to its slow start at once.
func (c *Call) wakesItself() bool {
	return c.Options.HPA != nil && c.Options.HPA.Backlog != nil && c.Snapshot.Queue.Known
}

// maySleep tells whether neither a bound nor the policy keeps a replica of an idle model.
func (c *Call) maySleep() bool {
	low, _ := c.bounds(0)
	h := c.Options.HPA
	switch {
	case low > 0 || slices.ContainsFunc(c.Snapshot.Variants, func(v observe.Variant) bool { return v.Min > 0 }):
		return false
	case h != nil && h.Backlog != nil:
		return h.Backlog.Behavior.ScaleDown.SelectPolicy != hpa.SelectDisabled
	case h != nil:
		return h.Behavior.ScaleDown.SelectPolicy != hpa.SelectDisabled
	}
	u := c.Options.Utilization
	return u == nil || u.Config.Management != utilization.Upscaling
}

// bounds are those of the sum, and the policy's own within the model's: the controller
// refuses what is outside of those. The last replica goes only by being idle.
func (c *Call) bounds(current int) (low, high int) {
	high = allocate.Unbounded
	if c.Snapshot.Controlled {
		low, high = c.Snapshot.Min, c.Snapshot.Max
	}
	least := low
	if h := c.Options.HPA; h != nil && h.Backlog != nil {
		if n := h.Backlog.MinOverride; n != nil {
			low = max(low, *n)
		}
		if n := h.Backlog.Cap; n != nil && low <= high { // above all but the model's own min
			high = max(min(high, *n), least)
			low = min(low, high)
		}
	}
	if u := c.Options.Utilization; u != nil {
		low, high = max(low, u.Config.MinCount), min(high, max(u.Config.MaxCount, least))
	}
	if current > 0 && high > 0 {
		low = max(low, 1)
	}
	return low, high
}

// currents are the counts by variant as they are.
func (c *Call) currents() map[string]int {
	m := make(map[string]int, len(c.Snapshot.Variants))
	for _, v := range c.Snapshot.Variants {
		m[v.Variant] = v.Current
	}
	return m
}

// variants are the snapshot's, for sharing a number out.
func (c *Call) variants() []allocate.Variant {
	all := make([]allocate.Variant, 0, len(c.Snapshot.Variants))
	for _, v := range c.Snapshot.Variants {
		cost, flaw := v.Cost.Get()
		if flaw != enginemetrics.None {
			cost = capacity.DefaultCost
		}
		all = append(all, allocate.Variant{Name: v.Variant, Cost: cost, Slots: v.Slots, Current: v.Current, Min: v.Min, Unplaceable: v.Unplaceable})
	}
	return all
}

// quiet tells that there is no request now. Of replicas that nobody sees nobody knows that.
// Requests in an engine that no gateway tells of are of a client that goes there by itself,
// or of a gateway that does not reach the controller. What was served lately counts only without
// the exact number of requests that arrived: it stays above 0 for as long as its window is.
func (c *Call) quiet() bool {
	q := &c.Snapshot.Queue
	lately := q.Arrived.IsZero() && q.Served.Or(0) > 0
	if !q.Known || q.Waiting > 0 || q.InFlight > 0 || lately || c.unseen() > 0 {
		return false
	}
	return !slices.ContainsFunc(c.Snapshot.Engines, func(e observe.Engine) bool {
		now := e.Class == enginemetrics.ClassOK || e.Class == enginemetrics.ClassDuplicate
		return now && !e.Draining && (e.RunningNow.Or(0) > 0 || e.WaitingNow.Or(0) > 0)
	})
}

// unseen is how many replicas count and are not seen, where no controller says what they do:
// they start, or whoever would report them cannot, and then they may be full.
func (c *Call) unseen() int {
	if c.Snapshot.Controlled {
		return 0
	}
	return max(c.Snapshot.Current()-c.Snapshot.HotCount(), 0)
}

// watchIdle follows for how long there was no request while there were replicas. Time in
// which that is not known does not count.
//
// A gateway's counter of requests also shows those that came and went while nobody looked.
func (c *Call) watchIdle(s *State, elapsed time.Duration) {
	arrived, was := c.Snapshot.Queue.Arrived, s.Arrived
	if !arrived.IsZero() {
		s.Arrived = arrived
	}
	switch {
	case c.Snapshot.Current() == 0:
		// An operator who starts a model that sleeps has it for as long as one that served.
		s.IdleFor = 0
	case c.quiet() && (was.IsZero() || s.Arrived == was):
		s.IdleFor += min(elapsed, 365*24*time.Hour-min(s.IdleFor, 365*24*time.Hour))
	case c.Snapshot.Queue.Known, wants(&c.Snapshot.Queue):
		s.IdleFor = 0
	}
}

// unwatched counts the time in which the model must not be scaled, when nobody looks at its load.
// After a minute of it the windows begin anew.
func (c *Call) unwatched(s *State, elapsed time.Duration) {
	if s.UnwatchedFor = min(s.UnwatchedFor+elapsed, mostWatched); s.UnwatchedFor > maxGap {
		s.beginAnew()
	}
}

// wake brings a sleeping model up for its first request, or to its min.
func (c *Call) wake(a *Answer, variants []allocate.Variant, low int) {
	q := &c.Snapshot.Queue
	switch {
	case wants(q) && low < 1:
		a.Targets = allocate.Spread(1, variants, nil)
		a.Reason = fmt.Sprintf("no replica and %d waiting: starting the first replica", q.Waiting+q.InFlight)
	case low > 0:
		a.Targets = allocate.Spread(low, variants, nil)
		a.Reason = fmt.Sprintf("no replica and the model's min is %d: starting as many", low)
	default:
		a.Reason = "the model is scaled to zero and no request is waiting"
	}
	if allocate.Sum(a.Targets) == 0 && (wants(q) || low > 0) {
		a.Reason += ", but no variant can be placed: " + c.places()
	}
}

// wants tells whether there is a request. Of numbers that are not complete there is at least
// that many.
func wants(q *observe.Queue) bool { return (q.Known || q.Partial) && q.Waiting+q.InFlight > 0 }

// places says why variants have no place.
func (c *Call) places() string {
	var all []string
	for _, v := range c.Snapshot.Variants {
		if v.Unplaceable {
			all = append(all, v.Variant+": "+v.Why)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}
