package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// TestPlanDoesEverything at once: a victim is drained, its model has one less, the GPU
// is cordoned, the planner remembers, another set is dedicated.
func TestPlanDoesEverything(t *testing.T) {
	l := walk(t, state.StatusServing)
	l.must(&state.UpsertModel{Model: model("b")}, &state.Plan{ID: "p", Pace: &state.Pace{Pruned: epoch}})
	move := l.move(name("m", "1"), state.EventDrain, state.GoalWarm)
	move.MakesRoomFor = ptr("b")
	plan := func() *state.Plan {
		return &state.Plan{
			ID: "p", Index: l.index, Time: later,
			Move:         []state.Move{*move},
			Place:        []state.Place{place("b", "1", "n", 1, 0, 10)},
			Replacements: []state.SetReplacements{{Model: "m", Replacements: state.Replacements{InARow: 2, Last: later}}},
			Scales:       []state.Scale{{Model: "m", ModifyIndex: l.model("m").ModifyIndex}},
			Cordons:      []state.Cordon{{Node: "n", GPU: "n-GPU1", On: true, Reason: "memory held"}},
			Evictions:    []state.SetEvictedFor{{Model: "m", EvictedFor: map[string]time.Time{"b": later}}},
			Sleeps:       []state.SetSleep{{Model: "m", Hash: "vh1", Sleep: state.Sleep{Memory: 3}}, {Model: "m", Hash: "of no version"}},
			Pace:         &state.Pace{Pruned: later, Left: map[string]time.Time{"east": later}},
			Dedicated:    &state.SetDedicated{Models: counts{"b": 2}, Window: "late"},
			Decisions:    []state.Decision{{Kind: "evict", Time: later}},
		}
	}
	before := snapshotOf(t, l.store)
	for name, spoil := range map[string]func(*state.Plan){
		"no such model": func(p *state.Plan) { p.Replacements[0].Model = "none" },
		"negative row":  func(p *state.Plan) { p.Replacements[0].InARow = -1 },
		"scale":         func(p *state.Plan) { p.Scales[0].ModifyIndex = 77 },
		"cordon":        func(p *state.Plan) { p.Cordons[0].GPU = "none" },
		"eviction":      func(p *state.Plan) { p.Evictions[0].Model = "none" },
		"evicted for":   func(p *state.Plan) { p.Evictions[0].EvictedFor = map[string]time.Time{"": later} },
		"sleep":         func(p *state.Plan) { p.Sleeps[1].Model = "none" },
		"sleep memory":  func(p *state.Plan) { p.Sleeps[1].Sleep.Memory = -1 },
		"pace":          func(p *state.Plan) { p.Pace.Left = map[string]time.Time{"a b": later} },
		"dedicated":     func(p *state.Plan) { p.Dedicated.Models["x"] = 1 },
		"decision":      func(p *state.Plan) { p.Decisions[0].Kind = "" },
	} {
		t.Run(name, func(t *testing.T) {
			fork := &log{t: t, store: l.store.Fork(), index: l.index}
			require.Equal(t, before, snapshotOf(t, fork.store))
			p := plan()
			spoil(p)
			res := fork.apply(p)
			require.NotNil(t, res.Err)
			require.False(t, res.Changed)
			require.Equal(t, rowsOf(t, l.store.View()), rowsOf(t, fork.store.View()))
			require.Nil(t, fork.store.View().Dedicated(nil))
			require.Equal(t, &state.Pace{Pruned: epoch}, fork.store.View().Pace(nil))
		})
	}
	l.must(plan())
	v := l.store.View()
	require.Equal(t, "b", v.Replica(nil, "m:v:1").MakesRoomFor)
	require.NotNil(t, v.Replica(nil, "b:v:1"), "placed before the GPU was cordoned")
	require.Equal(t, 0, v.Model(nil, "m").Desired.Total())
	require.Equal(t, state.Replacements{InARow: 2, Last: later}, v.Model(nil, "m").Replacements)
	require.Equal(t, "memory held", v.Node(nil, "n").GPU("n-GPU1").CordonReason)
	require.Equal(t, map[string]time.Time{"b": later}, v.Model(nil, "m").EvictedFor)
	require.Equal(t, map[string]state.Sleep{"vh1": {Memory: 3}}, v.Model(nil, "m").Sleeps)
	require.Equal(t, &state.Pace{Pruned: later, Left: map[string]time.Time{"east": later}}, v.Pace(nil))
	require.Equal(t, &state.Dedicated{Models: counts{"b": 2}, Window: "late", Since: later, ModifyIndex: l.index}, v.Dedicated(nil))
	require.Equal(t, state.Target{Replicas: 2, Bound: state.BoundDedicated}, v.Target(nil, v.Model(nil, "b")))
}

