package calendar

import (
	"iter"
	"maps"
	"slices"
	"time"
	_ "time/tzdata" // the controller may run where there is no database
)

// Default is what At calls the time that no window covers.
const Default = "default"

// Horizon is how far At looks for the next change.
const Horizon = 400 * day

const day = 24 * time.Hour

// Calendar is a calendar that was read. It never changes. The zero Calendar has no
// windows: nothing is dedicated at any time.
type Calendar struct {
	zone     *time.Location
	windows  []window
	fallback map[string]int
	uses     []Use
}

// Use is a model that the calendar names, and where.
type Use struct {
	// Window is its name, Default for the default.
	Window   string
	Model    string
	Replicas int
	// Line and Column are of the model's name in the file; both count from 1.
	Line, Column int
}

// window is one window. A day is in it where it is in days (nil: all) and in dates (nil:
// all).
type window struct {
	name     string
	days     *[7]bool
	dates    []dates
	from, to time.Duration // of the wall clock, since midnight; to is after from, and may be of the next day
	models   map[string]int
}

// Uses returns every model that the calendar names, in the order of the file.
func (c Calendar) Uses() []Use { return slices.Clone(c.uses) }

// Zone returns the calendar's timezone.
func (c Calendar) Zone() *time.Location {
	if c.zone == nil {
		return time.UTC
	}
	return c.zone
}

// At returns what holds at t: the name of the window, or Default, and how many replicas of
// which models are dedicated; the map is the caller's. until is when another window has its
// turn: nothing changes before it. It is zero where nothing changes within Horizon.
func (c Calendar) At(t time.Time) (window string, models map[string]int, until time.Time) {
	now := c.winner(t)
	window, models = Default, c.fallback
	if now >= 0 {
		window, models = c.windows[now].name, c.windows[now].models
	}
	for next := range c.changes(t, now) {
		if c.winner(next) != now {
			until = next
			break
		}
	}
	return window, maps.Clone(models), until
}

// winner returns the window that has t, -1 where none has.
func (c Calendar) winner(t time.Time) int {
	today := dateOf(t, c.Zone())
	for i := range c.windows {
		w := &c.windows[i]
		// The wall clock's day may differ by one from that of a boundary, where the clock is
		// set back over midnight; a window may have begun the day before; and a day may be
		// left out altogether, as Samoa did.
		for d := today.plus(-3); !today.plus(1).before(d); d = d.plus(1) {
			if !w.begins(d) {
				continue
			}
			if from, to := c.span(w, d); !t.Before(from) && t.Before(to) {
				return i
			}
		}
	}
	return -1
}

// changes yields, in order, every moment after t and up to the horizon at which the window
// that has t may lose its turn: it ends, or one that goes before it begins. With winner -1
// every window goes before it.
func (c Calendar) changes(t time.Time, winner int) iter.Seq[time.Time] {
	before := c.windows
	if winner >= 0 {
		before = c.windows[:winner+1]
	}
	return func(yield func(time.Time) bool) {
		end, last := t.Add(Horizon), t
		var waiting []time.Time // boundaries of the days so far
		for d := dateOf(t, c.Zone()).plus(-3); ; d = d.plus(1) {
			// No boundary of this day or a later one is before its start.
			start := boundary(d, 0, c.Zone())
			slices.SortFunc(waiting, time.Time.Compare)
			for len(waiting) > 0 && waiting[0].Before(start) && waiting[0].Before(end) {
				at := waiting[0]
				waiting = waiting[1:]
				if at.After(last) {
					last = at
					if !yield(at) {
						return
					}
				}
			}
			if !start.Before(end) {
				return
			}
			for i := range before {
				if !before[i].begins(d) {
					continue
				}
				if from, to := c.span(&before[i], d); i == winner {
					waiting = append(waiting, to)
				} else {
					waiting = append(waiting, from)
				}
			}
		}
	}
}

// begins tells whether the window has an occurrence on that day.
func (w *window) begins(d date) bool {
	if w.days != nil && !w.days[d.weekday()] {
		return false
	}
	return len(w.dates) == 0 || slices.ContainsFunc(w.dates, func(r dates) bool { return r.has(d) })
}

// span returns from when to when the window's occurrence on that day is.
func (c Calendar) span(w *window, d date) (from, to time.Time) {
	return boundary(d, w.from, c.Zone()), boundary(d, w.to, c.Zone())
}

// boundary returns the first moment at which the wall clock shows that time of that day,
// or a later one.
func boundary(d date, clock time.Duration, zone *time.Location) time.Time {
	wanted := d.midnightUTC().Add(clock)
	// No timezone is, or was, this far from UTC.
	at := wanted.Add(-30 * time.Hour).In(zone)
	for {
		_, offset := at.Zone()
		_, end := at.ZoneBounds()
		reached := wanted.Add(-time.Duration(offset) * time.Second)
		if reached.Before(at) {
			reached = at
		}
		if end.IsZero() || reached.Before(end) {
			return reached.In(zone)
		}
		at = end.In(zone)
	}
}
