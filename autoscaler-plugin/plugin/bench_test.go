package plugin_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"golang.org/x/sys/unix"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

// fleetSource is a controller and a source of metrics with models of 20 replicas each.
type fleetSource struct {
	managed observe.Managed
	report  observe.Report
}

func (f *fleetSource) Model(context.Context, string) (observe.Managed, error) { return f.managed, nil }

func (*fleetSource) Name() string { return "consul" }

func (f *fleetSource) Report(context.Context, observe.Question) (observe.Report, error) {
	return f.report, nil
}

func newFleetSource() *fleetSource {
	f := &fleetSource{managed: observe.Managed{Snapshot: observe.Snapshot{Max: 40, Management: "full", Queue: observe.Queue{Known: true, Source: observe.FromGateways, At: noon, InFlight: 160,
		Arrived: enginemetrics.Of(1e6), Finished: enginemetrics.Of(1e6), ServedSeconds: enginemetrics.Of(1e6), Refused: enginemetrics.Of(0), Served: enginemetrics.Of(8)},
		Variants: []observe.Variant{{Variant: "h100", Cost: enginemetrics.Of(8), Dialect: "vllm", Slots: 16, Current: 10, Hot: 10}, {Variant: "l4", Cost: enginemetrics.Of(1), Dialect: "vllm", Slots: 4, Current: 10, Hot: 10}}}}}
	for _, v := range f.managed.Variants {
		for i := range v.Hot {
			name := fmt.Sprintf("m:%s:%d", v.Variant, i)
			s := enginemetrics.Sample{Dialect: "vllm", Running: enginemetrics.Of(4), Waiting: enginemetrics.Of(0), KVUsage: enginemetrics.Of(0.5), KVTokens: enginemetrics.Of(65536), Ranks: 1}
			f.managed.Copies = append(f.managed.Copies, observe.Copy{Replica: name, Variant: v.Variant, Phase: observe.Hot, Slots: v.Slots, InFlight: enginemetrics.Of(4)})
			f.report.Engines = append(f.report.Engines, observe.Reported{Variant: v.Variant, Slots: v.Slots, View: enginemetrics.View{Replica: name, Class: enginemetrics.ClassOK, Last: s,
				Running: s.Running, Waiting: s.Waiting, KVUsage: s.KVUsage, Points: 12, Rates: enginemetrics.Rates{Finished: enginemetrics.Of(0.4), EndToEnd: enginemetrics.Of(10), Queue: enginemetrics.Of(0.1)}}})
		}
	}
	return f
}

// BenchmarkRun is one evaluation of 5,000 policies of 20 replicas each on the path that ships:
// from what the sources answered over the snapshot to the decision, with the state of each model.
// The sources answer at once. p99-µs is of a call, p99-cpu-µs the same in CPU time of the thread that
// makes the calls, which other programs on the machine do not lengthen, and MB what is kept of all models.
func BenchmarkRun(b *testing.B) {
	const policies = 5000
	for _, name := range plugin.StrategyNames() {
		b.Run(name, func(b *testing.B) {
			source, now := newFleetSource(), noon
			observer, err := observe.New(observe.Config{Controller: source, Metrics: source, Now: func() time.Time { return now }})
			if err != nil {
				b.Fatal(err)
			}
			p, err := plugin.NewStrategy(plugin.StrategyConfig{Strategy: name, Now: func() time.Time { return now }, Open: func(plugin.Sources, hclog.Logger) (plugin.View, error) {
				return plugin.View{Observer: observer}, nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.SetConfig(nil); err != nil {
				b.Fatal(err)
			}
			checks := make([]*sdk.ScalingPolicyCheck, policies)
			for i := range checks {
				checks[i] = &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{Config: map[string]string{"model": fmt.Sprint("m", i)}}}
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var took, cpu []time.Duration
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(10 * time.Second)
				source.managed.Queue.At = now
				for _, check := range checks {
					start, used := time.Now(), threadTime(b)
					if _, err := p.Run(&sdk.ScalingCheckEvaluation{Check: check}, 20); err != nil {
						b.Fatal(err)
					}
					took, cpu = append(took, time.Since(start)), append(cpu, threadTime(b)-used)
				}
			}
			slices.Sort(took)
			slices.Sort(cpu)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
			b.ReportMetric(float64(cpu[len(cpu)*99/100].Nanoseconds())/1000, "p99-cpu-µs")
			rounds := len(took)
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/1e6, "MB")
			b.ReportMetric(float64(rounds)/policies, "rounds")
			runtime.KeepAlive(p)
		})
	}
}

// threadTime is the CPU time that the calling thread has used.
func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
