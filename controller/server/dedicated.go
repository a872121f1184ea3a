package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/calendar"
	"remuda/controller/state"
	"remuda/internal/hclfault"
)

// sourceOf returns who has set the dedicated set: "operator", or "schedule" and the window of
// the calendar.
func sourceOf(d *state.Dedicated) string {
	if d.Window == "" {
		return "operator"
	}
	return "schedule:" + d.Window
}

// scheduled returns what the calendar has now; nil where there is no calendar.
func (s *Server) scheduled(v *state.View, ws memdb.WatchSet) (*api.DedicatedSchedule, error) {
	row := v.Schedule(ws)
	if row == nil {
		return nil, nil
	}
	c, err := calendar.Parse([]byte(row.File), "schedule.hcl")
	if err != nil {
		return nil, fmt.Errorf("cannot parse the schedule of the dedicated set (replace it with \"remuda dedicated schedule FILE\"): %w", err)
	}
	out := &api.DedicatedSchedule{File: row.File, Timezone: c.Zone().String(), ModifyIndex: row.ModifyIndex}
	out.Window, out.Models, out.Until = c.At(s.cfg.Now())
	return out, nil
}

func (s *Server) getDedicated(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableDedicated, state.TableSchedule)
	out, err := s.dedicated(v, ws)
	return answer{value: out, index: index}, err
}

func (s *Server) dedicated(v *state.View, ws memdb.WatchSet) (api.Dedicated, error) {
	out := api.Dedicated{Models: map[string]int{}}
	if d := v.Dedicated(ws); d != nil {
		maps.Copy(out.Models, d.Models)
		out.Source, out.Since, out.ModifyIndex = sourceOf(d), d.Since, d.ModifyIndex
	}
	schedule, err := s.scheduled(v, ws)
	if err != nil {
		return out, err
	}
	if schedule != nil {
		out.Window, out.Until = schedule.Window, schedule.Until
	}
	return out, nil
}

func (s *Server) setDedicated(rq *request, v *state.View) (answer, error) {
	var body api.DedicatedRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if len(body.Models) == 0 {
		return answer{}, badRequest("field \"Models\" is empty: must be replica counts by model, such as {\"llama-3-8b\": 2}; use DELETE to clear the set")
	}
	return s.dedicate(rq, v, body.Models)
}

func (s *Server) clearDedicated(rq *request, v *state.View) (answer, error) {
	if v.Dedicated(nil) == nil && v.Schedule(nil) == nil {
		out, err := s.dedicated(v, nil)
		return answer{value: out}, err
	}
	return s.dedicate(rq, v, nil)
}

func (s *Server) dedicate(rq *request, v *state.View, models map[string]int) (answer, error) {
	reason := fmt.Sprintf("%s cleared the dedicated set", by(rq.token))
	inputs := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		inputs[name] = strconv.Itoa(models[name])
	}
	if len(models) > 0 {
		reason = fmt.Sprintf("%s dedicated %s", by(rq.token), setText(models))
	}
	schedule, err := s.scheduled(v, nil)
	if err == nil && schedule != nil && !schedule.Until.IsZero() {
		reason += fmt.Sprintf("; in effect until the schedule's next change at %s", schedule.Until.UTC().Format(time.RFC3339))
	}
	if _, err := s.decide(rq, &state.SetDedicated{Models: models, Time: s.cfg.Now()},
		state.Decision{Kind: "dedicated", Reason: reason, Details: inputs}); err != nil {
		return answer{}, err
	}
	out, err := s.dedicated(s.cfg.Raft.Store().View(), nil)
	if err != nil {
		return answer{}, err
	}
	return answer{value: out}, nil
}

// setText is "4 of a, 1 of b".
func setText(models map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(models)) {
		parts = append(parts, fmt.Sprintf("%s of model %q", plural(models[name], "replica"), name))
	}
	return strings.Join(parts, ", ")
}

func (s *Server) getSchedule(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableSchedule)
	out, err := s.scheduled(v, ws)
	if out == nil {
		out = &api.DedicatedSchedule{}
	}
	return answer{value: out, index: index}, err
}

func (s *Server) setSchedule(rq *request, v *state.View) (answer, error) {
	var body api.ScheduleRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if body.File == "" {
		return answer{}, badRequest("field \"File\" is empty: must be a calendar; use DELETE to remove the schedule")
	}
	c, err := readCalendar(v, body.File, cmp.Or(body.Filename, "schedule.hcl"))
	if err != nil {
		return answer{}, err
	}
	window, models, until := c.At(s.cfg.Now())
	reason := fmt.Sprintf("%s set the schedule of the dedicated set: current window is %q, with %s", by(rq.token), window, cmp.Or(setText(models), "no models"))
	if !until.IsZero() {
		reason += ", until " + until.UTC().Format(time.RFC3339)
	}
	if _, err := s.decide(rq, &state.SetSchedule{File: body.File}, state.Decision{Kind: "schedule", Reason: reason, Details: map[string]string{"window": window}}); err != nil {
		return answer{}, err
	}
	out, err := s.scheduled(s.cfg.Raft.Store().View(), nil)
	switch {
	case err != nil:
		return answer{}, err
	case out == nil:
		return answer{}, conflict("the schedule was deleted in the meantime")
	}
	return answer{value: out}, nil
}

func (s *Server) deleteSchedule(rq *request, _ *state.View) (answer, error) {
	_, err := s.decide(rq, &state.SetSchedule{}, state.Decision{Kind: "schedule", Reason: by(rq.token) + " deleted the schedule of the dedicated set; the set is unchanged"})
	return answer{}, err
}

// readCalendar parses a calendar and holds it against the models that there are. Its error
// has every fault with its line.
func readCalendar(v *state.View, file, name string) (calendar.Calendar, error) {
	c, err := calendar.Parse([]byte(file), name)
	var faults hclfault.Faults
	if err != nil && !errors.As(err, &faults) {
		return c, badRequest("%v", err)
	}
	for _, u := range c.Uses() {
		at := fmt.Sprintf("window %q: dedicated: model %q", u.Window, u.Model)
		if u.Window == calendar.Default {
			at = fmt.Sprintf("default: dedicated: model %q", u.Model)
		}
		fault := hclfault.Fault{File: name, Line: u.Line, Column: u.Column}
		switch m := v.Model(nil, u.Model); {
		case m == nil:
			fault.Text = at + " does not exist: see \"remuda model list\""
		case u.Replicas > m.Max:
			fault.Text = fmt.Sprintf("%s is %d: must be at most %d, the model's max", at, u.Replicas, m.Max)
		default:
			continue
		}
		faults = append(faults, fault)
	}
	if len(faults) == 0 {
		return c, nil
	}
	return c, faultsError(faults)
}
