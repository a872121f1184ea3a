package planner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

func TestCanaryIsJudgedByItsRequests(t *testing.T) {
	t.Parallel()
	hash := func(of string, share, other float64) func(*state.Replica) float64 {
		return func(r *state.Replica) float64 {
			if fmt.Sprint("h", r.Version) == of { // the first version has h1, the second h2
				return share
			}
			return other
		}
	}
	for _, tc := range []struct {
		name          string
		share, stable float64
		each          int
		want          string // the reason, empty where it is rolled out
	}{
		{"it fails a fifth", 0.2, 0, 10, "canary failed: "},
		{"it fails all", 1, 0, 10, "canary failed: "},
		{"few", 0.02, 0, 10, ""},
		{"few of many", 0.05, 0, 20, ""},
		{"as many as the replicas of before", 0.2, 0.2, 10, ""},
		{"no requests", 1, 0, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := deployed(t, 3, "n0", "n1", "n2")
			w.clients.each, w.clients.fails = tc.each, hash("h2", tc.share, tc.stable)
			w.turns(20)
			w.model(model("m", 0, variant("a", "h2")))
			if tc.want == "" {
				w.until(func() bool { return w.status() == "" })
				require.Equal(t, 3, w.counts("m")["serving h2"])
				require.Empty(t, w.decisions("m", planner.KindRolledBack))
				return
			}
			w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
			c := w.only(func(r *state.Replica) bool { return r.Canary }).Name.String()
			w.requests[c] = []time.Time{w.now.Add(time.Hour)}
			w.until(func() bool { return w.status() == state.RolloutRolledBack })
			ro := w.view().Model(nil, "m").Rollouts["a"]
			require.Contains(t, ro.Reason, tc.want)
			require.Contains(t, ro.Reason, "(stable version: 0 of ")
			require.Contains(t, w.decisions("m", planner.KindRolledBack)[0].Reason, ro.Reason)
			require.Equal(t, map[string]int{"serving h1": 3, "draining h2": 1}, w.counts("m"), "it may finish what it answers")
			w.requests[c] = nil
			w.until(func() bool { return len(w.counts("m")) == 1 })
			require.Equal(t, 3, w.counts("m")["serving h1"])
			require.Empty(t, w.decisions("m", planner.KindReplaced))
		})
	}
	// A gateway asks an engine that fails but rarely.
	t.Run("it fails all of few", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1", "n2")
		w.conf.CanaryTime = time.Hour
		w.model(model("m", 0, variant("a", "h2")))
		w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
		c := w.only(func(r *state.Replica) bool { return r.Canary }).Name.String()
		w.clients.of[c] = &requests{}
		for range 5 {
			require.Empty(t, w.decisions("m", planner.KindRolledBack))
			w.clients.of[c].end(w.now, true)
			w.turns(15)
		}
		require.Equal(t, state.RolloutRolledBack, w.status())
	})
	t.Run("it lost its requests at one moment", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1", "n2")
		w.model(model("m", 0, variant("a", "h2")))
		w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
		c := w.only(func(r *state.Replica) bool { return r.Canary }).Name.String()
		w.clients.of[c] = &requests{}
		for range 20 {
			w.clients.of[c].end(w.now, true)
		}
		w.clients.of[c].end(w.now, false)
		w.until(func() bool { return w.status() == "" })
		require.Equal(t, 3, w.counts("m")["serving h2"])
	})
	t.Run("replicas that follow the canary", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 3, "n0", "n1", "n2")
		w.clients.each = 10
		w.turns(20)
		w.model(model("m", 0, variant("a", "h2")))
		w.until(func() bool { return w.status() == state.RolloutRolling && w.counts("m")["serving h2"] == 2 })
		w.load = func() time.Duration { return 30 * tick } // so that the rollout is not over at once
		w.clients.fails = hash("h2", 0.2, 0)
		w.until(func() bool { return w.status() == state.RolloutRolledBack })
		require.Contains(t, w.view().Model(nil, "m").Rollouts["a"].Reason, "replicas of the new definition failed: ")
		require.GreaterOrEqual(t, w.counts("m")["serving h2"], 2, "they serve until others do")
		w.until(func() bool { return w.counts("m")["serving h1"] == 3 && len(w.counts("m")) == 1 })
	})
	t.Run("nothing of before serves", func(t *testing.T) {
		t.Parallel()
		w := deployed(t, 2, "n0", "n1", "n2")
		w.model(model("m", 0, variant("a", "h2")))
		w.until(func() bool { return w.counts("m")["serving h2"] == 1 })
		w.broken["h1"] = true
		for _, j := range w.nomad {
			if j.Hash == "h1" {
				j.alloc.Client, j.alloc.Failed, j.serves = "failed", true, time.Time{}
			}
		}
		w.clients.each, w.clients.fails = 10, always(0.2)
		w.until(func() bool { return w.status() == state.RolloutRolling })
		require.Empty(t, w.decisions("m", planner.KindRolledBack))
	})
}