// TestPlannedScale has a model of 1 to 10 replicas with the variants a, b and c, of which there
// should be 5 of any.
func TestPlannedScale(t *testing.T) {
	any4 := state.Scale{Desired: state.Any(4)}
	for _, tt := range []struct {
		name  string
		first []any
		scale state.Scale
		want  string
		// displaced is how many of them are not to run.
		displaced int
		refused   error
		text      string
	}{
		{name: "down", scale: state.Scale{Desired: state.Any(2)}, want: "2"},
		{name: "up", scale: state.Scale{Desired: state.Any(9)}, want: "9"},
		{name: "variants", scale: state.Scale{Desired: state.Shares{{Variant: "a", Replicas: 3}, {Variant: "b", Replicas: 1}}}, want: "a=3 b=1"},
		{name: "forgets variants", first: []any{variants(counts{"a": 2})}, scale: any4, want: "4"},
		{name: "as it is", scale: state.Scale{Desired: state.Any(5)}, want: "5"},
		{name: "displaced", scale: state.Scale{Desired: state.Any(5), Displaced: state.Displaced{UntilRoom: state.Any(2), UntilAsked: state.Any(3)}}, want: "5", displaced: 5},
		{name: "more displaced than desired", scale: state.Scale{Desired: state.Any(4), Displaced: state.Displaced{UntilRoom: state.Any(2), UntilAsked: state.Any(3)}}, refused: state.ErrBadRequest,
			text: "displaced is 2 until there is room and 3 until clients wait: must be a part of desired, which is 4"},
		{name: "stale", scale: state.Scale{Desired: state.Any(4), ModifyIndex: 99}, refused: state.ErrConflict, text: "not 99"},
		{name: "unknown", scale: state.Scale{Model: "x", Desired: state.Any(4)}, refused: state.ErrNotFound, text: `"x"`},
		{name: "dedicated", first: []any{dedicate(counts{"m": 4})}, scale: any4, want: "4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			m := three(func(m *state.Model) { m.Hash = "h" })
			l.must(&state.UpsertModel{Model: m})
			l.must(tt.first...)
			before := *l.model("m")
			if tt.scale.Model == "" {
				tt.scale.Model = "m"
			}
			if tt.scale.ModifyIndex == 0 {
				tt.scale.ModifyIndex = before.ModifyIndex
			}
			res := l.apply(&state.Plan{ID: "p", Time: later, Scales: []state.Scale{tt.scale}})
			if tt.refused != nil {
				require.ErrorIs(t, res.Err, tt.refused)
				require.ErrorContains(t, res.Err, tt.text)
				require.Equal(t, before, *l.model("m"))
				return
			}
			require.Nil(t, res.Err)
			require.Equal(t, tt.want, text(l.model("m").Desired))
			require.Equal(t, text(before.Desired) != tt.want || tt.displaced > 0, res.Changed)
			require.Equal(t, tt.displaced, l.model("m").Displaced.Total())
			require.Zero(t, l.model("m").ScaledAt)
			checkModel(t, l.model("m"))
		})
	}
}

// TestPlannedScaleAfterARollout of the same model and plan.
func TestPlannedScaleAfterARollout(t *testing.T) {
	l := full(t)
	known := l.model("m").ModifyIndex
	plan := &state.Plan{
		ID: "p", Index: l.index, Time: later,
		Rollouts: []state.SetRollout{{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling}},
		Scales:   []state.Scale{{Model: "m", ModifyIndex: known, Desired: state.Any(4)}},
	}
	l.must(plan)
	require.Equal(t, 4, l.model("m").Desired.Total())
	require.Equal(t, state.RolloutRolling, l.model("m").Rollouts["v"].Status)
}

func TestPace(t *testing.T) {
	l := newLog(t)
	late := time.Date(9999, 12, 31, 23, 59, 0, 0, time.FixedZone("", -3600))
	for _, tt := range []struct {
		pace state.Pace
		text string
	}{
		{state.Pace{Left: map[string]time.Time{"": epoch}}, "pool is empty"},
		{state.Pace{Left: map[string]time.Time{"a\x00b": epoch}}, "spaces and control characters are not allowed"},
		{state.Pace{Left: map[string]time.Time{strings.Repeat("x", 2000): epoch}}, "pool is 2000 bytes: must be at most 512 bytes"},
		{state.Pace{Left: map[string]time.Time{"east": late}}, "time of pool \"east\" is in the year 10000"},
		{state.Pace{Pruned: late}, "time of the last prune is in the year 10000"},
	} {
		res := l.apply(&state.Plan{ID: "p", Pace: &tt.pace})
		require.ErrorIs(t, res.Err, state.ErrBadRequest)
		require.ErrorContains(t, res.Err, tt.text)
	}
	require.Equal(t, &state.Pace{}, l.store.View().Pace(nil))
	plan := &state.Plan{ID: "p", Pace: &state.Pace{Pruned: epoch, Left: map[string]time.Time{"east": epoch}}}
	l.must(plan)
	require.False(t, l.apply(plan).Changed)
}

