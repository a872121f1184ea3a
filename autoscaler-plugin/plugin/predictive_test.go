package plugin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/autoscaler-plugin/predictive"
	"remuda/internal/testkit/long"
	"remuda/internal/testkit/loopback"
)

func predictiveCall(s observe.Snapshot) plugin.Call {
	return plugin.Call{Strategy: plugin.Predictive, Now: noon.UnixNano(), Snapshot: s, Options: plugin.Options{Model: "m", IdleAfter: time.Minute,
		Predictive: &plugin.PredictiveOptions{Config: predictive.DefaultConfig(), TargetWait: 2 * time.Second, ColdStart: 110 * time.Second}}}
}

// loaded is a model with a load of its own, whose gateways count.
type loaded struct {
	call    plugin.Call
	arrived float64
	answer  plugin.Answer
}

func newLoaded(replicas int) *loaded {
	l := &loaded{call: predictiveCall(idle(model(0, replicas, 0.2)))}
	l.call.Snapshot.Max = 100
	return l
}

// step passes ten seconds with so many requests a second, of four seconds each, and carries
// out what is decided.
func (l *loaded) step(rate float64) {
	l.call.Now += int64(10 * time.Second)
	l.arrived += 10 * rate
	q := &l.call.Snapshot.Queue
	l.call.Snapshot.At = time.Unix(0, l.call.Now).UTC()
	q.Arrived, q.Finished, q.ServedSeconds, q.At = enginemetrics.Of(l.arrived), enginemetrics.Of(l.arrived), enginemetrics.Of(4*l.arrived), l.call.Snapshot.At
	q.InFlight = int(4 * rate)
	l.decide()
}

func (l *loaded) decide() {
	l.answer, l.call.State = l.call.Decide()
	for i := range l.call.Snapshot.Variants {
		v := &l.call.Snapshot.Variants[i]
		v.Current = l.answer.Targets[v.Variant]
		v.Hot = v.Current
	}
}

func (l *loaded) run(rate float64, d time.Duration) {
	for range int(d / (10 * time.Second)) {
		l.step(rate)
	}
}

func TestPredictive(t *testing.T) {
	l := newLoaded(1)
	l.run(2, time.Hour) // 8 slots of 4 to a replica
	require.NotNil(t, l.answer.Predictive)
	require.InDelta(t, 8, l.answer.Predictive.Load, 1e-6, l.answer.Reason)
	require.GreaterOrEqual(t, l.answer.Count, 2)
	require.LessOrEqual(t, l.answer.Count, 5)
	require.Zero(t, l.answer.Targets["h100"], "the cheapest grows")
	calm := l.answer.Count
	l.run(8, time.Minute)
	require.GreaterOrEqual(t, l.answer.Count, 8, l.answer.Reason)
	l.run(2, 10*time.Minute)
	require.Greater(t, l.answer.Count, calm, "what came may come back")
	l.run(0, 4*time.Hour)
	require.Equal(t, 1, l.answer.Count, "the last one goes only by being idle, where that is wanted: %s", l.answer.Reason)
	l.call.Options.ScaleToZero = true
	l.step(0)
	require.Zero(t, l.answer.Count, l.answer.Reason)
	l.run(0, time.Hour)
	require.NotNil(t, l.answer.Predictive, "it goes on watching")
	l.call.Snapshot.Queue.Waiting = 1
	l.step(0)
	require.Equal(t, map[string]int{"h100": 0, "l4": 1}, l.answer.Targets, "the first request brings it back")
}

// A model at zero is up before the load that came yesterday at this time, and goes back to zero if it does not come.
func TestPredictivePrepares(t *testing.T) {
	l := newLoaded(1)
	l.call.Options.ScaleToZero = true
	day := func(rate float64) (before int) {
		l.run(0, 9*time.Hour)
		before = l.answer.Count
		l.run(rate, 8*time.Hour)
		l.run(0, 7*time.Hour)
		require.Zero(t, l.answer.Count, l.answer.Reason)
		return before
	}
	require.Zero(t, day(10)) // 40 slots of 4 to a replica
	require.GreaterOrEqual(t, day(10), 10)
	l.run(0, 9*time.Hour)
	require.GreaterOrEqual(t, l.answer.Count, 10)
	require.Equal(t, predictive.BySeason, l.answer.Predictive.Rule)
	l.run(0, 30*time.Minute)
	require.Zero(t, l.answer.Count, "a day off: %s", l.answer.Reason)
	l.call.Options.ScaleToZero = false
	l.run(0, 24*time.Hour-30*time.Minute)
	require.Zero(t, l.answer.Count, "without scale_to_zero, a model at zero waits for a request")
}

