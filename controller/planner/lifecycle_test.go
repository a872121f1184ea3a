package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

func TestServing(t *testing.T) {
	t.Parallel()
	name := func(w *world) string { return w.view().ReplicasOf(nil, "m")[0].Name.String() }
	status := func(w *world) state.Status { return w.view().ReplicasOf(nil, "m")[0].Status }
	dead := func(edit func(*world, *job)) func(*testing.T) *world {
		return func(t *testing.T) *world {
			w := deployed(t, 1, "n0")
			w.now = w.now.Add(time.Hour)
			edit(w, w.nomad[name(w)])
			w.plan(false)
			return w
		}
	}
	for _, c := range []struct {
		name  string
		world func(*testing.T) *world
		want  state.Status
	}{
		{"its allocation failed", dead(func(_ *world, j *job) { j.alloc.Client = "failed" }), state.StatusStarting},
		{"the allocation is gone", dead(func(_ *world, j *job) { j.alloc = nil }), state.StatusStarting},
		{"its engine was restarted a while ago", dead(func(w *world, j *job) { j.alloc.Started, j.serves = w.now.Add(-w.conf.ServingGrace), time.Time{} }), state.StatusStarting},
		{"its engine was restarted just now", dead(func(w *world, j *job) { j.alloc.Started, j.serves = w.now, time.Time{} }), state.StatusServing},
		{"its engine does not pass, and nothing else is known", dead(func(_ *world, j *job) { j.serves = time.Time{} }), state.StatusServing},
		{"its node cannot be reached", dead(func(_ *world, j *job) { j.alloc.Client = "unknown" }), state.StatusServing},
		{"Consul is out of reach", dead(func(w *world, j *job) { w.consulOut, j.alloc = true, nil }), state.StatusServing},
		{"Nomad is out of reach", dead(func(w *world, j *job) { w.nomadOut, j.serves = true, time.Time{} }), state.StatusServing},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, status(c.world(t)))
		})
	}
	t.Run("a pair whose shadow took over serves", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		w.now = w.now.Add(time.Hour)
		w.nomad[name(w)].alloc.Started = w.now.Add(-time.Minute)
		w.nomad[name(w)].serves = w.now
		w.plan(false)
		require.Equal(t, state.StatusServing, status(w))
	})
	t.Run("an engine of an allocation that does not run proves nothing", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		w.turns(1)
		o := w.observe(false)
		o.Engines[name(w)] = []planner.Engine{{Passing: true}}
		p, _ := planner.Plan(w.view(), o, w.conf)
		require.Nil(t, p)
		w.step()
		o = w.observe(false)
		o.Engines[name(w)] = []planner.Engine{{Passing: true}}
		p, _ = planner.Plan(w.view(), o, w.conf)
		require.Equal(t, state.EventServing, p.Move[0].Event)
	})
	t.Run("an engine is told from one that was there before it", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			name  string
			first bool
			later time.Duration // it was started that long after it was placed
			want  bool
		}{
			{"the first of its name", true, 0, true},
			{"of a job that was written again", false, 0, false},
			{"of a job that was gone meanwhile", true, time.Hour, false},
		} {
			w := fresh(t, "n0")
			w.model(model("m", 1, variant("a", "h1")))
			w.turns(1)
			if c.later > 0 {
				// It is registered again later.
				r := w.view().ReplicasOf(nil, "m")[0]
				w.now = w.now.Add(c.later)
				w.apply(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Event: state.EventFailed, Time: w.now})
				r = w.view().ReplicasOf(nil, "m")[0]
				w.apply(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Event: state.EventStarted, Time: w.now})
			}
			o := w.observe(false)
			j := o.Jobs[name(w)]
			j.Alloc = &planner.Alloc{ID: "a", Client: "pending", First: c.first}
			o.Jobs[name(w)] = j
			o.Engines[name(w)] = []planner.Engine{{Passing: true}}
			p, _ := planner.Plan(w.view(), o, w.conf)
			require.Equal(t, c.want, p != nil && len(p.Move) == 1 && p.Move[0].Event == state.EventServing, c.name)
		}
	})
}