// TestMemoryOutlivesVersions: what the planner remembers of a model does not count as a change
// of it, and a new version keeps what still holds.
func TestMemoryOutlivesVersions(t *testing.T) {
	l := ready(t)
	index := l.model("m").ModifyIndex
	remember := &state.Plan{
		ID:        "p",
		Evictions: []state.SetEvictedFor{{Model: "m", EvictedFor: map[string]time.Time{"b": epoch}}},
		Sleeps:    []state.SetSleep{{Model: "m", Hash: "vh1", Sleep: state.Sleep{Memory: 3}}, {Model: "m", Hash: "vh1", Sleep: state.Sleep{None: true}}, {Model: "m", Hash: "vh1", Sleep: state.Sleep{Memory: 2}}},
	}
	l.must(remember)
	require.False(t, l.apply(remember).Changed)
	require.Equal(t, index, l.model("m").ModifyIndex)
	for i := range state.VersionsKept + 2 {
		hash := fmt.Sprint("h", i+2)
		l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Hash, m.Variants[0].Hash = hash, "v"+hash }), ModifyIndex: l.model("m").ModifyIndex, Time: epoch})
		require.Equal(t, map[string]state.Sleep{"vh1": {None: true, Memory: 3}}, l.model("m").Sleeps, "the most that was kept")
		require.Equal(t, map[string]time.Time{"b": epoch}, l.model("m").EvictedFor)
	}
	last := l.model("m").Variants[0].Hash
	l.must(&state.Plan{ID: "p", Sleeps: []state.SetSleep{{Model: "m", Hash: last}}})
	require.Equal(t, map[string]state.Sleep{last: {}}, l.model("m").Sleeps, "no version has the other one any more")
}

// TestStartsAreMeasured: a first start counts from the placement, a wake from its order; what followed
// a failure, a restart and an adoption says nothing.
func TestStartsAreMeasured(t *testing.T) {
	l := walk(t, state.StatusPlaced)
	index := l.model("m").ModifyIndex
	placed := l.replica(name("m", "1")).CreatedAt
	at := func(d time.Duration, e state.Event, goal state.Goal) {
		t.Helper()
		m := l.move(name("m", "1"), e, goal)
		m.Time = placed.Add(d)
		l.must(m)
	}
	starts := func() state.Start { return l.model("m").Starts["vh1"] }
	at(5*time.Second, state.EventStarted, "")
	require.Zero(t, starts())
	at(80*time.Second, state.EventServing, "")
	require.Equal(t, state.Start{Cold: 80 * time.Second}, starts())
	at(90*time.Second, state.EventStarted, "") // Nomad has restarted it
	at(95*time.Second, state.EventServing, "")
	require.Equal(t, state.Start{Cold: 80 * time.Second}, starts())
	for i, took := range []time.Duration{400 * time.Millisecond, 800 * time.Millisecond} {
		begin := time.Duration(i+2) * time.Hour
		at(begin, state.EventDrain, state.GoalWarm)
		at(begin+time.Second, state.EventSleep, "")
		at(begin+2*time.Second, state.EventSlept, "")
		at(begin+time.Minute, state.EventWake, "")
		at(begin+time.Minute+took, state.EventServing, "")
	}
	require.Equal(t, state.Start{Cold: 80 * time.Second, Warm: 500 * time.Millisecond}, starts(), "the newest counts for a quarter")
	require.Equal(t, index, l.model("m").ModifyIndex, "no change of the model")

	// Another definition begins anew, and the old one is forgotten with its version.
	for i := range state.VersionsKept + 2 {
		hash := fmt.Sprint("h", i+2)
		l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Hash, m.Variants[0].Hash = hash, "v"+hash }), ModifyIndex: l.model("m").ModifyIndex, Time: epoch})
		require.Equal(t, 500*time.Millisecond, starts().Warm)
	}
}

// TestStartsThatSayNothing about how long a start takes.
func TestStartsThatSayNothing(t *testing.T) {
	for title, spoil := range map[string]func(l *log){
		"after a failure": func(l *log) {
			m := l.move(name("m", "1"), state.EventStarted, "")
			m.Failures = ptr(1)
			l.must(m)
		},
		"adopted": func(l *log) {
			p := place("m", "2", "n", 1, 0, 10)
			p.Adopt, p.JobIndex, p.Status = true, 7, state.StatusStarting
			l.must(&state.Plan{ID: "p", Index: l.index, Time: epoch, Place: []state.Place{p}})
			m := l.move(name("m", "2"), state.EventServing, "")
			m.Time = later
			l.must(m)
		},
		"a clock that went back": func(l *log) {
			m := l.move(name("m", "1"), state.EventStarted, "")
			l.must(m)
			m = l.move(name("m", "1"), state.EventServing, "")
			m.Time = epoch.Add(-time.Hour)
			l.must(m)
		},
	} {
		t.Run(title, func(t *testing.T) {
			l := walk(t, state.StatusPlaced)
			spoil(l)
			if r := l.replica(name("m", "1")); r.Status == state.StatusStarting {
				m := l.move(r.Name, state.EventServing, "")
				m.Time = later
				l.must(m)
			}
			require.Empty(t, l.model("m").Starts)
		})
	}
}
