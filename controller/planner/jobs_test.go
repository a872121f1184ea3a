package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

func TestOrphans(t *testing.T) {
	t.Parallel()
	empty := func(t *testing.T) *world {
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1")))
		return w
	}
	t.Run("adopted", func(t *testing.T) {
		t.Parallel()
		w := empty(t)
		j := w.strange("h1", "n0-GPU0#0")
		w.step()
		w.round()
		r := w.only(withStatus(state.StatusStarting))
		require.Equal(t, j.Name, r.Name)
		require.Equal(t, j.Index, r.JobIndex)
		w.turns(6)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.Len(t, w.nomad, 1)
	})
	t.Run("adopted as running, where it serves", func(t *testing.T) {
		t.Parallel()
		w := empty(t)
		w.strange("h1", "n0-GPU0#0")
		for range 6 {
			w.step()
		}
		w.plan(false)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
	})
	t.Run("adopted although it is too much, and drained", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		w.strange("h1", "n0-GPU1#1")
		w.turns(12)
		require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
		require.Len(t, w.nomad, 1)
	})
	t.Run("a pair", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		m := model("m", 1, variant("a", "h1"))
		m.Failover = true
		w.model(m)
		j := w.strange("h1", "n0-GPU0#0", "n0-GPU0#1")
		w.turns(8)
		require.Equal(t, j.Name, w.only(withStatus(state.StatusServing)).Name)
	})
	t.Run("with seats on more GPUs than it uses", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.model(model("m", 1, variant("a", "h1", func(v *state.Variant) { v.Reach = 2 })))
		j := w.strange("h1", "n0-GPU0#0", "n0-GPU1#0")
		j.Placement.Memory = map[string]int64{"n0-GPU1": 30}
		w.turns(8)
		require.Equal(t, j.Name, w.only(withStatus(state.StatusServing)).Name)
	})
	for _, c := range []struct {
		name, why string
		edit      func(*planner.Job)
	}{
		{"of an unknown definition", `no known version of the model has variant "a" with hash "h9"`, func(j *planner.Job) { j.Hash = "h9" }},
		{"of an unknown variant", `no known version of the model has variant "z" with hash "h1"`, func(j *planner.Job) { j.Name.Variant = "z" }},
		{"of an unknown model", `model "other" does not exist`, func(j *planner.Job) { j.Name.Model = "other" }},
		{"on an unknown node", `node "n9" does not exist`, func(j *planner.Job) { j.Placement.Node = "n9" }},
		{"on an unknown seat", "no seat", func(j *planner.Job) { j.Placement.Seats = []string{"n0-GPU0#7"} }},
		{"twice on a seat", "duplicate seat", func(j *planner.Job) { j.Placement.Seats = []string{"n0-GPU0#0", "n0-GPU0#0"} }},
		{"with too many seats", "2 seats", func(j *planner.Job) { j.Placement.Seats = []string{"n0-GPU0#0", "n0-GPU0#1"} }},
		{"with too many GPUs", "2 GPUs", func(j *planner.Job) { j.Placement.Seats = []string{"n0-GPU0#0", "n0-GPU1#1"} }},
		{"with more memory than there is", "90", func(j *planner.Job) { j.Placement.Memory = map[string]int64{"n0-GPU0": 90} }},
		{"with memory of another GPU", "30 bytes of GPU n0-GPU1 without a seat on it", func(j *planner.Job) { j.Placement.Memory = map[string]int64{"n0-GPU1": 30} }},
		{"with negative host memory", "host memory", func(j *planner.Job) { j.Placement.HostMemory = -1 }},
		{"with meta that was edited", "edited", func(j *planner.Job) { j.Problem = "edited" }},
	} {
		t.Run("left alone: "+c.name, func(t *testing.T) {
			t.Parallel()
			w := empty(t)
			j := w.strange("h1", "n0-GPU0#0")
			delete(w.nomad, j.Name.String())
			c.edit(&j.Job)
			w.nomad[j.Name.String()] = j
			w.round()
			w.turns(6)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
			var said []*state.Decision
			for _, d := range w.view().Decisions(nil, "", 0) {
				if d.Kind == planner.KindOrphan || d.Kind == planner.KindJobProblem {
					said = append(said, d)
				}
			}
			require.Len(t, said, 1)
			require.Contains(t, said[0].Reason, c.why)
			require.False(t, j.Stopped)
			r := w.only(withStatus(state.StatusServing))
			if j.Placement.Node == r.Placement.Node {
				require.NotContains(t, j.Placement.Seats, r.Placement.Seats[0], "its seats are not given away")
			}
		})
	}
	t.Run("left alone: on a seat that is taken", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		r := w.only(withStatus(state.StatusServing))
		w.strange("h1", r.Placement.Seats[0])
		w.turns(3)
		require.Contains(t, w.decisions("m", planner.KindOrphan)[0].Reason, r.Name.String())
	})
}

