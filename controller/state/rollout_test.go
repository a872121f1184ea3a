package state_test

import (
	"fmt"
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
		{Model: "m", Variant: "v", Version: l.model("m").Rollouts["v"].Version, Status: status, Reason: reason},
	}})
}

// rolling is a store with a replica of version 1, whose hash is vh1, and the rollout of
// version 2, whose hash is vh2, in that status.
func rolling(t *testing.T, status state.RolloutStatus) *log {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	l.must(l.plan(place("m", "1", "n", 0, 0, 1)))
	l.serve(name("m", "1"))
	require.Nil(t, l.upsert(defined("vh2"), epoch).Err)
	if status != state.RolloutCanary {
		require.Nil(t, l.rollout(status, "because").Err)
	}
	require.Equal(t, status, l.model("m").Rollouts["v"].Status)
	return l
}

// hashes returns the hash of v in the version that the model has, and in the one that it
// falls back on.
func (l *log) hashes() (current, stable string) {
	m, vs := l.model("m"), l.store.View().Versions(nil, "m")
	require.Equal(l.t, m.Variants, vs.Get(m.Version).Model.Variants)
	return m.Variant("v").Hash, vs.Get(m.StableVersion).Variant("v").Hash
}

func TestAChangedVariantIsRolledOut(t *testing.T) {
	type want struct {
		status  state.RolloutStatus // empty: there is no rollout
		stable  string
		version int
	}
	for _, tt := range []struct {
		name   string
		status state.RolloutStatus // of the rollout from vh1 to vh2 that is going on
		to     string
		want   want
	}{
		{"on trial, nothing new", state.RolloutCanary, "vh2", want{state.RolloutCanary, "vh1", 3}},
		{"on trial, back", state.RolloutCanary, "vh1", want{"", "vh1", 3}},
		{"on trial, another", state.RolloutCanary, "vh3", want{state.RolloutCanary, "vh1", 3}},
		{"rolled back, again", state.RolloutRolledBack, "vh2", want{state.RolloutCanary, "vh1", 3}},
		{"rolled back, back", state.RolloutRolledBack, "vh1", want{"", "vh1", 3}},
		{"rolled back, another", state.RolloutRolledBack, "vh3", want{state.RolloutCanary, "vh1", 3}},
		{"rolling, nothing new", state.RolloutRolling, "vh2", want{state.RolloutRolling, "vh2", 3}},
		{"rolling, another", state.RolloutRolling, "vh3", want{state.RolloutCanary, "vh2", 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := rolling(t, tt.status)
			before := l.model("m").Rollouts["v"]
			later := epoch.Add(time.Hour)
			// The bounds change, so that the model's own hash does in any case.
			require.Nil(t, l.upsert(defined(tt.to, func(m *state.Model) { m.Hash, m.Max = "another", 50 }), later).Err)
			m := l.model("m")
			require.Equal(t, 50, m.Max)
			require.Equal(t, 3, m.Version)
			got, ok := m.Rollouts["v"]
			current, stable := l.hashes()
			require.Equal(t, tt.to, current)
			require.Equal(t, tt.want.stable, stable)
			require.Equal(t, tt.want.status, got.Status)
			require.Equal(t, tt.want.status != "", ok)
			switch {
			case !ok:
				require.Nil(t, m.Rollouts)
				require.Equal(t, m.Version, m.StableVersion)
			case tt.to == "vh2" && before.Ongoing():
				require.Equal(t, state.Rollout{Status: before.Status, Version: 3, Reason: before.Reason, Since: before.Since}, got, "it goes on")
			default:
				require.Equal(t, state.Rollout{Status: tt.want.status, Version: 3, Since: later}, got)
			}
		})
	}
}

// TestARolledBackModelIsItsStableVersion with all that the file says, and keeps its scale.
func TestARolledBackModelIsItsStableVersion(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1", func(m *state.Model) { m.Max, m.Priority = 5, 10 })}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	l.must(l.plan(place("m", "1", "n", 0, 0, 1)))
	l.serve(name("m", "1"))
	require.Nil(t, l.upsert(defined("vh2", func(m *state.Model) { m.Max, m.Priority = 50, 90 }), epoch).Err)
	l.must(&state.ScaleRequest{Model: "m", Replicas: ptr(20), Origin: state.OriginOperator})
	require.Nil(t, l.rollout(state.RolloutRolledBack, "because").Err)
	m := l.model("m")
	require.Equal(t, 1, m.Version)
	require.Equal(t, 1, m.StableVersion)
	require.Equal(t, "vh1", m.Hash)
	require.Equal(t, 10, m.Priority)
	require.Equal(t, 20, m.Desired.Total())
	require.Equal(t, state.Target{Replicas: 5, Bound: state.BoundMax}, l.store.View().Target(nil, m))
	require.Equal(t, map[string]state.Rollout{"v": {Status: state.RolloutRolledBack, Version: 2, Reason: "because", Since: epoch}}, m.Rollouts)
	require.NotNil(t, l.store.View().Versions(nil, "m").Get(2), "what failed can be looked at")

	// The next version has a number of its own.
	require.Nil(t, l.upsert(defined("vh3"), epoch).Err)
	require.Equal(t, 3, l.model("m").Version)
}

