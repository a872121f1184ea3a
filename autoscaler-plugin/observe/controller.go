package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/controller/api"
)

// ControllerClient is the part of the controller's client that observing a model needs.
type ControllerClient interface {
	Model(ctx context.Context, name string, q api.QueryOptions) (api.ModelStatus, api.QueryMeta, error)
}

var _ ControllerClient = (*api.Client)(nil)

// controllerTimeout bounds one question to the controller: an election takes a second or two.
const controllerTimeout = 4 * time.Second

// controllerSource is a Controller. Its answers are the leader's own, as only the leader knows
// queues and what cannot be placed, and each is one consistent view of the model.
type controllerSource struct {
	client ControllerClient
	now    func() time.Time
}

// NewController returns a Controller that asks through a client. now is the clock; nil: time.Now.
func NewController(client ControllerClient, now func() time.Time) Controller {
	if now == nil {
		now = time.Now
	}
	return &controllerSource{client, now}
}

// Model implements Controller. The error wraps ErrUnknownModel if the controller has no model of
// that name.
func (s *controllerSource) Model(ctx context.Context, model string) (Managed, error) {
	ctx, cancel := context.WithTimeout(ctx, controllerTimeout)
	defer cancel()
	at := s.now() // an answer is as old as its question
	// A read that is not stale is answered by the leader.
	status, _, err := s.client.Model(ctx, model, api.QueryOptions{})
	var no *api.Error
	if errors.As(err, &no) && no.Code == api.CodeNotFound {
		err = fmt.Errorf("%w: %w", ErrUnknownModel, err)
	}
	if err != nil {
		return Managed{}, fmt.Errorf("query the controller for model %q: %w", model, err)
	}
	return managed(status, at.Round(0).UTC()), nil
}

// managed converts the controller's answer, which came at that time.
func managed(s api.ModelStatus, at time.Time) Managed {
	m := Managed{Snapshot: Snapshot{
		ModifyIndex: s.Model.ModifyIndex, Min: s.Model.Min, Max: s.Model.Max,
		Stopped: s.Model.Stopped, Management: s.Model.Management, Rollout: rolloutOf(s.Model.Rollouts), Degraded: degradedOf(s.Replicas),
		ScalingDisabled: s.Limits.ScalingDisabled, ScaleToZeroDelay: time.Duration(s.Limits.ScaleToZeroDelay),
	}}
	// What the dedicated set and the switches say binds a policy as the file does.
	m.Min = max(m.Min, s.Limits.Dedicated)
	if s.Limits.KeepLastReplica && s.Model.Target > 0 {
		m.Min = max(m.Min, 1)
	}
	if s.Limits.CapMaxReplicas != nil {
		m.Max = min(m.Max, *s.Limits.CapMaxReplicas)
	}
	m.Min = min(m.Min, m.Max)
	m.Goals.FirstToken.Within, m.Goals.InterToken.Within = time.Duration(s.Model.TTFTP95), time.Duration(s.Model.ITLP95)
	if s.Queue != nil {
		m.Queue = queueOf(s.Queue, at)
		if m.Goals.FirstToken.Within == 0 {
			m.Queue.Late = enginemetrics.Value{}
		}
		if m.Queue.Partial {
			m.Notes = append(m.Notes, "not every gateway has reported to the controller's new leader yet: there may be more requests")
		}
	}
	counts := maps.Clone(s.VariantCounts)
	slots, draining := map[string]int{}, map[string]int{}
	for _, v := range s.Model.Variants {
		slots[v.Name] = v.Slots
	}
	failure := map[string]string{}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if r.Status == "failed" && failure[r.Variant] == "" {
			failure[r.Variant] = r.LastError
		}
		phase := phaseOf(r)
		if phase == "" {
			continue
		}
		c := Copy{Replica: r.Name, Variant: r.Variant, Phase: phase, Slots: slots[r.Variant], Since: r.Since}
		switch {
		case r.Load != nil && !m.Queue.Partial:
			c.InFlight = enginemetrics.Of(float64(r.Load.InFlight))
		case s.Queue != nil && !m.Queue.Partial:
			c.InFlight = enginemetrics.Of(0) // gateways report, and none of them has anything at it
		}
		if phase == Draining {
			draining[r.Variant]++
		}
		m.Copies = append(m.Copies, c)
	}
	ordered := Counted(&s)
	add := func(v Variant) {
		c := counts[v.Variant]
		v.Hot, v.Starting, v.Failed, v.Warm, v.Draining = c.Hot, c.Starting, c.Failed, c.Warm, draining[v.Variant]
		v.Current = c.Hot + c.Starting + c.Failed
		all := v.Current
		if why, no := s.Unplaceable[v.Variant]; no {
			v.Unplaceable, v.Why = true, why
		}
		if c.Failed > 0 {
			note := fmt.Sprintf("variant %s: %d of %d replicas failed and wait for a retry: %s", v.Variant, c.Failed, all, failure[v.Variant])
			m.Notes = append(m.Notes, note)
			if c.Failed == all && !v.Unplaceable {
				// None of it comes up: growth goes elsewhere meanwhile.
				v.Unplaceable, v.Why = true, "all replicas failed: "+failure[v.Variant]
			}
		}
		if !s.Model.Stopped {
			count(&v, ordered[v.Variant])
		}
		if v.Unplaceable {
			m.Notes = append(m.Notes, fmt.Sprintf("variant %s cannot grow now: %s", v.Variant, v.Why))
		}
		m.Variants = append(m.Variants, v)
		delete(counts, v.Variant)
	}
	for _, v := range s.Model.Variants {
		out := Variant{Variant: v.Name, Accelerator: v.GPUModel, Dialect: v.Engine, Slots: v.Slots}
		out.ColdStart = time.Duration(s.VariantStarts[v.Name].Cold)
		out.Desired, _ = s.Model.Own(v.Name)
		if v.Cost > 0 {
			out.Cost = enginemetrics.Of(v.Cost)
		}
		if len(s.Model.Variants) == 1 {
			out.Desired = s.Model.Target
		}
		if s.Model.Stopped {
			out.Desired = 0
		}
		add(out)
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if c := counts[name]; c.Hot+c.Starting+c.Failed+c.Warm+draining[name] > 0 {
			add(Variant{Variant: name, Removed: true, Unplaceable: true, Why: "no longer in the model file"})
		}
	}
	m.keepExternal(s.Model.Desired)
	return m
}

