package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"remuda/controller/calendar"
	"remuda/controller/state"
)

// parsedCalendar is what calendar.Parse returns for a file.
type parsedCalendar struct {
	file     string
	calendar calendar.Calendar
	err      error
}

// parseCalendar parses a file, once for all plans until it changes.
func (w *world) parseCalendar(file string) (calendar.Calendar, error) {
	if w.schedule == nil || w.schedule.file != file {
		c, err := calendar.Parse([]byte(file), "schedule")
		w.schedule = &parsedCalendar{file, c, err}
	}
	return w.schedule.calendar, w.schedule.err
}

// calendar changes the dedicated set by the time of day. A set that an operator has set since
// holds until the calendar's next change.
func (b *planBuilder) calendar() {
	s := b.view.Schedule(nil)
	if s == nil {
		return
	}
	c, err := b.parseCalendar(s.File)
	if err != nil {
		b.recordOnce(KindDedicated, "", "", fmt.Sprintf("cannot parse the schedule of the dedicated set, which stays unchanged: %s", err), inputs{"about": "schedule"})
		return
	}
	window, models, until := c.At(b.obs.Now)
	b.replanAt(until)
	want, left := map[string]int{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := b.byName[name]
		if m == nil || m.Stopped || m.Max < 1 {
			left = append(left, name)
			continue
		}
		want[name] = min(max(models[name], 1), m.Max)
	}
	was := b.view.Dedicated(nil)
	if was != nil {
		if was.Window == window && maps.Equal(was.Models, want) {
			return
		}
		if was.Window == "" && was.ModifyIndex > s.ModifyIndex {
			if _, _, change := c.At(was.Since); change.IsZero() || change.After(b.obs.Now) {
				return
			}
		}
	}
	b.plan.Dedicated = &state.SetDedicated{Models: want, Window: window}
	in := inputs{"window": window}
	for name, n := range want {
		in["model "+name] = strconv.Itoa(n)
	}
	why := fmt.Sprintf("schedule window %s began: %d models are dedicated", window, len(want))
	if len(left) > 0 {
		why += fmt.Sprintf("; not dedicated (missing or stopped): %s", strings.Join(left, ", "))
	}
	if !until.IsZero() {
		in["until"] = until.UTC().Format("2006-01-02T15:04:05Z")
	}
	b.record(KindDedicated, "", "", why, in)
}

// released reports whether the member served while its model was in the dedicated set, which it
// has left by the last change of the set.
func (b *planBuilder) released(m *model, r *member) bool {
	set := b.view.Dedicated(nil)
	return set != nil && slices.Contains(set.Released, m.Name) && !r.Since.After(set.Since)
}