// TestVersionsKept are the last six, those with replicas, and the stable one.
func TestVersionsKept(t *testing.T) {
	l := rolling(t, state.RolloutCanary) // a replica of 1, which is stable
	p := place("m", "2", "n", 1, 0, 1)
	p.Version = 2
	l.must(l.plan(p))
	for i := 3; i < 20; i++ {
		require.Nil(t, l.upsert(defined(fmt.Sprint("vh", i)), epoch.Add(time.Duration(i)*time.Hour)).Err)
	}
	vs := l.store.View().Versions(nil, "m")
	require.Nil(t, vs.Get(13))
	require.Nil(t, vs.Get(20))
	for i := 14; i < 20; i++ {
		require.Equal(t, fmt.Sprint("vh", i), vs.Get(i).Model.Hash)
		require.Equal(t, epoch.Add(time.Duration(i)*time.Hour), vs.Get(i).Time)
	}
	require.Equal(t, "vh1", l.madeFrom(name("m", "1")))
	require.Equal(t, "vh2", l.madeFrom(name("m", "2")))
	require.Len(t, vs, 8)
	require.Equal(t, 2, vs.With("v", "vh2").Number)
	require.Nil(t, vs.With("v", "vh5"))
	require.Nil(t, vs.With("w", "vh2"))

	r := l.replica(name("m", "2"))
	l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex}}})
	require.Nil(t, l.upsert(defined("vh20"), epoch).Err)
	require.Nil(t, l.store.View().Versions(nil, "m").Get(2))
	require.NotNil(t, l.store.View().Versions(nil, "m").Get(1))

	require.ErrorContains(t, l.apply(l.plan(p)).Err, `model "m" has no version 2`)
	require.False(t, l.upsert(defined("vh20"), epoch).Changed, "the same file is no version of its own")
}

// TestTheNumberOfReplicasInAFile sets the scale where it changes, and only then.
func TestTheNumberOfReplicasInAFile(t *testing.T) {
	file := func(hash string, replicas int) state.Model {
		return defined("vh1", func(m *state.Model) { m.Hash, m.Desired, m.FileReplicas = hash, state.Any(replicas), &replicas })
	}
	l := newLog(t)
	l.must(&state.UpsertModel{Model: file("a", 3)}, &state.ScaleRequest{Model: "m", Variants: map[string]int{"v": 5}, Origin: state.OriginOperator})
	require.Nil(t, l.upsert(file("b", 3), epoch).Err)
	require.Equal(t, 5, l.model("m").Desired.Total())
	require.Equal(t, "v=5", text(l.model("m").Desired))
	require.Nil(t, l.upsert(file("c", 4), epoch).Err)
	require.Equal(t, 4, l.model("m").Desired.Total())
	require.Equal(t, "4", text(l.model("m").Desired))
	unset := file("d", 1)
	unset.FileReplicas = nil
	require.Nil(t, l.upsert(unset, epoch).Err)
	require.Equal(t, 4, l.model("m").Desired.Total(), "a file without a number leaves the scale alone")
	require.Equal(t, epoch, l.model("m").ScaledAt, "fewer than before: what clients asked for until now does not count")
}

