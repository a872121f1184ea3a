package plugin_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

// calm is a model with more replicas than its load needs, by every strategy's rules; busy is
// one with too few.
func calm(replicas int) observe.Snapshot { return model(0, replicas, 0.01) }

func busy(replicas int) observe.Snapshot {
	s := model(0, replicas, 0.95)
	s.Queue.InFlight, s.Queue.Waiting = 4*replicas, 40
	for i := range s.Engines {
		s.Engines[i].Running, s.Engines[i].RunningNow = enginemetrics.Of(4), enginemetrics.Of(4)
	}
	return s
}

// windowed are the strategies and forms, with the window before a scale-down.
var windowed = map[string]struct {
	strategy string
	config   map[string]string
	window   time.Duration
}{
	"capacity":      {plugin.Capacity, map[string]string{"hold": "3m"}, 3 * time.Minute},
	"hpa":           {plugin.HPA, nil, 5 * time.Minute},
	"hpa, by KV":    {plugin.HPA, map[string]string{"metric": "kv"}, 5 * time.Minute},
	"hpa, no gaps":  {plugin.HPA, map[string]string{"behavior": `{"max_gap_seconds":30}`}, 5 * time.Minute},
	"hpa replicate": {plugin.HPA, map[string]string{"form": "replicate"}, 2 * time.Minute},
	"utilization":   {plugin.Utilization, map[string]string{"usage_window": "3m"}, 3 * time.Minute},
	"predictive":    {plugin.Predictive, map[string]string{"payback": "10m"}, 10 * time.Minute},
}

const interval = 10 * time.Second

// Nothing is removed before one full window was observed, whatever came before it.
func TestNothingIsRemovedBeforeOneFullWindow(t *testing.T) {
	for name, c := range windowed {
		t.Run(name, func(t *testing.T) {
			config := maps.Clone(check)
			maps.Copy(config, c.config)
			start := func(t *testing.T, stateDir string) (*world, *plugin.Strategy) {
				w := newWorld(calm(6))
				w.stateDir = stateDir
				return w, w.plugin(t, c.strategy, nil)
			}
			decide := func(t *testing.T, w *world, p *plugin.Strategy, after time.Duration) *sdk.ScalingAction {
				w.now = w.now.Add(after)
				w.snapshot.At = w.now
				return run(t, p, 6, config)
			}
			// stays requires a whole window without a scale-down, and then one.
			stays := func(t *testing.T, w *world, p *plugin.Strategy) {
				t.Helper()
				for at := time.Duration(0); at < c.window; at += interval {
					a := decide(t, w, p, interval)
					require.Equal(t, none, a.Direction, "after %s: %s", at, a.Reason)
				}
				a := decide(t, w, p, interval)
				require.Equal(t, down, a.Direction, "after %s: %s", c.window, a.Reason)
			}

			t.Run("a start without a state", func(t *testing.T) {
				w, p := start(t, "")
				stays(t, w, p)
				require.Equal(t, down, decide(t, w, p, interval).Direction, "what follows does not wait again")
			})
			t.Run("a new leader on another host", func(t *testing.T) {
				w, p := start(t, t.TempDir())
				stays(t, w, p)
				w.stateDir = t.TempDir()
				stays(t, w, w.plugin(t, c.strategy, nil))
			})
			t.Run("a leader that comes back", func(t *testing.T) {
				w, p := start(t, "")
				stays(t, w, p)
				w.now = w.now.Add(6 * time.Minute) // another one led
				stays(t, w, p)
			})
			t.Run("an old state", func(t *testing.T) {
				w, p := start(t, t.TempDir())
				stays(t, w, p)
				w.now = w.now.Add(time.Hour)
				stays(t, w, w.plugin(t, c.strategy, nil))
			})
			t.Run("a damaged state", func(t *testing.T) {
				w, p := start(t, t.TempDir())
				stays(t, w, p)
				files, err := filepath.Glob(filepath.Join(w.stateDir, "*.json"))
				require.NoError(t, err)
				require.Len(t, files, 1)
				require.NoError(t, os.Truncate(files[0], 20))
				stays(t, w, w.plugin(t, c.strategy, nil))
			})
			t.Run("a load that was unknown for long", func(t *testing.T) {
				w, p := start(t, "")
				stays(t, w, p)
				w.snapshot = unknown(w.snapshot)
				for range 36 { // six minutes
					decide(t, w, p, interval) // by the average of what it saw before, if that has a window
				}
				w.snapshot = calm(6)
				stays(t, w, p)
			})
			t.Run("a restart with its state", func(t *testing.T) {
				w, p := start(t, t.TempDir())
				stays(t, w, p)
				a := decide(t, w, w.plugin(t, c.strategy, nil), interval)
				require.Equal(t, down, a.Direction, a.Reason)
			})
		})
	}
}

