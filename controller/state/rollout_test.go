package state_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// defined is the model m whose variant v has that hash, and which changes with it.
func defined(hash string, edit ...func(*state.Model)) state.Model {
	return model("m", append([]func(*state.Model){func(m *state.Model) {
		m.Hash, m.Variants[0].Hash, m.Variants[0].Job = hash, hash, "job of "+hash
	}}, edit...)...)
}

func (l *log) model(name string) *state.Model {
	m := l.store.View().Model(nil, name)
	require.NotNil(l.t, m)
	return m
}

// upsert changes a model that exists, or not.
func (l *log) upsert(m state.Model, at time.Time) state.Result {
	c := &state.UpsertModel{Model: m, Time: at}
	if old := l.store.View().Model(nil, m.Name); old != nil {
		c.ModifyIndex = old.ModifyIndex
	}
	return l.apply(c)
}

func (l *log) rollout(status state.RolloutStatus, reason string) state.Result {
	return l.apply(&state.Plan{ID: "r", Time: epoch, Rollouts: []state.SetRollout{
		{Model: "m", Variant: "v", NewHash: l.model("m").Rollouts["v"].NewHash, Status: status, Reason: reason},
	}})
}

// rolling is a store with a replica of vh1 and the rollout of vh2 in that status.
func rolling(t *testing.T, status state.RolloutStatus) *log {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	l.must(l.plan(place("m", "1", "n", 0, 0, 1)))
	require.Nil(t, l.upsert(defined("vh2"), epoch).Err)
	if status != state.RolloutCanary {
		require.Nil(t, l.rollout(status, "because").Err)
	}
	require.Equal(t, status, l.model("m").Rollouts["v"].Status)
	return l
}

func TestAChangedVariantIsRolledOut(t *testing.T) {
	type want struct {
		status   state.RolloutStatus // empty: there is no rollout
		old, new string
	}
	for _, tt := range []struct {
		name   string
		status state.RolloutStatus // of the rollout from vh1 to vh2 that is going on
		to     string
		want   want
	}{
		{"on trial, nothing new", state.RolloutCanary, "vh2", want{state.RolloutCanary, "vh1", "vh2"}},
		{"on trial, back", state.RolloutCanary, "vh1", want{}},
		{"on trial, another", state.RolloutCanary, "vh3", want{state.RolloutCanary, "vh1", "vh3"}},
		{"rolled back, nothing new", state.RolloutRolledBack, "vh2", want{state.RolloutRolledBack, "vh1", "vh2"}},
		{"rolled back, back", state.RolloutRolledBack, "vh1", want{}},
		{"rolled back, another", state.RolloutRolledBack, "vh3", want{state.RolloutCanary, "vh1", "vh3"}},
		{"rolling, nothing new", state.RolloutRolling, "vh2", want{state.RolloutRolling, "vh1", "vh2"}},
		{"rolling, another", state.RolloutRolling, "vh3", want{state.RolloutCanary, "vh2", "vh3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := rolling(t, tt.status)
			before := l.model("m").Rollouts["v"]
			later := epoch.Add(time.Hour)
			// The bounds change, so that the model's own hash does in any case.
			require.Nil(t, l.upsert(defined(tt.to, func(m *state.Model) { m.Hash, m.Max = "another", 50 }), later).Err)
			m := l.model("m")
			require.Equal(t, 50, m.Max)
			got, ok := m.Rollouts["v"]
			require.Equal(t, tt.want, want{got.Status, got.Old.Hash, got.NewHash})
			require.Equal(t, tt.want != want{}, ok)
			switch {
			case !ok:
				require.Nil(t, m.Rollouts)
			case tt.to == "vh2":
				require.Equal(t, before, got, "as it was")
			default:
				require.Equal(t, later, got.Since)
				require.Empty(t, got.Reason)
				require.Equal(t, "job of "+tt.want.old, got.Old.Job)
			}
		})
	}
}