func TestPredictiveEdges(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(*plugin.Call)
		count int
		inert string
	}{
		{"what is not known changes nothing", func(c *plugin.Call) { c.Snapshot.Queue = observe.Queue{} }, 3, "the requests in the system are unknown"},
		{"slots are told by none, and none serves", func(c *plugin.Call) {
			for i := range c.Snapshot.Variants {
				v := &c.Snapshot.Variants[i]
				v.Slots, v.Starting, v.Hot = 0, v.Hot, 0
			}
		}, 3, ""},
		{"slots are told by none, and some serve", func(c *plugin.Call) {
			for i := range c.Snapshot.Variants {
				c.Snapshot.Variants[i].Slots = 0
			}
		}, 3, "slots"},
		{"a queue with slow start, as nobody knows how long a request takes", func(c *plugin.Call) { c.Snapshot.Queue.Waiting = 1000 }, 6, ""},
		{"above the model's max", func(c *plugin.Call) { c.Snapshot.Max = 2 }, 2, ""},
		{"below the model's min", func(c *plugin.Call) { c.Snapshot.Min = 5 }, 5, ""},
		{"a plain job group, by what its engines have", func(c *plugin.Call) {
			c.Snapshot.Controlled, c.Snapshot.Variants = false, c.Snapshot.Variants[1:]
			c.Snapshot.Queue = observe.Queue{Known: true, Source: observe.FromEngines, InFlight: 12, Waiting: 4}
		}, 6, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := predictiveCall(model(0, 3, 0.2))
			c.edit(&call)
			a, _ := call.Decide()
			require.Equal(t, c.count, a.Count, a.Reason)
			if c.inert == "" {
				require.Empty(t, a.Inert)
			} else {
				require.Contains(t, a.Inert, c.inert)
			}
		})
	}
}

// A controller that has just begun to lead knows less than there is.
func TestNothingIsRemovedBeforeEveryGatewayIsHeard(t *testing.T) {
	partial := observe.Queue{Partial: true, Source: observe.FromGateways}
	for name, of := range map[string]func(observe.Snapshot) plugin.Call{"capacity": capacityCall, "hpa": hpaCall, "utilization": utilizationCall, "predictive": predictiveCall} {
		t.Run(name, func(t *testing.T) {
			call := of(model(0, 4, 0.01))
			call.Snapshot.Queue, call.Options.ScaleToZero = partial, true
			a := day(call, 20)
			require.Equal(t, 4, a.Count, a.Reason)
			require.Empty(t, a.Inert, "it lasts for seconds: nobody needs to be called")

			call = of(model(0, 0, 0))
			call.Snapshot.Queue = partial
			a, _ = call.Decide()
			require.Zero(t, a.Count)
			call.Snapshot.Queue.Waiting = 1
			a, _ = call.Decide()
			require.Equal(t, 1, a.Count, "a request that was heard of is there: %s", a.Reason)
		})
	}
	for name, edit := range map[string]func(*plugin.Call){
		"no KV usage": func(c *plugin.Call) {
			*c = hpaCall(c.Snapshot)
			c.Options.HPA.Metric = observe.MetricKV
			for i := range c.Snapshot.Engines {
				c.Snapshot.Engines[i].KV, c.Snapshot.Engines[i].Slots = enginemetrics.Value{}, 0
			}
		},
		"no tier": func(c *plugin.Call) {
			*c = utilizationCall(c.Snapshot)
			c.Options.Utilization.Config.Tiers = []string{"gold"}
		},
		"no series": func(c *plugin.Call) {
			*c = hpaCall(unknown(c.Snapshot))
		},
		"no slots": func(c *plugin.Call) {
			*c = predictiveCall(c.Snapshot)
			for i := range c.Snapshot.Variants {
				c.Snapshot.Variants[i].Slots = 0
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			call := capacityCall(model(0, 4, 0.01))
			edit(&call)
			call.Snapshot.Queue = partial
			a, _ := call.Decide()
			require.NotEmpty(t, a.Inert, "the queue is not what is missing: %s", a.Reason)
		})
	}
	call := capacityCall(model(2, 2, 0.1))
	call.Snapshot.Queue = partial
	a, _ := call.Decide()
	require.Equal(t, plugin.None, a.Direction)
	require.Contains(t, a.Reason, "until every gateway has reported to the controller's new leader; otherwise: ")
	call.Snapshot.Queue = observe.Queue{Known: true}
	a, _ = call.Decide()
	require.Equal(t, plugin.Down, a.Direction)
}