func TestLoadFailure(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T, nodes ...string) *world {
		w := fresh(t, nodes...)
		w.broken["h1"] = true
		w.model(model("m", 1, variant("a", "h1")))
		for range 20 {
			if w.counts("m")["failed h1"] > 0 {
				return w
			}
			w.turns(1)
		}
		require.FailNow(t, "it did not fail", w.history())
		return nil
	}
	t.Run("remembered, with its reason and a backoff that grows", func(t *testing.T) {
		t.Parallel()
		w := failed(t, "n0")
		r := w.only(withStatus(state.StatusFailed))
		require.Equal(t, 1, r.Failures)
		require.Contains(t, r.LastError, "Exit Code: 1")
		first := r.RetryAt.Sub(r.Since)
		require.Equal(t, w.conf.Backoff, first)
		w.turns(2)
		require.True(t, w.nomad[r.Name.String()].Stopped, "its job does not go on trying")
		w.turns(30)
		r = w.only(func(r *state.Replica) bool { return true })
		require.Equal(t, "n0", r.Placement.Node, "there is no other node")
		require.GreaterOrEqual(t, r.Failures, 2)
		require.Contains(t, w.decisions("m", planner.KindLoadFailed)[0].Reason, "retrying in ")
	})
	t.Run("tried again elsewhere, with the failures carried over, and forgotten after a while", func(t *testing.T) {
		t.Parallel()
		w := failed(t, "n0", "n1")
		r := w.only(withStatus(state.StatusFailed))
		w.broken = map[string]bool{}
		w.turns(10)
		other := w.only(withStatus(state.StatusServing))
		require.NotEqual(t, r.Placement.Node, other.Placement.Node)
		require.Equal(t, 1, other.Failures)
		w.now = w.now.Add(w.conf.SteadyTime)
		w.turns(1)
		other = w.only(withStatus(state.StatusServing))
		require.Zero(t, other.Failures)
		require.Empty(t, other.LastError)
	})
	t.Run("a slow load is none", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.load = func() time.Duration { return 5 * time.Hour }
		w.model(model("m", 1, variant("a", "h1")))
		w.turns(4)
		w.now = w.now.Add(4 * time.Hour)
		w.turns(4)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		w.now = w.now.Add(2 * time.Hour)
		w.turns(1)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("restarts without ever serving", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.load = func() time.Duration { return time.Hour }
		w.model(model("m", 1, variant("a", "h1")))
		w.turns(4)
		r := w.only(withStatus(state.StatusStarting))
		j := w.nomad[r.Name.String()]
		j.alloc.Restarts = w.conf.Restarts - 1
		w.plan(false)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		j.alloc.Restarts++
		w.plan(false)
		require.Equal(t, map[string]int{"failed h1": 1}, w.counts("m"))
	})
	t.Run("restarts of former days do not count", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		w.load = func() time.Duration { return time.Hour }
		j := w.nomad[w.only(withStatus(state.StatusServing)).Name.String()]
		j.alloc.Restarts, j.alloc.Started, j.serves = 10, w.now.Add(time.Second), time.Time{}
		w.now = w.now.Add(time.Minute)
		w.turns(5)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		j.alloc.Restarts += w.conf.Restarts
		w.plan(false)
		require.Equal(t, map[string]int{"failed h1": 1}, w.counts("m"))
	})
	t.Run("Nomad does not place it", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		w.round()
		r := w.only(withStatus(state.StatusStarting))
		w.nomad[r.Name.String()].Unplaceable = "1 nodes lack memory"
		w.now = r.Since.Add(w.conf.PlaceTimeout - 1)
		w.plan(false)
		require.Equal(t, map[string]int{"starting h1": 1}, w.counts("m"))
		w.now = r.Since.Add(w.conf.PlaceTimeout)
		w.plan(false)
		require.Contains(t, w.only(withStatus(state.StatusFailed)).LastError, "1 nodes lack memory")
	})
	t.Run("Nomad refuses its job", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		w.plan(false)
		r := w.only(withStatus(state.StatusPlaced))
		why := "driver missing"
		w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Time: w.now, LastError: &why})
		w.now = r.Since.Add(w.conf.PlaceTimeout)
		w.plan(false)
		require.Contains(t, w.only(withStatus(state.StatusFailed)).LastError, "driver missing")
	})
	t.Run("not tried again while the old try may still hold its seats", func(t *testing.T) {
		t.Parallel()
		w := failed(t, "n0", "n1")
		r := w.only(withStatus(state.StatusFailed))
		w.now = r.RetryAt.Add(time.Minute)
		j := w.nomad[r.Name.String()]
		j.Stopped = true
		j.alloc = &planner.Alloc{ID: "dying", Client: "running"}
		require.Nil(t, w.lastPlan())
		w.turns(6)
		require.NotEmpty(t, w.decisions("m", planner.KindRetry))
	})
	t.Run("a job that ended before the next try does not end that", func(t *testing.T) {
		t.Parallel()
		w := failed(t, "n0")
		for range 20 {
			if w.counts("m")["placed h1"] > 0 {
				break
			}
			w.step()
			w.plan(false)
			for _, a := range planner.Actions(w.view(), w.observe(false), w.conf) {
				if a.Kind != planner.Register {
					w.act(a, false)
				}
			}
		}
		actions := planner.Actions(w.view(), w.observe(false), w.conf)
		require.Len(t, actions, 1)
		w.act(actions[0], true) // it is registered, and nobody knows
		w.scale(0)
		w.plan(true)
		require.Equal(t, map[string]int{"stopping h1": 1}, w.counts("m"))
		require.Empty(t, planner.Actions(w.view(), w.observe(true), w.conf), "the old list shows it as ended")
		w.turns(6)
		require.Empty(t, w.view().Replicas(nil))
		require.Empty(t, w.nomad)
	})
	t.Run("the allocation of the try before says nothing", func(t *testing.T) {
		t.Parallel()
		w := failed(t, "n0")
		w.broken = map[string]bool{}
		for range 20 {
			if w.counts("m")["starting h1"] > 0 {
				break
			}
			w.turns(1)
		}
		r := w.only(withStatus(state.StatusStarting))
		o := w.observe(false)
		j := o.Jobs[r.Name.String()]
		j.Alloc = &planner.Alloc{ID: "old", Client: "failed", Failed: true}
		o.Jobs[r.Name.String()] = j
		o.Now = r.Since
		p, next := planner.Plan(w.view(), o, w.conf)
		require.Nil(t, p)
		require.Equal(t, r.Since.Add(w.conf.SettleTime), next)
	})
}