// TestBackInTheMiddleOfARollout has replicas of both definitions: those of the newer
// one are replaced by the older one, which needs no trial.
func TestBackInTheMiddleOfARollout(t *testing.T) {
	l := rolling(t, state.RolloutRolling)
	p := place("m", "2", "n", 1, 0, 1)
	p.VariantHash = "vh2"
	l.must(l.plan(p))
	require.Nil(t, l.upsert(defined("vh1"), epoch).Err)
	r := l.model("m").Rollouts["v"]
	require.Equal(t, state.RolloutRolling, r.Status)
	require.Equal(t, "vh2", r.Old.Hash)
	require.Equal(t, "vh1", r.NewHash)
	require.Equal(t, "job of vh2", l.model("m").VariantOf(l.replica(name("m", "2"))).Job)

	// Without a replica of the newer one there is nothing to replace.
	l = rolling(t, state.RolloutRolling)
	require.Nil(t, l.upsert(defined("vh1"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts)
}

func TestNothingIsRolledOutWithoutReplicas(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1", func(m *state.Model) {
		m.Spread = map[string]int{"v": 1}
		m.Rollouts = map[string]state.Rollout{"v": {Status: state.RolloutCanary}}
	})}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	require.Nil(t, l.model("m").Spread, "a caller's is not looked at")
	require.Nil(t, l.model("m").Rollouts)

	require.Nil(t, l.upsert(defined("vh2"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts, "there is no replica")

	p := place("m", "1", "n", 0, 0, 1)
	p.VariantHash = "vh2"
	l.must(l.plan(p))
	l.must(l.move(name("m", "1"), state.EventStop, state.GoalGone))
	require.Nil(t, l.upsert(defined("vh3"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts, "the only replica is on its way out")
	require.Nil(t, l.model("m").VariantOf(l.replica(name("m", "1"))), "and made from nothing that is known")
}

func TestAVariantThatGoesTakesItsRolloutAndNumberAlong(t *testing.T) {
	l := rolling(t, state.RolloutCanary)
	l.must(&state.SetScale{Model: "m", Variant: "v", Replicas: ptr(2), Origin: state.OriginOperator})
	require.Equal(t, map[string]int{"v": 2}, l.model("m").Spread)
	require.Nil(t, l.upsert(defined("vh2", func(m *state.Model) { m.Hash, m.Variants[0].Name = "w only", "w" }), epoch).Err)
	m := l.model("m")
	require.Nil(t, m.Rollouts)
	require.Nil(t, m.Spread)
	require.Equal(t, 2, m.Replicas)
	require.Nil(t, m.Variant("v"))
	require.Nil(t, m.VariantOf(l.replica(name("m", "1"))), "the replica is still there")

	// It comes back as something else: that is no rollout, the old definition is lost.
	require.Nil(t, l.upsert(defined("vh3"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts)
}

func TestSetRollout(t *testing.T) {
	var none state.RolloutStatus
	statuses := []state.RolloutStatus{state.RolloutCanary, state.RolloutRolling, state.RolloutRolledBack, none}
	possible := map[state.RolloutStatus][]state.RolloutStatus{
		state.RolloutCanary:     statuses,
		state.RolloutRolling:    {state.RolloutRolling, state.RolloutRolledBack, none},
		state.RolloutRolledBack: {state.RolloutRolledBack, none},
	}
	for from, ways := range possible {
		for _, to := range statuses {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				l := rolling(t, from)
				before := l.model("m")
				l.apply(&state.SetSwitch{Name: "time", Value: "passes"})
				res := l.apply(&state.Plan{ID: "r", Index: l.index, Time: epoch.Add(time.Hour), Rollouts: []state.SetRollout{
					{Model: "m", Variant: "v", NewHash: "vh2", Status: to, Reason: "new reason"},
				}})
				m := l.model("m")
				got, ok := m.Rollouts["v"]
				switch {
				case !contains(ways, to):
					require.ErrorIs(t, res.Err, state.ErrConflict)
					require.Equal(t, before, m)
					return
				case to == none:
					require.False(t, ok)
					require.Nil(t, m.Rollouts)
				default:
					want := before.Rollouts["v"]
					want.Status, want.Reason = to, "new reason"
					if to != from {
						want.Since = epoch.Add(time.Hour)
					}
					require.Equal(t, want, got)
				}
				require.Nil(t, res.Err)
				require.Equal(t, l.index, m.ModifyIndex)
				require.Equal(t, from, before.Rollouts["v"].Status, "rows of older views do not change")
			})
		}
	}
}

func contains(all []state.RolloutStatus, s state.RolloutStatus) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

func TestSetRolloutIsOfTheRolloutThatItNames(t *testing.T) {
	good := state.SetRollout{Model: "m", Variant: "v", NewHash: "vh2", Status: state.RolloutRolling}
	for _, tt := range []struct {
		name  string
		edit  func(*state.SetRollout)
		index func(uint64) uint64
		want  error
		text  string
	}{
		{"unknown model", func(c *state.SetRollout) { c.Model = "x" }, nil, state.ErrNotFound, `"x"`},
		{"unknown variant", func(c *state.SetRollout) { c.Variant = "x" }, nil, state.ErrConflict, "not being rolled out"},
		{"another hash", func(c *state.SetRollout) { c.NewHash = "vh3" }, nil, state.ErrConflict, `to "vh2", not to "vh3"`},
		{"no such status", func(c *state.SetRollout) { c.Status = "paused" }, nil, state.ErrBadRequest, `rollout status is "paused": must be canary, rolling, rolled_back or empty`},
		{"changed since", nil, func(i uint64) uint64 { return i - 1 }, state.ErrConflict, "after the plan was made"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := rolling(t, state.RolloutCanary)
			c := good
			if tt.edit != nil {
				tt.edit(&c)
			}
			p := l.plan(place("m", "2", "n", 1, 0, 1))
			p.Rollouts = []state.SetRollout{c}
			if tt.index != nil {
				p.Index, p.Place = tt.index(p.Index), nil
			}
			res := l.apply(p)
			require.ErrorIs(t, res.Err, tt.want)
			require.ErrorContains(t, res.Err, tt.text)
			require.Equal(t, state.RolloutCanary, l.model("m").Rollouts["v"].Status)
			require.Len(t, l.store.View().Replicas(nil), 1, "the plan is refused as a whole")
		})
	}
	// The same again is no change; and a plan that places may move the rollout on.
	l := rolling(t, state.RolloutRolling)
	require.False(t, l.rollout(state.RolloutRolling, "because").Changed)
	p := l.plan(place("m", "2", "n", 1, 0, 1))
	p.Rollouts = []state.SetRollout{{Model: "m", Variant: "v", NewHash: "vh2"}}
	l.must(p)
	require.Nil(t, l.model("m").Rollouts)
}

// TestTwoRolloutsInOnePlan moves those of two variants of one model on.
func TestTwoRolloutsInOnePlan(t *testing.T) {
	two := func(hash string) state.Model {
		return defined(hash, func(m *state.Model) {
			w := m.Variants[0]
			w.Name, w.Hash = "w", "w"+hash
			m.Variants = append(m.Variants, w)
		})
	}
	l := newLog(t)
	l.must(&state.UpsertModel{Model: two("vh1")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	p := place("m", "2", "n", 1, 0, 1)
	p.Name.Variant, p.VariantHash = "w", "wvh1"
	l.must(l.plan(place("m", "1", "n", 0, 0, 1), p))
	require.Nil(t, l.upsert(two("vh2"), epoch).Err)
	require.Len(t, l.model("m").Rollouts, 2)
	l.must(&state.Plan{ID: "r", Index: l.index, Time: epoch, Rollouts: []state.SetRollout{
		{Model: "m", Variant: "v", NewHash: "vh2", Status: state.RolloutRolling},
		{Model: "m", Variant: "w", NewHash: "wvh2"},
	}})
	rollouts := l.model("m").Rollouts
	require.Len(t, rollouts, 1)
	require.Equal(t, state.RolloutRolling, rollouts["v"].Status)
}

// TestReplicasOfTheOldDefinition are placed and known as it says, pairs or not.
func TestReplicasOfTheOldDefinition(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	l.must(l.plan(place("m", "1", "n", 0, 0, 1)))
	require.Nil(t, l.upsert(defined("vh2", func(m *state.Model) { m.Failover = true }), epoch).Err)
	m := l.model("m")
	require.False(t, m.Rollouts["v"].Failover)
	require.Equal(t, "job of vh1", m.VariantOf(l.replica(name("m", "1"))).Job)
	require.False(t, m.FailoverOf("v", "vh1"))
	require.True(t, m.FailoverOf("v", "vh2"))
	require.True(t, m.FailoverOf("v", "vh9"), "one that nobody knows is as the model")

	single, pair := place("m", "2", "n", 1, 0, 1), place("m", "3", "n", 1, 0, 1)
	pair.Placement.Seats = append(pair.Placement.Seats, "n-GPU1#1")
	for hash, tt := range map[string]struct{ good, bad state.Place }{"vh1": {single, pair}, "vh2": {pair, single}} {
		tt.good.VariantHash, tt.bad.VariantHash = hash, hash
		require.ErrorIs(t, l.apply(l.plan(tt.bad)).Err, state.ErrBadRequest)
		l.must(l.plan(tt.good))
		r := l.replica(tt.good.Name)
		require.Equal(t, "job of "+hash, m.VariantOf(r).Job)
		l.must(&state.Remove{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex})
	}
}

func TestNoModelHasNoVariants(t *testing.T) {
	var m *state.Model
	require.Nil(t, m.Variant("v"))
	require.Nil(t, m.VariantOf(&state.Replica{Name: name("m", "1")}))
	require.False(t, m.FailoverOf("v", "h"))
}
