package hpa

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// State is what a scaler remembers of one target between calls. The zero State has seen
// nothing. It is plain data: kept as JSON, it survives a restart, and as it holds ages
// and not times, it survives a clock that is another afterwards.
type State struct {
	// Seen: there was a call.
	Seen bool `json:"seen"`
	// Last is the caller's clock at the last call, in nanoseconds.
	Last time.Duration `json:"last_ns"`
	// Recommendations are those that a window can still need, the oldest first. One that
	// lies between later ones can never be a window's smallest or largest and is left out.
	Recommendations []Recommended `json:"recommendations,omitempty"`
	// Events are our own changes of the count that a period can still need, the oldest first.
	Events []Event `json:"events,omitempty"`
	// Change is what the last call changed: replicas added, negative for removed ones. From is
	// how many there were.
	Change int `json:"change,omitempty"`
	From   int `json:"from,omitempty"`
	// Zeroed: the count was brought to 0 by us and not seen above 0 since.
	Zeroed bool `json:"zeroed,omitempty"`

	// Started: a replica was ready since the count was last 0 (Backlog's slow start).
	Started bool `json:"started,omitempty"`
	// Idle: no request was there at the last call that knew (Backlog's scale to zero).
	Idle bool `json:"idle,omitempty"`
	// IdleFor is for how long that has been so, in nanoseconds.
	IdleFor time.Duration `json:"idle_ns,omitempty"`
	// Requests is the counter of requests as it was last seen.
	Requests int64 `json:"requests,omitempty"`
}

// Recommended is a count that was recommended.
type Recommended struct {
	Replicas int `json:"replicas"`
	// Age is how long ago it was, in nanoseconds.
	Age time.Duration `json:"age_ns"`
}

// Event is a change that we made.
type Event struct {
	// Change is how many replicas were added, negative for removed ones.
	Change int `json:"change"`
	// Age is how long ago it was, in nanoseconds.
	Age time.Duration `json:"age_ns"`
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Recommendations = slices.Clone(s.Recommendations)
	c.Events = slices.Clone(s.Events)
	return c
}

// Validate names what cannot be in a State that was read from outside. Whoever gets an
// error starts with a new State: the current count then counts as a recommendation, so
// that nothing is scaled down before the window has passed.
func (s *State) Validate() error {
	var errs []error
	for i, r := range s.Recommendations {
		errs = append(errs, within(fmt.Sprintf("recommendations[%d].replicas", i), r.Replicas, 0, MaxCount))
		if r.Age < 0 || i > 0 && r.Age > s.Recommendations[i-1].Age {
			errs = append(errs, fmt.Errorf("recommendations[%d].age_ns is %d: must be 0 or more, the oldest first", i, r.Age))
		}
	}
	for i, e := range s.Events {
		errs = append(errs, within(fmt.Sprintf("events[%d].change", i), e.Change, -MaxCount, MaxCount))
		if e.Age < 0 || i > 0 && e.Age > s.Events[i-1].Age {
			errs = append(errs, fmt.Errorf("events[%d].age_ns is %d: must be 0 or more, the oldest first", i, e.Age))
		}
	}
	if s.IdleFor < 0 {
		errs = append(errs, fmt.Errorf("idle_ns is %d: must be 0 or more", s.IdleFor))
	}
	errs = append(errs, within("change", s.Change, -MaxCount, MaxCount), within("from", s.From, 0, MaxCount))
	return errors.Join(errs...)
}

// Done reports how many replicas there are after the last call's answer was carried out, or a
// part of it, so that only what was done uses up the budget of a period. A change beyond the
// answer, or against it, was made by others. It is for before the next call.
func (s *State) Done(current int) {
	done := min(max(count(current)-s.From, min(s.Change, 0)), max(s.Change, 0))
	s.note(done - s.Change)
	if s.Change < 0 && done != s.Change {
		s.Zeroed = false
	}
	s.Change = 0
}

// pass lets the time since the last call pass, which is 0 where the clock went back, and
// returns it.
func (s *State) pass(now time.Duration, maxGapSeconds int) time.Duration {
	elapsed := time.Duration(0)
	if s.Seen && now > s.Last {
		// Two's complement: the difference is right even where it does not fit a Duration.
		elapsed = time.Duration(min(uint64(now)-uint64(s.Last), math.MaxInt64))
	}
	if gap := seconds(maxGapSeconds); gap > 0 {
		elapsed = min(elapsed, gap)
	}
	s.Last = now
	s.Change = 0
	for i := range s.Recommendations {
		s.Recommendations[i].Age = older(s.Recommendations[i].Age, elapsed)
	}
	for i := range s.Events {
		s.Events[i].Age = older(s.Events[i].Age, elapsed)
	}
	return elapsed
}

// older adds to an age, which ends at the largest one.
func older(age, by time.Duration) time.Duration {
	if age > math.MaxInt64-by {
		return math.MaxInt64
	}
	return age + by
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// see stores the current count as a recommendation at first sight (rule 4).
func (s *State) see(current int) {
	if !s.Seen {
		s.Seen = true
		s.recommend(current, math.MaxInt64)
	}
}

// recommend stores a recommendation and forgets those that no window of that length, and
// none that is shorter, can need again.
func (s *State) recommend(replicas int, window time.Duration) {
	low, high := replicas, replicas
	kept := len(s.Recommendations) // where the kept ones begin, moved to the end
	for i := len(s.Recommendations) - 1; i >= 0; i-- {
		r := s.Recommendations[i]
		if r.Age >= window || r.Replicas >= low && r.Replicas <= high {
			continue
		}
		low, high = min(low, r.Replicas), max(high, r.Replicas)
		kept--
		s.Recommendations[kept] = r
	}
	n := copy(s.Recommendations, s.Recommendations[kept:])
	s.Recommendations = append(s.Recommendations[:n], Recommended{Replicas: replicas})
}

// act stores the change that a call makes, and forgets the events that no period of that
// length can need again.
func (s *State) act(d *Decision, period time.Duration) {
	change := d.Replicas - d.Current
	s.Change, s.From = change, d.Current
	if d.Current > 0 {
		s.Zeroed = d.Replicas == 0
	}
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool { return e.Age >= period })
	s.note(change)
}

// note adds a change that was made now to the events. Changes of one moment are one event.
func (s *State) note(change int) {
	if n := len(s.Events); n > 0 && s.Events[n-1].Age == 0 && abs(s.Events[n-1].Change+change) <= MaxCount {
		if s.Events[n-1].Change += change; s.Events[n-1].Change == 0 {
			s.Events = s.Events[:n-1]
		}
	} else if change != 0 {
		s.Events = append(s.Events, Event{Change: change})
	}
	if len(s.Events) == 0 {
		s.Events = nil // as JSON brings it back
	}
}

func abs(n int) int { return max(n, -n) }

// changed is what we added in the period, less what we removed.
func (s *State) changed(period time.Duration) int {
	sum := 0
	for _, e := range s.Events {
		if e.Age < period {
			sum += e.Change
		}
	}
	return sum
}
