package server

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"remuda/controller/api"
	"remuda/controller/state"
)

// historyStep is the time between two numbers of a model's history.
const historyStep = time.Minute

// history has the last hour of each model that exists, while this server leads: a few hundred bytes an
// hour and model.
type history struct {
	mu     sync.Mutex
	term   uint64 // of leadership
	end    time.Time
	models map[string]*modelHistory
}

// modelHistory is the last hour of a model.
type modelHistory struct {
	steps []historySample
	// counted is what gateways had counted when that was last known, nil if it never was. tokens is what
	// was counted on the day of the last step, at its end.
	counted *api.Counters
	tokens  int64
	// replicas are those of the last hour by their IDs, at most api.MaxReplicaHistories.
	replicas map[string]*api.ReplicaHistory
}

// historySample is one step.
type historySample struct {
	serving, inFlight, waiting int
	requests, refused, tokens  int64
	// errors are requests that failed; firstByte and firstToken are the mean times to them in milliseconds.
	errors, firstByte, firstToken int64
}

// keepHistory takes a sample at each step until ctx ends.
func (s *Server) keepHistory(ctx context.Context) {
	ticker := time.NewTicker(historyStep)
	defer ticker.Stop()
	for {
		s.sampleHistory()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sampleHistory ends a step. A server that does not lead has no history. The first sample of a model
// has no growth: what was counted before is not known to be of this step.
func (s *Server) sampleHistory() {
	now, _ := s.cfg.Raft.Leadership()
	h := &s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if !now.Leader {
		h.models = nil
		return
	}
	if h.models == nil || h.term != now.Term {
		h.models, h.term = map[string]*modelHistory{}, now.Term
		s.cfg.Loads.Begin(now.Term)
	}
	at, v := s.cfg.Now(), s.cfg.Raft.Store().View()
	before, today := state.UsageDay(h.end), state.UsageDay(at)
	tokens, ofToday := map[string]int64{}, map[string]int64{}
	for _, row := range v.UsageRows(nil, min(before, today)) {
		sum := row.Usage.PromptTokens + row.Usage.CompletionTokens
		tokens[row.Model] += sum
		if row.Day >= today {
			ofToday[row.Model] += sum
		}
	}
	queues, of := s.cfg.Loads.Queues(), map[string][]*state.Replica{}
	for _, r := range v.Replicas(nil) {
		of[r.Name.Model] = append(of[r.Name.Model], r)
	}
	kept := make(map[string]*modelHistory, len(h.models))
	for _, m := range v.Models(nil) {
		q := queues[m.Name]
		sample := historySample{serving: countsOf(of[m.Name]).Hot, inFlight: q.InFlight, waiting: q.Waiting}
		one := h.models[m.Name]
		if one == nil {
			one = &modelHistory{tokens: tokens[m.Name], replicas: map[string]*api.ReplicaHistory{}}
		}
		sample.tokens = max(tokens[m.Name]-one.tokens, 0)
		if counted, known := s.cfg.Loads.Count(m.Name); known {
			if one.counted != nil {
				sample.requests = max(counted.Finished-one.counted.Finished, 0)
				sample.refused = max(counted.Refused-one.counted.Refused, 0)
				sample.errors = max(counted.Errors-one.counted.Errors, 0)
				sample.firstByte = meanMillis(counted.FirstByteSeconds-one.counted.FirstByteSeconds, counted.Answers-one.counted.Answers)
				sample.firstToken = meanMillis(counted.FirstTokenSeconds-one.counted.FirstTokenSeconds, counted.FirstTokens-one.counted.FirstTokens)
			}
			one.counted = &counted
		}
		one.steps = append(one.steps, sample)
		one.steps = one.steps[max(len(one.steps)-api.HistorySteps, 0):]
		one.tokens = ofToday[m.Name]
		one.follow(of[m.Name], at)
		kept[m.Name] = one
	}
	h.models, h.end = kept, at
}

// meanMillis is the mean of n times in milliseconds, 0 if there are none.
func meanMillis(seconds float64, n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(max(seconds, 0) * 1000 / float64(n))
}

// maxStates is how many states of a replica are kept: one a step.
const maxStates = api.HistorySteps

// follow notes what the replicas are at the end of a step, and forgets what is more than an hour ago.
func (h *modelHistory) follow(replicas []*state.Replica, at time.Time) {
	there := map[string]bool{}
	for _, r := range replicas {
		id := r.Name.ID
		there[id] = true
		one := h.replicas[id]
		if one == nil {
			if len(h.replicas) == api.MaxReplicaHistories {
				continue
			}
			one = &api.ReplicaHistory{Replica: id, Variant: r.Name.Variant}
			h.replicas[id] = one
		}
		one.GoneAt = time.Time{}
		now := api.StateSince{State: timelineState(r), Since: r.Since}
		if n := len(one.States); n > 0 {
			last := one.States[n-1]
			if last.State == now.State {
				continue
			}
			// Clocks of two leaders may differ.
			now.Since = latest(now.Since, last.Since)
		}
		one.States = append(one.States, now)
		one.States = one.States[max(len(one.States)-maxStates, 0):]
	}
	oldest := at.Add(-api.HistorySteps * historyStep)
	for id, one := range h.replicas {
		if !there[id] && one.GoneAt.IsZero() {
			one.GoneAt = at
		}
		if !one.GoneAt.IsZero() && one.GoneAt.Before(oldest) {
			delete(h.replicas, id)
			continue
		}
		for len(one.States) > 1 && one.States[1].Since.Before(oldest) {
			one.States = one.States[1:]
		}
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func timelineState(r *state.Replica) string {
	switch r.Status {
	case state.StatusServing:
		return "HOT"
	case state.StatusWarm:
		return "WARM"
	case state.StatusCold:
		return "COLD"
	case state.StatusFailed:
		return "failed"
	}
	return "moving"
}

// of is the history of a model, nil where there is none.
func (h *history) of(model string) *api.History {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.models[model]
	if one == nil {
		return nil
	}
	out := &api.History{Step: api.Duration(historyStep), End: h.end}
	for _, s := range one.steps {
		out.Serving, out.InFlight, out.Waiting = append(out.Serving, s.serving), append(out.InFlight, s.inFlight), append(out.Waiting, s.waiting)
		out.Errors, out.FirstByteMillis = append(out.Errors, s.errors), append(out.FirstByteMillis, s.firstByte)
		out.FirstTokenMillis = append(out.FirstTokenMillis, s.firstToken)
		out.Requests, out.Refused, out.Tokens = append(out.Requests, s.requests), append(out.Refused, s.refused), append(out.Tokens, s.tokens)
	}
	for _, r := range one.replicas {
		copied := *r
		copied.States = slices.Clone(r.States)
		out.Replicas = append(out.Replicas, copied)
	}
	slices.SortFunc(out.Replicas, func(a, b api.ReplicaHistory) int {
		return cmp.Or(a.States[0].Since.Compare(b.States[0].Since), cmp.Compare(a.Replica, b.Replica))
	})
	return out
}

// fill gives a model of the overview its last hour.
func (h *history) fill(m *api.OverviewModel) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.models[m.Name]; one != nil {
		m.Serving = one.series(func(s historySample) int64 { return int64(s.serving) })
		m.InFlight = one.series(func(s historySample) int64 { return int64(s.inFlight) })
		m.Waiting = one.series(func(s historySample) int64 { return int64(s.waiting) })
		m.Tokens = one.series(func(s historySample) int64 { return s.tokens })
		m.Errors = one.series(func(s historySample) int64 { return s.errors })
		m.FirstTokenMillis = one.series(func(s historySample) int64 { return s.firstToken })
	}
}

// series is a number of each step, nil if all are 0.
func (h *modelHistory) series(number func(historySample) int64) []int64 {
	if !slices.ContainsFunc(h.steps, func(s historySample) bool { return number(s) > 0 }) {
		return nil
	}
	out := make([]int64, len(h.steps))
	for i, s := range h.steps {
		out[i] = number(s)
	}
	return out
}
