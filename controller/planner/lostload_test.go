package planner_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// found puts the job of a pair into Nomad, with the first free seats of a GPU, that the state does not know. One that
// loads, takes little and does not serve.
func (w *world) found(id, hash string, seat int, loads bool) *job {
	const gpu = "n0-GPU0"
	w.index2++
	p := state.Placement{
		Node: "n0", Seats: []string{fmt.Sprintf("%s#%d", gpu, seat), fmt.Sprintf("%s#%d", gpu, seat+1)},
		Memory: map[string]int64{gpu: 60}, HostMemory: 10, SleepMemory: 2,
	}
	j := &job{Job: planner.Job{Name: replica.Name{Model: "m", Variant: "a", ID: id}, Hash: hash, Placement: p, Index: w.index2, StartsWarm: loads}, version: 1}
	j.alloc = &planner.Alloc{ID: id, Client: "running"}
	j.restart(w.now)
	j.serves = w.now
	if loads {
		j.loads, j.serves, j.version = 12, w.now.Add(10*tick), 2
	}
	j.begin()
	w.nomad[j.Name.String()] = j
	return j
}

// TestLostWhileASuccessorLoads: the state is lost, or restored from an old backup, while a successor loads beside
// the pair that serves. The pair serves on, and the successor is stopped.
func TestLostWhileASuccessorLoads(t *testing.T) {
	t.Parallel()
	nodeAndModel := func(t *testing.T, versions ...string) *world {
		w := fresh(t)
		w.addNodes(seats4("n0", 1))
		for _, hash := range versions {
			m := model("m", 1, variant("a", hash, paired))
			m.Failover, m.Hash = true, "m "+hash
			w.model(m)
		}
		return w
	}
	ends := func(t *testing.T, w *world, old, successor *job) {
		t.Helper()
		for range 12 {
			w.turns(1)
			require.True(t, old.serving(w.now))
			require.False(t, old.Stopped)
			require.False(t, successor.serving(w.now))
		}
		require.True(t, successor.Stopped)
		require.Nil(t, w.view().Replica(nil, successor.Name.String()))
		said := ""
		for _, d := range w.decisions("m", planner.KindOrphan) {
			said += d.Replica + ": " + d.Reason + "\n"
		}
		require.Contains(t, said, successor.Name.String()+": job in Nomad matches no known replica and is stopped: it loads on a GPU of "+old.Name.String())
	}
	for _, ids := range [][2]string{{"0", "1"}, {"1", "0"}} {
		t.Run("all is lost, the names are "+ids[0]+" and "+ids[1], func(t *testing.T) {
			t.Parallel()
			w := nodeAndModel(t, "h1", "h2")
			old, successor := w.found(ids[0], "h1", 0, false), w.found(ids[1], "h2", 2, true)
			ends(t, w, old, successor)
			require.Equal(t, "serving", string(w.view().Replica(nil, old.Name.String()).Status))
		})
		t.Run("the definition of the old one, too, the names are "+ids[0]+" and "+ids[1], func(t *testing.T) {
			t.Parallel()
			w := nodeAndModel(t, "h2")
			old, successor := w.found(ids[0], "h1", 0, false), w.found(ids[1], "h2", 2, true)
			ends(t, w, old, successor)
			require.Nil(t, w.view().Replica(nil, old.Name.String()))
		})
	}
	t.Run("the old one was a successor, too", func(t *testing.T) {
		t.Parallel()
		w := nodeAndModel(t, "h1", "h2")
		old, successor := w.found("1", "h1", 0, false), w.found("0", "h2", 2, true)
		old.StartsWarm = true
		w.consulOut = true
		w.turns(4)
		require.Empty(t, w.view().ReplicasOf(nil, "m"), "nobody knows which one serves")
		require.False(t, successor.Stopped)
		w.consulOut = false
		ends(t, w, old, successor)
	})
	t.Run("one that is alone is adopted, and woken", func(t *testing.T) {
		t.Parallel()
		w := nodeAndModel(t, "h2")
		j := w.found("0", "h2", 2, true)
		w.plan(false)
		require.Equal(t, map[string]int{"starting h2": 1}, w.counts("m"))
		as := planner.Actions(w.view(), w.observe(false), w.conf)
		require.Len(t, as, 1)
		require.Equal(t, []any{planner.Wake, j.Name.String()}, []any{as[0].Kind, as[0].Replica})
	})
	t.Run("an old backup", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		old := w.nomad[w.oneOf("m", state.StatusServing).Name.String()]
		successor := w.found("0", "h2", 2, true)
		ends(t, w, old, successor)
		w.next("h2", paired)
		w.until(func() bool { return w.status() == "" })
		require.Equal(t, 1, w.bridged())
	})
	t.Run("an old backup, whose replica comes back", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		delete(w.nomad, w.oneOf("m", state.StatusServing).Name.String())
		successor := w.found("0", "h2", 2, true)
		as := planner.Actions(w.view(), w.observe(false), w.conf)
		require.Len(t, as, 2)
		require.Equal(t, []any{planner.Stop, successor.Name.String()}, []any{as[0].Kind, as[0].Replica})
		require.Contains(t, as[0].Reason, "GPU n0-GPU0 has 20 bytes free: needs 60")
	})
	t.Run("one that serves is left alone, and one of which nothing is known", func(t *testing.T) {
		t.Parallel()
		w := pairsOn(t, 1)
		j := w.found("0", "h2", 2, true)
		j.loads, j.strange = 0, true
		j.serves = w.now
		w.turns(4)
		require.False(t, j.Stopped)
		require.Contains(t, w.decisions("m", planner.KindOrphan)[0].Reason, "is left unchanged")
		j.loads = 12
		for name, edit := range map[string]func(*planner.Observation, *planner.Job){
			"Consul is unreachable": func(o *planner.Observation, _ *planner.Job) { o.EnginesKnown = false },
			"Nomad is unreachable":  func(o *planner.Observation, _ *planner.Job) { o.Pools = nil },
			"a write is under way":  func(o *planner.Observation, j *planner.Job) { o.InFlight[j.Name.String()] = true },
			"its meta was edited":   func(_ *planner.Observation, j *planner.Job) { j.Problem = "edited" },
		} {
			o, own := w.observe(false), j.Job
			edit(&o, &own)
			o.Jobs[own.Name.String()] = own
			require.Empty(t, planner.Actions(w.view(), o, w.conf), name)
		}
	})
}