// rolloutOf names the rollout that is on its way, empty for none.
func rolloutOf(all map[string]api.Rollout) string {
	for _, variant := range slices.Sorted(maps.Keys(all)) {
		if r := all[variant]; r.Status == "canary" || r.Status == "rolling" {
			return fmt.Sprintf("version %d of variant %s (%s)", r.Version, variant, r.Status)
		}
	}
	return ""
}

// degradedOf says that every serving replica is a pair without a standby, and why the first of them is. It is empty
// if one of them has a standby or is not a pair.
func degradedOf(replicas []api.Replica) string {
	first, n := "", 0
	for i := range replicas {
		r := &replicas[i]
		switch {
		case r.Status != "serving":
			continue
		case r.Pair == nil || r.Pair.Degraded == "":
			return ""
		case n == 0 || r.Name < first:
			first = r.Name
		}
		n++
	}
	for i := range replicas {
		if r := &replicas[i]; n > 0 && r.Name == first {
			return fmt.Sprintf("all %d replicas that serve are failover pairs without a standby, as %s: %s", n, r.Name, r.Pair.Degraded)
		}
	}
	return ""
}

// keepExternal makes bounds of the replicas that were ordered in external pools and count: an
// autoscaler must not order fewer.
func (m *Managed) keepExternal(desired []api.Share) {
	of, all, current := map[string]int{}, 0, 0
	for _, s := range desired {
		if s.Pool != "" {
			of[s.Variant] += s.Replicas
			all += s.Replicas
		}
	}
	for i := range m.Variants {
		v := &m.Variants[i]
		v.Min = min(of[v.Variant], v.Current)
		current += v.Current
	}
	m.Min = max(m.Min, min(all, current))
}

// queueOf converts what gateways have of the model.
func queueOf(q *api.Queue, at time.Time) Queue {
	out := Queue{Known: !q.Incomplete, Partial: q.Incomplete, Source: FromGateways, State: q.State, At: at,
		Waiting: q.Waiting, WaitingTokens: q.WaitingTokens, InFlight: q.InFlight, Served: enginemetrics.Of(q.CompletedPerSecond), Gateways: q.Gateways}
	if !q.OldestAt.IsZero() {
		out.Oldest = q.OldestAt.Round(0).UTC()
	}
	if c := q.Counters; c != nil && !q.Incomplete {
		out.Arrived, out.Finished, out.ServedSeconds = enginemetrics.Of(float64(c.Arrived)), enginemetrics.Of(float64(c.Finished)), enginemetrics.Of(c.ServedSeconds)
		out.Refused, out.Late = enginemetrics.Of(float64(c.Refused)), enginemetrics.Of(float64(c.Late))
	}
	return out
}

// count makes a variant count as many replicas as were ordered: what is not placed yet is on
// its way, and what is to go and does not drain yet drains. Those that serve go last.
func count(v *Variant, ordered int) {
	v.Starting += max(ordered-v.Current, 0)
	for _, of := range []*int{&v.Failed, &v.Starting, &v.Hot} {
		less := min(max(v.Current-ordered, 0), *of)
		*of -= less
		v.Draining += less
		v.Current -= less
	}
	v.Current = ordered
}

// phaseOf is what a replica does, empty where it neither serves nor is on its way there nor
// drains.
func phaseOf(r *api.Replica) Phase {
	switch r.Status {
	case "draining":
		return Draining
	case "serving":
		return Hot
	case "placed", "starting", "waking":
		return Starting
	}
	return ""
}
