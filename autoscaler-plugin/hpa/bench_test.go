package hpa_test

import (
	"testing"
	"time"

	"remuda/autoscaler-plugin/hpa"
)

// BenchmarkNext is one decision a cycle with a recommendation that moves all the time.
func BenchmarkNext(b *testing.B) {
	behavior := hpa.DefaultBehavior()
	var s hpa.State
	current := 5
	b.ReportAllocs()
	for i := range b.N {
		current = behavior.Next(&s, time.Duration(i)*10*time.Second, current, 1+i*7919%20, 1, 20).Replicas
	}
}

// BenchmarkBacklog is the same for Replicate's form.
func BenchmarkBacklog(b *testing.B) {
	backlog := hpa.DefaultBacklog()
	var s hpa.State
	o := hpa.Observed{Current: 5, Ready: 5}
	b.ReportAllocs()
	for i := range b.N {
		o.Queue = int64(i * 7919 % 20)
		o.Current = backlog.Next(&s, time.Duration(i)*10*time.Second, o).Replicas
		o.Ready = o.Current
	}
}

// BenchmarkMeasured is a metric of 20 replicas.
func BenchmarkMeasured(b *testing.B) {
	m := hpa.Measured{Current: 20, Target: 700, Tolerance: hpa.DefaultTolerance(), Replicas: with(ready(many(17, 912)...), 2, 1)}
	b.ReportAllocs()
	for range b.N {
		m.Desired()
	}
}
