package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/plugin"
	"remuda/autoscaler-plugin/utilization"
)

// decisions are all records of a file, each of which is the same again.
func decisions(t *testing.T, path string) []plugin.Record {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var all []plugin.Record
	var again plugin.Replayer
	for r, err := range plugin.Records(f) {
		require.NoError(t, err)
		require.NoError(t, again.Replay(&r))
		all = append(all, r)
	}
	return all
}

// Requests that were turned away make the load larger by as much as they are of those that
// were served, and at most twice as large.
func TestRefusedRequestsInflateTheLoad(t *testing.T) {
	for _, c := range []struct {
		name    string
		refused enginemetrics.Value // per minute; 60 were served
		off     bool
		count   int
		load    float64 // in replicas
	}{
		{name: "nobody counts them", count: 2, load: 1.5},
		{name: "none", refused: enginemetrics.Of(0), count: 2, load: 1.5},
		{name: "half as many", refused: enginemetrics.Of(30), count: 3, load: 2.25},
		{name: "as many", refused: enginemetrics.Of(60), count: 4, load: 3},
		{name: "a hundred times as many", refused: enginemetrics.Of(6000), count: 4, load: 3},
		{name: "switched off", refused: enginemetrics.Of(60), off: true, count: 2, load: 1.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := utilizationCall(model(0, 2, 0.5))
			call.Snapshot.Queue.Served = enginemetrics.Of(1)
			call.Usage, call.Refused = enginemetrics.Of(60*4*1.5), c.refused
			call.Options.Utilization.Config.Scaling.EZ.UseOutOfCap = !c.off
			a, _ := call.Decide()
			require.Equal(t, c.count, a.Count, a.Reason)
			said := a.Utilization.Proposals
			require.Equal(t, enginemetrics.Of(c.load), said[len(said)-1].Required)

			raw, err := json.Marshal(call)
			require.NoError(t, err)
			var read plugin.Call
			require.NoError(t, json.Unmarshal(raw, &read))
			again, _ := read.Decide()
			require.Equal(t, a, again)
		})
	}
}

// The average is over what the counter grew by in the window, whoever asked it before.
func TestRefusedRequestsAreAveragedAndRemembered(t *testing.T) {
	none, of := enginemetrics.Value{}, enginemetrics.Of
	w := newWorld(model(0, 2, 0.5))
	w.snapshot.Queue.Served = of(1)
	dir := t.TempDir()
	w.stateDir = filepath.Join(dir, "state")
	process := func(name string) (*plugin.Strategy, string) {
		path := filepath.Join(dir, name)
		return w.plugin(t, plugin.Utilization, map[string]string{"usage_window": "3m", "decisions": path}), path
	}
	p, path := process("first")
	for i, c := range []struct {
		after   time.Duration
		counter enginemetrics.Value
		want    enginemetrics.Value
		why     string
	}{
		{0, of(100), none, "what was before is left out"},
		{time.Minute, of(130), of(30), "thirty more"},
		{time.Minute, of(130), of(15), "none in the second minute"},
		{time.Minute, of(130), of(10), "nor in the third"},
		{time.Minute, of(130), of(0), "the first minute is over"},
		{time.Minute, of(10), of(0), "a counter that falls counts nothing"},
		{time.Minute, of(16), of(3), "six in the two minutes that are known of the window"},
		{time.Minute, none, of(6), "not known now: six in one minute"},
		{time.Minute, of(26), of(60 * 16.0 / 180), "ten more in two minutes"},
		{-10 * time.Minute, of(30), none, "the clock went back"},
		{30 * time.Second, of(32), of(2), "two in half a minute may be all in a minute"},
		{20 * time.Minute, of(5000), none, "it was not looked at for longer than the window"},
		{5 * time.Minute, of(5050), of(10), "it was not looked at for a while"},
		{time.Minute, of(5050), of(60 * 50.0 / 360), "which counts for as long as it was"},
		{-24 * time.Hour, none, none, "the clock went back, and it is not known"},
	} {
		if i == 3 {
			p, path = process("second")
		}
		w.now = w.now.Add(c.after)
		w.snapshot.At, w.snapshot.Queue.Refused = w.now, c.counter
		run(t, p, 2, check)
		all := decisions(t, path)
		require.Equal(t, c.want, all[len(all)-1].Call.Refused, "%d: %s", i, c.why)
	}
}

func TestALiveModelGrowsWhereRequestsAreRefused(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) {
			w := newWorld(model(0, 2, 0.5))
			w.snapshot.Queue.InFlight, w.snapshot.Queue.Served, w.snapshot.Queue.Refused = 6, enginemetrics.Of(1), enginemetrics.Of(0)
			p := w.plugin(t, plugin.Utilization, nil)
			require.Equal(t, none, run(t, p, 2, check).Direction, "6 of 8 slots")
			w.now = w.now.Add(time.Minute)
			w.snapshot.At = w.now
			want := none
			if refused {
				w.snapshot.Queue.Refused, want = enginemetrics.Of(30), up
			}
			require.Equal(t, want, run(t, p, 2, check).Direction)
		})
	}
}

