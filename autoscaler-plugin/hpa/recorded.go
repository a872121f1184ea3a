package hpa

import "time"

// Call is a call of Behavior.Next with everything that it goes by, to be kept beside its
// Decision and replayed.
type Call struct {
	Behavior Behavior `json:"behavior"`
	// State is as it was before the call.
	State State `json:"state"`
	// Now is the caller's clock, in nanoseconds.
	Now     time.Duration `json:"now_ns"`
	Current int           `json:"current"`
	Desired int           `json:"desired"`
	Min     int           `json:"min"`
	Max     int           `json:"max"`
}

// Decide makes the call, on a copy of the State, and returns the State as it is after it.
func (c *Call) Decide() (Decision, State) {
	s := c.State.Clone()
	return c.Behavior.Next(&s, c.Now, c.Current, c.Desired, c.Min, c.Max), s
}

// BacklogCall is a call of Backlog.Next with everything that it goes by.
type BacklogCall struct {
	Backlog Backlog `json:"backlog"`
	// State is as it was before the call.
	State State `json:"state"`
	// Now is the caller's clock, in nanoseconds.
	Now      time.Duration `json:"now_ns"`
	Observed Observed      `json:"observed"`
}

// Decide makes the call, on a copy of the State, and returns the State as it is after it.
func (c *BacklogCall) Decide() (Decision, State) {
	s := c.State.Clone()
	return c.Backlog.Next(&s, c.Now, c.Observed), s
}
