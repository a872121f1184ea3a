package plugin

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/predictive"
)

// State is what a strategy remembers of a model between two decisions. The zero State has
// seen nothing.
type State struct {
	// Last is the clock of the last decision, in nanoseconds since 1970; 0: there was none.
	Last int64 `json:"last_ns,omitempty"`
	// WatchedFor is for how long the load was observed without a break, WatchedAt the clock of
	// the last decision that observed it; see decision.watchedForTheWindow.
	WatchedFor time.Duration `json:"watched_ns,omitempty"`
	WatchedAt  int64         `json:"watched_at_ns,omitempty"`
	// IdleFor is for how long no request was there.
	IdleFor time.Duration `json:"idle_ns,omitempty"`
	// Arrived is the gateways' counter of requests at the last decision that knew it.
	Arrived enginemetrics.Value `json:"arrived,omitzero"`
	// UnwatchedFor is for how long the model must not be scaled, without a break.
	UnwatchedFor time.Duration `json:"unwatched_ns,omitempty"`
	// Shrinks: the last decision of remuda-capacity wanted fewer replicas, ShrinksFor for how
	// long all of them did.
	Shrinks    bool          `json:"shrinks,omitempty"`
	ShrinksFor time.Duration `json:"shrinks_ns,omitempty"`
	// Tier is the tier of the last decision, and TierSince the clock when it became that, 0
	// where it was the first one. Only remuda-utilization's.
	Tier      string `json:"tier,omitempty"`
	TierSince int64  `json:"tier_since_ns,omitempty"`
	// Removals are what remuda-utilization took away in the last cycle, the oldest first. Before
	// is how many replicas there were when the last one was decided, 0 once it is known what came
	// of it.
	Removals []Removal `json:"removals,omitempty"`
	Before   int       `json:"before,omitempty"`
	// HPA is remuda-hpa's, Predictive remuda-predictive's.
	HPA        *hpa.State        `json:"hpa,omitempty"`
	Predictive *predictive.State `json:"predictive,omitempty"`
	// Held are the variants that had no place lately, by name.
	Held []Held `json:"held,omitempty"`
}

// Removal is a number of replicas that were taken away.
type Removal struct {
	At    int64 `json:"at_ns"` // the clock of the decision
	Count int   `json:"count"`
	// Shed: one was unhealthy.
	Shed bool `json:"shed,omitempty"`
}

// removed returns what was taken away in the last cycle, and how many of that were unhealthy. It
// forgets what is older, and what the last decision asked for and was not done.
func (s *State) removed(now int64, cycle time.Duration, current int) (count, shed int) {
	if n := len(s.Removals); n > 0 && s.Before > 0 {
		last := &s.Removals[n-1]
		if last.Count = min(last.Count, max(s.Before-current, 0)); last.Count == 0 {
			s.Removals = s.Removals[:n-1]
		}
	}
	s.Before = 0
	s.Removals = slices.DeleteFunc(s.Removals, func(r Removal) bool { return now-r.At >= int64(cycle) || r.At > now })
	if len(s.Removals) == 0 {
		s.Removals = nil // as JSON brings it back
	}
	for _, r := range s.Removals {
		count += r.Count
		if r.Shed {
			shed++
		}
	}
	return count, shed
}

// maxGap is the most time that one decision passes: nobody watched for longer, and a clock
// that jumped or a host that was suspended makes no idle time (see hpa.Behavior.MaxGapSeconds).
const maxGap = time.Minute

// pass moves the state's clock, and returns how much time passed since the last decision. After
// a break it ends what goes by the time that was watched.
func (c *Call) pass(s *State) time.Duration {
	gap := time.Duration(0)
	if s.Last != 0 && c.Now > s.Last {
		gap = time.Duration(c.Now - s.Last)
	}
	s.Last = c.Now
	if c.broke(gap) {
		s.beginAnew()
		return 0
	}
	return min(gap, maxGap)
}

// beginAnew ends what goes by the time that was watched.
func (s *State) beginAnew() { s.IdleFor, s.Shrinks, s.ShrinksFor, s.HPA = 0, false, 0, nil }

// Validate says what cannot be in a State that was read from outside.
func (s *State) Validate() error {
	var errs []error
	if s.WatchedFor < 0 {
		errs = append(errs, fmt.Errorf("watched_ns is %d: must be 0 or more", s.WatchedFor))
	}
	if s.IdleFor < 0 {
		errs = append(errs, fmt.Errorf("idle_ns is %d: must be 0 or more", s.IdleFor))
	}
	if s.ShrinksFor < 0 {
		errs = append(errs, fmt.Errorf("shrinks_ns is %d: must be 0 or more", s.ShrinksFor))
	}
	if s.UnwatchedFor < 0 {
		errs = append(errs, fmt.Errorf("unwatched_ns is %d: must be 0 or more", s.UnwatchedFor))
	}
	if s.HPA != nil {
		errs = append(errs, s.HPA.Validate())
	}
	if s.Predictive != nil {
		errs = append(errs, s.Predictive.Validate())
	}
	for i, r := range s.Removals {
		if r.Count < 1 {
			errs = append(errs, fmt.Errorf("removals[%d].count is %d: must be 1 or more", i, r.Count))
		}
	}
	errs = append(errs, s.validateHeld()...)
	return errors.Join(errs...)
}

// clone shares nothing with s.
func (s *State) clone() State {
	c := *s
	if s.HPA != nil {
		h := s.HPA.Clone()
		c.HPA = &h
	}
	if s.Predictive != nil {
		p := s.Predictive.Clone()
		c.Predictive = &p
	}
	c.Held, c.Removals = slices.Clone(s.Held), slices.Clone(s.Removals)
	return c
}