// The memory stays small however often the counter is looked at.
// The limits of a cycle hold for the time of a cycle, however often the policy is evaluated, and
// what was not carried out uses up none of them.
func TestLimitsOfACycle(t *testing.T) {
	call := utilizationCall(model(0, 9, 0.1))
	o := call.Options.Utilization
	o.Config.DownscaleBatch, o.Config.MaxConcurrency, o.Cycle = 2, 4, 5*time.Minute
	call.Usage = enginemetrics.Of(0)
	current, history := 9, []int{}
	for i := range 90 { // 15 minutes
		call.Snapshot = model(0, current, 0.1)
		call.Now = noon.Add(time.Duration(i) * 10 * time.Second).UnixNano()
		a, state := call.Decide()
		call.State = state
		call.State.WatchedAt, call.State.WatchedFor = call.Now, time.Hour
		if i != 0 { // the first order is lost
			current = a.Count
		}
		history = append(history, current)
	}
	require.Equal(t, []int{9, 7, 7, 5, 5, 3}, []int{history[0], history[1], history[30], history[31], history[60], history[61]})
	require.Equal(t, 3, history[89])
}

// Successes and arrivals are those of the window of the refusals, and not of the last seconds.
func TestOneWindowForAllRequests(t *testing.T) {
	w := newWorld(model(0, 2, 0.1))
	path := filepath.Join(t.TempDir(), "d.json")
	p := w.plugin(t, plugin.Utilization, map[string]string{"decisions": path, "usage_window": "5m"})
	for i := range 30 { // five minutes, in the first of which all came
		w.now = noon.Add(time.Duration(i) * 10 * time.Second)
		w.snapshot.At = w.now
		n := float64(min(i, 6)) * 100
		q := &w.snapshot.Queue
		q.Arrived, q.Finished, q.Refused, q.Served = enginemetrics.Of(n), enginemetrics.Of(n/2), enginemetrics.Of(n/2), enginemetrics.Of(0)
		run(t, p, 2, check)
	}
	all := decisions(t, path)
	in := all[len(all)-1].Call
	const seconds = 290
	require.Equal(t, enginemetrics.Of(60*600./seconds), in.Arrived)
	require.Equal(t, enginemetrics.Of(60*300./seconds), in.Finished)
	require.Equal(t, enginemetrics.Of(60*300./seconds), in.Refused)

	decided := func(served float64, finished, arrived enginemetrics.Value) *utilization.Decision {
		call := utilizationCall(model(0, 4, 0.5))
		call.Options.Utilization.Config.MaxConcurrency = 4
		call.Snapshot.Queue.Served = enginemetrics.Of(served)
		call.Refused, call.Finished, call.Arrived = enginemetrics.Of(60), finished, arrived
		a, _ := call.Decide()
		return a.Utilization
	}
	window, unknown := enginemetrics.Of(120), enginemetrics.Value{}
	require.Equal(t, decided(1, window, window), decided(50, window, window), "the last seconds do not count")
	require.NotEqual(t, decided(1, unknown, window), decided(50, unknown, window), "successes")
	require.NotEqual(t, decided(1, window, unknown), decided(50, window, unknown), "arrivals")
}

func TestWhatIsRememberedOfRefusedRequestsIsBounded(t *testing.T) {
	w := newWorld(model(0, 2, 0.5))
	w.stateDir = t.TempDir()
	p := w.plugin(t, plugin.Utilization, map[string]string{"usage_window": "10m"})
	for i := range 180 {
		w.now = w.now.Add(15 * time.Second)
		w.snapshot.At, w.snapshot.Queue.Refused = w.now, enginemetrics.Of(float64(5*i))
		run(t, p, 2, check)
	}
	var kept struct {
		Refused struct {
			Total  float64
			Recent []struct{ Sum, Of float64 }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(w.saved(t, "remuda-utilization/m")), &kept))
	require.Len(t, kept.Refused.Recent, 10)
	for _, r := range kept.Refused.Recent[:9] {
		require.Equal(t, struct{ Sum, Of float64 }{20, 60}, r)
	}
	require.Positive(t, kept.Refused.Total)
}

func TestABrokenMemoryOfRefusedRequestsIsWrittenAnew(t *testing.T) {
	for name, state := range map[string]string{
		"total":   `{"total":-1}`,
		"count":   `{"total":1,"recent":[{"minute":1,"sum":-1,"of":60}]}`,
		"seconds": `{"total":1,"recent":[{"minute":1,"sum":1,"of":0}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(model(0, 2, 0.5))
			w.stateDir = t.TempDir()
			require.NoError(t, w.states(t).Save("remuda-utilization/m", []byte(`{"state":{},"refused":`+state+`}`)))
			w.snapshot.Queue.Refused = enginemetrics.Of(7)
			run(t, w.plugin(t, plugin.Utilization, nil), 2, check)
			require.Contains(t, w.saved(t, "remuda-utilization/m"), `"refused":{"total":7,"at":"2026-05-04T12:00:00Z"}`)
		})
	}
}