// A policy that is evaluated every ten minutes shrinks where its behavior says that such gaps
// count.
func TestAPolicyThatIsRarelyEvaluatedShrinks(t *testing.T) {
	for gap, want := range map[string]sdk.ScaleDirection{"1200": down, "0": down, "60": none} {
		t.Run(gap, func(t *testing.T) {
			config := maps.Clone(check)
			config["behavior"] = `{"max_gap_seconds":` + gap + `}`
			w := newWorld(calm(6))
			p := w.plugin(t, plugin.HPA, nil)
			require.Equal(t, none, run(t, p, 6, config).Direction)
			w.now = w.now.Add(10 * time.Minute)
			a := run(t, p, 6, config)
			require.Equal(t, want, a.Direction, a.Reason)
		})
	}
}

// unknown is a model of which nothing can be read but how many replicas it has.
func unknown(s observe.Snapshot) observe.Snapshot {
	s.Engines, s.Queue = nil, observe.Queue{}
	s.Census.Inert, s.Census.Why = true, "no matching series"
	return s
}

// An idle model does not sleep by a delay that was not watched.
func TestTheIdleDelayBeginsAnewAfterABreak(t *testing.T) {
	for name, c := range windowed {
		t.Run(name, func(t *testing.T) {
			config := maps.Clone(check)
			maps.Copy(config, c.config)
			config["scale_to_zero"], config["idle_after"] = "true", "20m"
			w := newWorld(idle(calm(1)))
			p := w.plugin(t, c.strategy, nil)
			decide := func(after time.Duration) *sdk.ScalingAction {
				w.now = w.now.Add(after)
				w.snapshot.At = w.now
				return run(t, p, 1, config)
			}
			idles := func(d time.Duration) {
				for at := time.Duration(0); at < d; at += interval {
					a := decide(interval)
					require.Equal(t, none, a.Direction, "after %s: %s", at, a.Reason)
				}
			}
			idles(19*time.Minute + 50*time.Second)
			w.now = w.now.Add(6 * time.Minute)
			idles(20 * time.Minute)
			for range 2 { // the delay of the form replicate begins with its second decision
				if a := decide(interval); a.Direction == down {
					require.Zero(t, a.Count)
					return
				}
			}
			t.Fatal("it never sleeps")
		})
	}
}

// Growth does not wait for anything but a window of its own.
func TestGrowthDoesNotWaitForAState(t *testing.T) {
	for name, c := range windowed {
		if name == "hpa replicate" {
			continue // it grows to what was needed for all of 30 s
		}
		t.Run(name, func(t *testing.T) {
			config := maps.Clone(check)
			maps.Copy(config, c.config)
			a := run(t, newWorld(busy(2)).plugin(t, c.strategy, nil), 2, config)
			require.Equal(t, up, a.Direction, a.Reason)
		})
	}
}

// What is above the model's max goes at once, and no more than that.
func TestTheMaxDoesNotWaitForAWindow(t *testing.T) {
	for name, c := range windowed {
		t.Run(name, func(t *testing.T) {
			config := maps.Clone(check)
			maps.Copy(config, c.config)
			w := newWorld(calm(6))
			w.snapshot.Max = 4
			a := run(t, w.plugin(t, c.strategy, nil), 6, config)
			require.Equal(t, down, a.Direction, a.Reason)
			require.Equal(t, int64(4), a.Count, a.Reason)
		})
	}
}