// TestBackInTheMiddleOfARollout has replicas of both definitions: those of the newer
// one are replaced by the older one, which needs no trial.
func TestBackInTheMiddleOfARollout(t *testing.T) {
	l := rolling(t, state.RolloutRolling)
	p := place("m", "2", "n", 1, 0, 1)
	p.Version = 2
	l.must(l.plan(p))
	l.serve(name("m", "2"))
	require.Nil(t, l.upsert(defined("vh1"), epoch).Err)
	require.Equal(t, state.RolloutRolling, l.model("m").Rollouts["v"].Status)
	current, stable := l.hashes()
	require.Equal(t, "vh1", current)
	require.Equal(t, "vh2", stable)
	require.Equal(t, "vh2", l.madeFrom(name("m", "2")))

	// Without a replica of the newer one there is nothing to replace.
	l = rolling(t, state.RolloutRolling)
	require.Nil(t, l.upsert(defined("vh1"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts)
}

// TestWhatNeverServedIsReplacedAtOnce: it needs no protection, and would keep the place of
// its corrected successor.
func TestWhatNeverServedIsReplacedAtOnce(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	l.must(l.plan(place("m", "1", "n", 0, 0, 1)))
	l.must(l.move(name("m", "1"), state.EventStarted, ""))
	require.Nil(t, l.upsert(defined("vh2"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts)
	require.Equal(t, 2, l.model("m").StableVersion)
}

func TestNothingIsRolledOutWithoutReplicas(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: defined("vh1", func(m *state.Model) {
		m.Rollouts = map[string]state.Rollout{"v": {Status: state.RolloutCanary}}
	})}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
	require.Nil(t, l.model("m").Rollouts, "a caller's is not looked at")

	require.Nil(t, l.upsert(defined("vh2"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts, "there is no replica")

	p := place("m", "1", "n", 0, 0, 1)
	p.Version = 2
	l.must(l.plan(p))
	l.serve(name("m", "1"))
	l.must(l.move(name("m", "1"), state.EventStop, state.GoalGone))
	require.Nil(t, l.upsert(defined("vh3"), epoch).Err)
	require.Nil(t, l.model("m").Rollouts, "the only replica is on its way out")
	require.Equal(t, "vh2", l.madeFrom(name("m", "1")))
}

func TestAVariantThatGoesTakesItsRolloutAndNumberAlong(t *testing.T) {
	l := rolling(t, state.RolloutCanary)
	l.must(&state.ScaleRequest{Model: "m", Variants: map[string]int{"v": 2}, Origin: state.OriginOperator})
	require.Equal(t, "v=2", text(l.model("m").Desired))
	require.Nil(t, l.upsert(defined("vh2", func(m *state.Model) { m.Hash, m.Variants[0].Name = "w only", "w" }), epoch).Err)
	m := l.model("m")
	require.Nil(t, m.Rollouts)
	require.Equal(t, "2", text(m.Desired))
	require.Nil(t, m.Variant("v"))
	require.Equal(t, "vh1", l.madeFrom(name("m", "1")), "the replica is still there")

	// It comes back as something else: the stable version does not have it.
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
					{Model: "m", Variant: "v", Version: 2, Status: to, Reason: "new reason"},
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
					require.Equal(t, m.Version, m.StableVersion)
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
	good := state.SetRollout{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling}
	for _, tt := range []struct {
		name  string
		edit  func(*state.SetRollout)
		index func(uint64) uint64
		want  error
		text  string
	}{
		{"unknown model", func(c *state.SetRollout) { c.Model = "x" }, nil, state.ErrNotFound, `"x"`},
		{"unknown variant", func(c *state.SetRollout) { c.Variant = "x" }, nil, state.ErrConflict, "not being rolled out"},
		{"another version", func(c *state.SetRollout) { c.Version = 3 }, nil, state.ErrConflict, `is of version 2, not 3`},
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
	p.Rollouts = []state.SetRollout{{Model: "m", Variant: "v", Version: 2}}
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
	p.Name.Variant = "w"
	l.must(l.plan(place("m", "1", "n", 0, 0, 1), p))
	l.serve(name("m", "1"), p.Name)
	require.Nil(t, l.upsert(two("vh2"), epoch).Err)
	require.Len(t, l.model("m").Rollouts, 2)
	l.must(&state.Plan{ID: "r", Index: l.index, Time: epoch, Rollouts: []state.SetRollout{
		{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling},
		{Model: "m", Variant: "w", Version: 2},
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
	require.Equal(t, "vh1", l.madeFrom(name("m", "1")))

	single, pair := place("m", "2", "n", 1, 0, 1), place("m", "3", "n", 1, 0, 1)
	pair.Placement.Seats = append(pair.Placement.Seats, "n-GPU1#1")
	for version, tt := range map[int]struct{ good, bad state.Place }{1: {single, pair}, 2: {pair, single}} {
		tt.good.Version, tt.bad.Version = version, version
		require.ErrorIs(t, l.apply(l.plan(tt.bad)).Err, state.ErrBadRequest)
		l.must(l.plan(tt.good))
		require.Equal(t, fmt.Sprint("vh", version), l.madeFrom(tt.good.Name))
		r := l.replica(tt.good.Name)
		l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex}}})
	}
}

func TestNoVersionHasNoVariants(t *testing.T) {
	require.Nil(t, (*state.Model)(nil).Variant("v"))
	require.Nil(t, (*state.Version)(nil).Variant("v"))
	require.Nil(t, state.Versions(nil).VariantOf(&state.Replica{Name: name("m", "1")}))
	require.Empty(t, state.Versions(nil).HashOf(&state.Replica{Name: name("m", "1")}))
}
