package predictive

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// StateVersion is that of State. A State of another version is not used.
const StateVersion = 3

// State is what is remembered of a model between calls. The zero State has seen nothing.
// It is plain data of at most some 20 KB as JSON.
type State struct {
	// Version is StateVersion once there was a call.
	Version int `json:"version"`
	// Seen: there was a call. Last is the caller's clock at it.
	Seen bool          `json:"seen"`
	Last time.Duration `json:"last_ns"`
	// Time is the policy's own clock: seconds that passed since the first call.
	Time float64 `json:"time"`
	// Arrived, Finished, ServedSeconds and Late are the counters as last seen; Counted that
	// the first three were, LateCounted that the last was.
	Arrived       float64 `json:"arrived"`
	Finished      float64 `json:"finished"`
	ServedSeconds float64 `json:"served_seconds"`
	Late          float64 `json:"late"`
	Counted       bool    `json:"counted"`
	LateCounted   bool    `json:"late_counted"`
	// Ended and Service are the requests that ended lately and their slot-seconds, both
	// forgotten alike.
	Ended   float64 `json:"ended"`
	Service float64 `json:"service"`
	// Guessed: no request has ended yet, so that nobody knows how long they take.
	Guessed bool `json:"guessed,omitempty"`
	// Demand is how many requests would be at work if no slot were ever missing.
	Demand float64 `json:"demand"`
	// Recent has the demand of the last minute. Base is the decaying peak of the need, Peak one that decays in a
	// week, and Active the policy's own time of the last request.
	Recent []mark  `json:"recent,omitempty"`
	Base   float64 `json:"base"`
	Peak   float64 `json:"peak"`
	Active float64 `json:"active"`
	// Woke is the policy's own time of the end of the last hour without requests.
	Woke float64 `json:"woke,omitempty"`
	// Prepared is when in an hour without requests the season last said that some are coming.
	Prepared float64 `json:"prepared,omitempty"`
	// Past has the moments whose outcome is not fully known yet.
	Past []moment `json:"past,omitempty"`
	// Soon is how demand turned out when a replica that was ordered began to serve, Later its
	// highest within the payback time.
	Soon  Errors `json:"soon"`
	Later Errors `json:"later"`
	// Total counts the requests that came in Seconds, both forgotten alike.
	Total   float64 `json:"total"`
	Seconds float64 `json:"seconds"`
	// Risk is the logarithm by which the risk that is taken differs from the goal's.
	Risk   float64 `json:"risk"`
	Season Season  `json:"season"`
}

// moment is what was known at a time, and what came of it.
type moment struct {
	At        float64 `json:"at"`
	Base      float64 `json:"base"`
	Condition int     `json:"condition"`
	// Need is the highest until the next moment.
	Need  float64 `json:"need"`
	Soon  bool    `json:"soon,omitempty"` // recorded
	Later bool    `json:"later,omitempty"`
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Recent = append([]mark(nil), s.Recent...)
	c.Past = append([]moment(nil), s.Past...)
	c.Soon, c.Later = s.Soon.clone(), s.Later.clone()
	c.Season.Means = append([]int32(nil), s.Season.Means...)
	return c
}

// maxMarks bounds what is taken from outside.
const maxMarks = 20_000

// Validate says whether a State that was read from outside can be. Whoever gets an error
// starts with a new one.
func (s *State) Validate() error {
	var errs []error
	number := func(field string, v float64) {
		if !(v >= 0) || math.IsInf(v, 1) {
			errs = append(errs, fmt.Errorf("state: %s is %v: must be finite and not negative", field, v))
		}
	}
	marks := func(field string, w []mark) {
		if len(w) > maxMarks {
			errs = append(errs, fmt.Errorf("state: %s has %d entries: must be at most %d", field, len(w), maxMarks))
			return
		}
		for i, m := range w {
			number(field, m.At)
			number(field, m.Value)
			if m.At > s.Time || i > 0 && m.At < w[i-1].At {
				errs = append(errs, fmt.Errorf("state: %s[%d] is at %v: must be in order and not after %v", field, i, m.At, s.Time))
			}
		}
	}
	if s.Seen && s.Version != StateVersion {
		errs = append(errs, fmt.Errorf("state: version is %d: must be %d", s.Version, StateVersion))
	}
	for _, f := range []struct {
		field string
		v     float64
	}{{"time", s.Time}, {"arrived", s.Arrived}, {"finished", s.Finished}, {"served_seconds", s.ServedSeconds}, {"late", s.Late},
		{"ended", s.Ended}, {"service", s.Service}, {"demand", s.Demand}, {"base", s.Base}, {"active", s.Active}, {"woke", s.Woke}, {"prepared", s.Prepared}, {"peak", s.Peak}, {"total", s.Total}, {"seconds", s.Seconds}} {
		number(f.field, f.v)
	}
	if !(math.Abs(s.Risk) <= mostRisk) {
		errs = append(errs, fmt.Errorf("state: risk is %v: must be -%v to %v", s.Risk, mostRisk, mostRisk))
	}
	marks("recent", s.Recent)
	if len(s.Past) > maxMarks {
		errs = append(errs, fmt.Errorf("state: past has %d entries: must be at most %d", len(s.Past), maxMarks))
	}
	for i, m := range s.Past {
		number("past.base", m.Base)
		number("past.need", m.Need)
		if m.Condition < 0 || m.Condition >= conditions || !(m.At >= 0 && m.At <= s.Time) || i > 0 && m.At < s.Past[i-1].At {
			errs = append(errs, fmt.Errorf("state: past[%d] is invalid", i))
		}
	}
	if !s.Soon.valid() || !s.Later.valid() {
		errs = append(errs, errors.New("state: soon or later is invalid"))
	}
	if !s.Season.valid() {
		errs = append(errs, errors.New("state: season is invalid"))
	}
	return errors.Join(errs...)
}