func TestMeddling(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, kind string
		edit       func(w *world, j *job)
	}{
		{"stopped", planner.KindJobStopped, func(w *world, j *job) { w.index2++; j.Stopped, j.Index = true, w.index2 }},
		{"edited", planner.KindJobEdited, func(w *world, j *job) { w.index2++; j.Index, j.drifting = w.index2, "edited" }},
		{"purged", planner.KindJobGone, func(w *world, j *job) { delete(w.nomad, j.Name.String()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 1, "n0")
			r := w.only(withStatus(state.StatusServing))
			w.now = w.now.Add(time.Hour)
			j := w.nomad[r.Name.String()]
			c.edit(w, j)
			have := uint64(0)
			if c.name != "purged" {
				have = j.Index
			}
			w.plan(false)
			require.Len(t, w.decisions("m", c.kind), 1)
			w.now = w.now.Add(w.conf.SettleTime) // one that is gone may only not be listed yet
			actions := planner.Actions(w.view(), w.observe(false), w.conf)
			require.Len(t, actions, 1)
			require.Equal(t, planner.Register, actions[0].Kind)
			require.Equal(t, have, actions[0].Index)
			w.turns(8)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
			require.Equal(t, r.Name, w.only(withStatus(state.StatusServing)).Name, "it is the same replica")
			require.Len(t, w.decisions("m", c.kind), 1, "once each time")
			require.Zero(t, w.round())
			if j = w.nomad[r.Name.String()]; c.name == "purged" {
				return
			}
			c.edit(w, j)
			w.turns(8)
			require.Len(t, w.decisions("m", c.kind), 2)
		})
	}
	t.Run("edited so that it cannot be believed", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 1, "n0")
		j := w.nomad[w.only(withStatus(state.StatusServing)).Name.String()]
		w.index2++
		j.Problem, j.Index = "remuda_seats is missing", w.index2
		w.turns(5)
		require.Len(t, w.decisions("m", planner.KindJobProblem), 1)
		require.Empty(t, planner.Actions(w.view(), w.observe(false), w.conf), "it is left alone")
		w.scale(0)
		w.turns(8)
		require.True(t, j.Stopped, "until its replica has to go")
		require.Empty(t, w.view().ReplicasOf(nil, "m"))
	})
	t.Run("a list that is older than what was written last says nothing", func(t *testing.T) {
		t.Parallel()
		w := fresh(t, "n0")
		w.load = func() time.Duration { return time.Hour }
		w.model(model("m", 1, variant("a", "h1")))
		w.round()
		r := w.only(withStatus(state.StatusStarting))
		newer := r.JobIndex + 100
		w.must(&state.Move{Replica: r.Name.String(), ModifyIndex: r.ModifyIndex, Time: w.now, JobIndex: &newer})
		w.nomad[r.Name.String()].Stopped = true
		for range 20 {
			w.now = w.now.Add(w.conf.SettleTime)
			p, _ := planner.Plan(w.view(), w.observe(false), w.conf)
			require.Nil(t, p)
			require.Empty(t, planner.Actions(w.view(), w.observe(false), w.conf))
		}
		w.index2 = newer // now it is newer
		w.turns(3)
		require.Equal(t, w.nomad[r.Name.String()].Index, w.only(withStatus(state.StatusStarting)).JobIndex)
		require.False(t, w.nomad[r.Name.String()].Stopped)
	})
}

// TestEvict: what the state has sent away ends, COLD is remembered once a node, and
// forgotten when the model is stopped.
func TestEvict(t *testing.T) {
	t.Parallel()
	w := deployed(t, 3, "n0")
	w.must(&state.EvictRequest{Model: "m", To: state.GoalCold, Time: w.now})
	w.turns(8)
	cold := w.view().ReplicasOf(nil, "m")
	require.Len(t, cold, 1, "one memory is enough for a node")
	require.Equal(t, state.StatusCold, cold[0].Status)
	require.Empty(t, w.nomad)
	yes := true
	w.must(&state.ScaleRequest{Model: "m", Stopped: &yes, Origin: state.OriginOperator})
	w.turns(1)
	require.Empty(t, w.view().ReplicasOf(nil, "m"))
	w.must(&state.DeleteModel{Model: "m"})
}

// TestNewLeader does each action, and crashes before it can be written down; the next
// leader goes on where the old one was.
func TestNewLeader(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprintf("before=%v", before), func(t *testing.T) {
			t.Parallel()
			w := fresh(t, "n0")
			w.model(model("m", 2, variant("a", "h1")))
			for turn := range 20 {
				w.plan(false)
				for _, a := range planner.Actions(w.view(), w.observe(false), w.conf) {
					if before && turn%2 == 0 {
						continue
					}
					w.act(a, turn%2 == 0)
				}
				if turn == 12 {
					w.scale(1)
				}
				w.step()
			}
			w.turns(6)
			require.Equal(t, map[string]int{"serving h1": 1}, w.counts("m"))
			require.Len(t, w.nomad, 1)
			require.Zero(t, w.round())
		})
	}
}
