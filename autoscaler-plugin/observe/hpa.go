package observe

import (
	"fmt"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
)

// Metric is what an HPA may hold against its target.
type Metric string

// The metrics.
const (
	// MetricQueue is the requests that wait for the model, of which each replica is to have
	// the target's share: see Average.
	MetricQueue Metric = "queue"
	// MetricRunning is each engine's running requests, MetricKV its KV usage, MetricWaiting
	// the requests that wait in it: see Measured.
	MetricRunning Metric = "running"
	MetricKV      Metric = "kv"
	MetricWaiting Metric = "waiting"
)

// ParseMetric reads a metric's name.
func ParseMetric(name string) (Metric, error) {
	switch m := Metric(name); m {
	case MetricQueue, MetricRunning, MetricKV, MetricWaiting:
		return m, nil
	}
	return "", fmt.Errorf("metric is %q: must be one of %s, %s, %s, %s", name, MetricQueue, MetricRunning, MetricKV, MetricWaiting)
}

// Measured is the input of the HPA's rules for a metric that each engine has. Replicas that
// serve and cannot be judged are missing, those that start are unready, those that drain
// are left out. For MetricKV the share of slots taken stands in
// where an engine shows no KV usage.
//
// now takes an engine's last reading in place of its peak.
func (s Snapshot) Measured(m Metric, now bool, target hpa.Milli, tolerance hpa.Tolerance) hpa.Measured {
	out := hpa.Measured{Current: s.Current(), Target: target, Tolerance: tolerance, Replicas: []hpa.Replica{}}
	for i := range s.Engines {
		e := &s.Engines[i]
		if e.Draining {
			continue
		}
		r := hpa.Replica{Condition: hpa.Missing}
		if e.usable() {
			if now {
				last := *e
				last.KV, last.Waiting, last.Running = e.KVNow, e.WaitingNow, e.RunningNow
				e = &last
			}
			v := e.Running
			switch m {
			case MetricKV:
				v = e.kv()
			case MetricWaiting, MetricQueue:
				v = e.Waiting
			}
			if f, flaw := v.Get(); flaw == enginemetrics.None {
				if milli, flaw := hpa.FromFloat(f); flaw == enginemetrics.None {
					r = hpa.Replica{Value: milli}
				}
			}
		}
		out.Replicas = append(out.Replicas, r)
	}
	for range max(0, out.Current-len(out.Replicas)) {
		out.Replicas = append(out.Replicas, hpa.Replica{Condition: hpa.Unready})
	}
	return out
}

// Average is the input of the HPA's rules for the requests that wait for the model. why
// says why they are not known, and the Average must not be used then; it is empty where
// they are.
func (s Snapshot) Average(target hpa.Milli, tolerance hpa.Tolerance) (a hpa.Average, why string) {
	a = hpa.Average{Current: s.Current(), Target: target, Tolerance: tolerance}
	if why = s.queueUnknown(); why == "" {
		a.Value = hpa.Milli(s.Queue.Waiting) * 1000
	}
	return a, why
}

// Backlog is what Replicate's scaler looks at: requests that wait are its queue, those at
// engines run. Those that run count in the queue as well where running is true.
func (s Snapshot) Backlog(running bool) hpa.Observed {
	out := hpa.Observed{Current: s.Current(), Ready: s.HotCount(), Unknown: s.queueUnknown()}
	if out.Unknown != "" {
		return out
	}
	out.Queue, out.Running = int64(s.Queue.Waiting), int64(s.Queue.InFlight)
	if running {
		out.Queue += out.Running
	}
	return out
}

func (s *Snapshot) queueUnknown() string {
	switch {
	case s.Queue.Known:
		return ""
	case len(s.Engines) == 0:
		return "no gateway reports the model's queue, and no engine is observed"
	}
	return "no gateway reports the model's queue, and not every engine reports its own"
}
