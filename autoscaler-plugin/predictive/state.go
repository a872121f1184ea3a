package predictive

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// State is what is remembered of a model between calls. The zero State has seen nothing.
// It is plain data of at most some 20 KB as JSON.
type State struct {
	// Seen: there was a call. Last is the caller's clock at it.
	Seen bool          `json:"seen"`
	Last time.Duration `json:"last_ns"`
	// Time is the policy's own clock: seconds that passed since the first call.
	Time float64 `json:"time"`
	// Arrived, Finished and ServedSeconds are the counters as last seen; Counted that they
	// were.
	Arrived       float64 `json:"arrived"`
	Finished      float64 `json:"finished"`
	ServedSeconds float64 `json:"served_seconds"`
	Counted       bool    `json:"counted"`
	// Ended and Service are the requests that ended lately and their slot-seconds, both
	// forgotten alike.
	Ended   float64 `json:"ended"`
	Service float64 `json:"service"`
	// Guessed: Recent has requests in the system for want of counters.
	Guessed bool `json:"guessed,omitempty"`
	// Recent has the load of the last minute, Far its peaks.
	Recent []Sample `json:"recent,omitempty"`
	Far    []mark   `json:"far,omitempty"`
	// Shadows is one for each level of the ladder; Total the slot-seconds of all load that
	// they remember.
	Shadows []Shadow `json:"shadows,omitempty"`
	Total   float64  `json:"total"`
	Season  Season   `json:"season"`
}

// Sample is the arrival rate (1/s) over some seconds until Time.
type Sample struct {
	At      float64 `json:"at"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
}

// Shadow is a level of caution that is played along.
type Shadow struct {
	// Hold has the needs (slots) that are held, Wishes those of the last cold start: the
	// least of them is what serves.
	Hold   []mark `json:"hold,omitempty"`
	Wishes []mark `json:"wishes,omitempty"`
	// Backlog is what waits and Late what came while that was too long, in slot-seconds.
	Backlog float64 `json:"backlog"`
	Late    float64 `json:"late"`
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() State {
	c := *s
	c.Recent = append([]Sample(nil), s.Recent...)
	c.Far = append([]mark(nil), s.Far...)
	c.Shadows = append([]Shadow(nil), s.Shadows...)
	for i := range c.Shadows {
		c.Shadows[i].Hold = append([]mark(nil), s.Shadows[i].Hold...)
		c.Shadows[i].Wishes = append([]mark(nil), s.Shadows[i].Wishes...)
	}
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
	for _, f := range []struct {
		field string
		v     float64
	}{{"time", s.Time}, {"arrived", s.Arrived}, {"finished", s.Finished}, {"served_seconds", s.ServedSeconds},
		{"ended", s.Ended}, {"service", s.Service}, {"total", s.Total}} {
		number(f.field, f.v)
	}
	marks("far", s.Far)
	if len(s.Recent) > maxMarks || len(s.Shadows) > MaxLadder {
		errs = append(errs, fmt.Errorf("state: recent has %d and shadows %d entries: must be at most %d and %d", len(s.Recent), len(s.Shadows), maxMarks, MaxLadder))
	}
	for _, r := range s.Recent {
		number("recent.at", r.At)
		number("recent.seconds", r.Seconds)
		number("recent.rate", r.Rate)
	}
	for i := range s.Shadows {
		number("shadows.backlog", s.Shadows[i].Backlog)
		number("shadows.late", s.Shadows[i].Late)
		marks("shadows.hold", s.Shadows[i].Hold)
		marks("shadows.wishes", s.Shadows[i].Wishes)
	}
	if !s.Season.valid() {
		errs = append(errs, errors.New("state: season is invalid"))
	}
	return errors.Join(errs...)
}