// restless lets a model go on for days with a load that jumps, and returns its call.
func restless(replicas int, d time.Duration) *loaded {
	l := newLoaded(replicas)
	r := rand.New(rand.NewPCG(1, 2))
	rate := 10.0
	for range int(d / (30 * time.Second)) {
		rate = min(max(rate*(0.9+0.2*r.Float64()), 0.5), 60)
		l.call.Now += int64(20 * time.Second)
		l.arrived += 20 * rate
		l.step(rate)
	}
	return l
}

// The state of a week is written to disk every half minute.
func TestTheStateIsSmallEnough(t *testing.T) {
	l := restless(10, 8*24*time.Hour)
	raw, err := json.Marshal(l.call.State)
	require.NoError(t, err)
	require.Less(t, len(raw), 40<<10)
	t.Logf("%d bytes", len(raw))

	w := newWorld(l.call.Snapshot)
	w.now = time.Unix(0, l.call.Now)
	w.stateDir = t.TempDir()
	memory, err := json.Marshal(map[string]any{"state": l.call.State})
	require.NoError(t, err)
	require.NoError(t, w.states(t).Save("remuda-predictive/m", memory))
	p := w.plugin(t, plugin.Predictive, nil)
	w.snapshot.Queue.Waiting = 500 // so that it acts, and keeps its state
	require.Equal(t, up, run(t, p, 10, check).Direction)
	require.Less(t, len(w.saved(t, "remuda-predictive/m")), 64<<10)

	again := w.plugin(t, plugin.Predictive, nil)
	w.now = w.now.Add(10 * time.Second)
	require.NotContains(t, run(t, again, 10, check).Reason, "load 0.0", "the other process goes on where the first one was")
}

// Whatever a policy has seen: a Call that went through JSON decides the same again.
func TestPredictiveIsTheSameAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLoaded(rapid.IntRange(0, 5).Draw(t, "replicas"))
		l.call.Options.ScaleToZero = rapid.Bool().Draw(t, "scale to zero")
		l.call.Options.UnplaceableHold = time.Minute
		l.call.Options.Predictive.ColdStart = time.Duration(rapid.IntRange(0, 600).Draw(t, "cold start")) * time.Second
		for range rapid.IntRange(1, long.Pick(20, 80)).Draw(t, "steps") {
			q := &l.call.Snapshot.Queue
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				l.arrived = 0 // the counters begin anew
			case 1:
				q.Known = !q.Known
			case 2:
				l.call.Now += int64(rapid.IntRange(-7200, 7200).Draw(t, "jump")) * int64(time.Second)
			case 3:
				l.call.Snapshot.Variants[rapid.IntRange(0, 1).Draw(t, "variant")].Unplaceable = rapid.Bool().Draw(t, "unplaceable")
			case 4:
				q.Waiting = rapid.IntRange(0, 50).Draw(t, "waiting")
			}
			raw, err := json.Marshal(l.call)
			require.NoError(t, err)
			var again plugin.Call
			require.NoError(t, json.Unmarshal(raw, &again))
			require.NoError(t, again.State.Validate())
			a, s := again.Decide()
			b, r := l.call.Decide()
			for _, pair := range [][2]any{{a, b}, {s, r}} {
				one, err := json.Marshal(pair[0])
				require.NoError(t, err)
				two, err := json.Marshal(pair[1])
				require.NoError(t, err)
				require.True(t, bytes.Equal(one, two), "%s\n%s", one, two)
			}
			l.step(rapid.Float64Range(0, 20).Draw(t, "rate"))
		}
	})
}

// Most records have no state of their own, and the file says the same again as a whole, in
// parts, and where two autoscalers write to it.
func TestDecisionsOfALargeState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	l := newLoaded(3)
	w := newWorld(l.call.Snapshot)
	config := map[string]string{"decisions": path}
	one, two := w.plugin(t, plugin.Predictive, config), w.plugin(t, plugin.Predictive, config)
	const n = 200
	for i := range n {
		l.step(float64(i % 7))
		w.snapshot, w.now = l.call.Snapshot, time.Unix(0, l.call.Now)
		run(t, one, 3, check)
		if i%3 == 0 {
			run(t, two, 3, check)
		}
	}
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := bytes.SplitAfter(bytes.TrimSpace(raw), []byte("\n"))
	same, full, without := replayed(t, lines)
	require.Equal(t, len(lines), same)
	require.Zero(t, without)
	require.Greater(t, full, 2, "now and then the whole state stands there")
	require.Less(t, full, 40)

	same, full, without = replayed(t, lines[20:])
	require.Positive(t, without, "what it goes by was before")
	require.Positive(t, full)
	require.Equal(t, len(lines)-20, same+without)

	raw = bytes.Join(lines, nil)
	one2, err := plugin.OpenDecisions(filepath.Join(t.TempDir(), "d"), 1000)
	require.NoError(t, err)
	require.Zero(t, one2.Turn())
	for range 3 {
		require.NoError(t, one2.Write(&plugin.Record{Answer: plugin.Answer{Reason: fmt.Sprintf("%800d", len(raw))}}))
	}
	require.Equal(t, int64(2), one2.Turn(), "each rotation makes the next record whole")
	require.NoError(t, one2.Close())
}

