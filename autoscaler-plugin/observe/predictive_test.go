package observe_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/predictive"
)

func TestPredictive(t *testing.T) {
	w := two()
	read := epoch.Add(-3 * time.Second)
	w.managed.Queue.At = read
	w.managed.Queue.Arrived, w.managed.Queue.Finished, w.managed.Queue.ServedSeconds = enginemetrics.Of(100), enginemetrics.Of(80), enginemetrics.Of(400)
	w.managed.Variants[1].Slots, w.managed.Variants[1].Unplaceable = 0, true
	in := w.see(t, llama).Predictive(110*time.Second, 2*time.Second)
	require.Equal(t, predictive.Input{Now: time.Duration(read.UnixNano()), Arrived: enginemetrics.Of(100), Finished: enginemetrics.Of(80), ServedSeconds: enginemetrics.Of(400),
		Running: enginemetrics.Of(20), Waiting: enginemetrics.Of(4), KVUsage: enginemetrics.Of(0.6), Ready: 2, ColdStartSeconds: 110, TargetWaitSeconds: 2,
		Variants: []predictive.Variant{
			{Variant: "a100", Slots: 16, Cost: 20, Current: 3},
			{Variant: "l4", Slots: 16, Cost: 5, Unplaceable: true},
		}}, in)
	in.Max = 8
	require.NoError(t, in.Validate())
}

func TestPredictiveOfWhatIsNotKnown(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		check  func(*testing.T, predictive.Input)
	}{
		"gateways that do not count": {func(*world) {}, func(t *testing.T, in predictive.Input) {
			require.True(t, in.Arrived.IsZero() && in.Finished.IsZero() && in.ServedSeconds.IsZero())
			require.Equal(t, enginemetrics.Of(20), in.Running)
			require.Equal(t, time.Duration(epoch.UnixNano()), in.Now)
		}},
		"no gateway: what engines have": {func(w *world) { w.managed.Queue = observe.Queue{} }, func(t *testing.T, in predictive.Input) {
			require.Equal(t, []enginemetrics.Value{enginemetrics.Of(22), enginemetrics.Of(1)}, []enginemetrics.Value{in.Running, in.Waiting})
		}},
		"a leader that has not heard every gateway": {func(w *world) { w.managed.Queue.Known, w.managed.Queue.Partial = false, true }, func(t *testing.T, in predictive.Input) {
			require.True(t, in.Running.IsZero() && in.Waiting.IsZero(), "there may be more, and the engines do not know who waits")
		}},
		"an engine is unknown": {func(w *world) { w.report.Engines[0].View.Class = enginemetrics.ClassUnknown }, func(t *testing.T, in predictive.Input) {
			require.True(t, in.KVUsage.IsZero())
		}},
		"a KV usage that cannot be": {func(w *world) {
			w.report.Engines[0].View.Last.KVUsage = enginemetrics.Flawed(enginemetrics.NotANumber)
		}, func(t *testing.T, in predictive.Input) {
			require.True(t, math.IsNaN(in.KVUsage.Raw()))
		}},
		"no slots": {func(w *world) {
			for i := range w.managed.Variants {
				w.managed.Variants[i].Slots, w.report.Engines[i].Slots = 0, 0
			}
		}, func(t *testing.T, in predictive.Input) {
			in.Max = 8
			require.ErrorContains(t, in.Validate(), "slots")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := two()
			c.change(w)
			c.check(t, w.see(t, llama).Predictive(time.Minute, time.Second))
		})
	}
}
