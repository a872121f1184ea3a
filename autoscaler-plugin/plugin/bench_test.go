package plugin_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad-autoscaler/sdk"

	"github.com/hashicorp/go-hclog"

	"remuda/autoscaler-plugin/plugin"
)

// BenchmarkRun is a call of the plugin with 5,000 policies of 20 replicas each, whose
// snapshots are at hand. p99-µs is what the goal of 1 ms is held against.
func BenchmarkRun(b *testing.B) {
	for _, name := range plugin.StrategyNames() {
		b.Run(name, func(b *testing.B) {
			w := newWorld(model(10, 10, 0.5))
			p, err := plugin.NewStrategy(plugin.StrategyConfig{Strategy: name, Open: func(plugin.Sources, hclog.Logger) (plugin.View, error) {
				return plugin.View{Observer: w}, nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.SetConfig(nil); err != nil {
				b.Fatal(err)
			}
			const policies = 5000
			checks := make([]*sdk.ScalingPolicyCheck, policies)
			for i := range checks {
				checks[i] = &sdk.ScalingPolicyCheck{Strategy: &sdk.ScalingPolicyStrategy{Config: map[string]string{"model": fmt.Sprint("m", i)}}}
			}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				w.asked = w.asked[:0]
				if _, err := p.Run(&sdk.ScalingCheckEvaluation{Check: checks[i%policies]}, 20); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
		})
	}
}