// replayed decides lines again: how many are the same, how many have their state with them,
// and of how many it is not there.
func replayed(t *testing.T, lines [][]byte) (same, full, without int) {
	t.Helper()
	var p plugin.Replayer
	for r, err := range plugin.Records(bytes.NewReader(bytes.Join(lines, nil))) {
		require.NoError(t, err)
		if err := p.Replay(&r); err == nil {
			same++
		} else {
			require.ErrorIs(t, err, plugin.ErrNoState)
			without++
		}
		if r.Before == "" {
			full++
		}
	}
	return same, full, without
}

// Counters that begin anew, as with the next leader of the controller, are neither a load nor
// its end.
func TestCountersThatBeginAnew(t *testing.T) {
	l := newLoaded(3)
	l.run(5, 2*time.Hour)
	load, count := l.answer.Predictive.Load, l.answer.Count
	for _, restart := range []float64{0, 7} {
		l.arrived = restart
		for range 12 {
			l.step(5)
			require.LessOrEqual(t, l.answer.Predictive.Load, 1.01*load, l.answer.Reason)
			require.GreaterOrEqual(t, l.answer.Predictive.Load, 0.6*load, "an interval or two of the minute are lost: %s", l.answer.Reason)
			require.Equal(t, count, l.answer.Count, l.answer.Reason)
		}
	}
}

func TestPredictedSlotsAreToldAsMetrics(t *testing.T) {
	at := loopback.Free(t)
	w := newWorld(model(0, 2, 0.2))
	w.snapshot.Queue.InFlight = 6
	run(t, w.plugin(t, plugin.Predictive, map[string]string{"metrics_listen": at}), 2, check)
	resp, err := http.Get("http://" + at + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `remuda_autoscaler_predicted_slots{model="m",of="load",strategy="remuda-predictive"} 6`)
}

// TestColdStartIsMeasured: the longest start of a variant that may grow decides how far ahead the
// forecast looks, unless the policy sets it; before any was measured it is 110 s.
func TestColdStartIsMeasured(t *testing.T) {
	decided := func(set time.Duration, measured ...time.Duration) plugin.Answer {
		c := predictiveCall(idle(model(1, 1, 0.2)))
		c.Snapshot.Queue.Waiting, c.Snapshot.Queue.InFlight = 3, 8
		c.Options.Predictive.ColdStart = set
		for i, m := range measured {
			c.Snapshot.Variants[i].ColdStart = m
		}
		for range 400 { // long enough to learn errors, of which those of one time ahead are kept
			c.Now += int64(10 * time.Second)
			c.Snapshot.At = time.Unix(0, c.Now).UTC()
			_, c.State = c.Decide()
		}
		a, _ := c.Decide()
		return a
	}
	long := decided(10 * time.Minute)
	require.Equal(t, long, decided(0, 10*time.Minute, time.Minute))
	require.Equal(t, long, decided(10*time.Minute, time.Second, time.Second), "the policy's own wins")
	require.Equal(t, decided(110*time.Second), decided(0))
	require.NotEqual(t, long.Predictive.Need, decided(0).Predictive.Need)
}

// TestLateRequestsAreCounted: the gateways' counter of late requests moves the risk where the model's
// goal for the first token is the wait that the policy allows.
func TestLateRequestsAreCounted(t *testing.T) {
	risk := func(goal time.Duration, late float64) float64 {
		l := newLoaded(4)
		l.call.Snapshot.Goals.FirstToken.Within = goal
		for i := range 60 {
			l.call.Snapshot.Queue.Late = enginemetrics.Of(late * float64(i))
			l.step(3)
		}
		return l.answer.Predictive.Risk
	}
	require.Less(t, risk(2*time.Second, 5), risk(2*time.Second, 0))
	require.Less(t, risk(time.Second, 5), risk(time.Second, 0))
	require.Equal(t, risk(3*time.Second, 5), risk(3*time.Second, 0), "the policy allows less")
	require.Equal(t, risk(0, 0), risk(2*time.Second, 0))
}
