package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/internal/replica"
)

// metrics are the shim's own figures, all labelled model, variant, replica and
// role.
type metrics struct {
	registry     *prometheus.Registry
	state        *prometheus.GaugeVec
	transitions  *prometheus.CounterVec
	initSeconds  prometheus.Gauge
	wakeSeconds  prometheus.Histogram
	drainSeconds prometheus.Histogram
	healthFailed prometheus.Counter
	consulFailed prometheus.Counter
	token        prometheus.Gauge
	parked       prometheus.Gauge
	takeovers    *prometheus.HistogramVec
	firstTokens  *prometheus.HistogramVec
}

func newMetrics(name replica.Name, role string) *metrics {
	reg := prometheus.NewRegistry()
	labels := prometheus.Labels{"model": name.Model, "variant": name.Variant, "replica": name.ID, "role": role}
	wrapped := prometheus.WrapRegistererWith(labels, reg)
	m := &metrics{
		registry: reg,
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "remuda_engine_state", Help: "1 for the engine's state, 0 for the other states.",
		}, []string{"state"}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_engine_transitions_total", Help: "State transitions by the new state.",
		}, []string{"state"}),
		initSeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "remuda_engine_init_seconds", Help: "Time from the engine's start to the end of its initialisation.",
		}),
		wakeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "remuda_engine_wake_seconds", Help: "Duration of wakes, up to the registration.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}),
		drainSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "remuda_engine_drain_seconds", Help: "Duration of drains that ended with an idle engine.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
		}),
		healthFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "remuda_engine_health_failures_total", Help: "Health checks of the Active engine that failed.",
		}),
		consulFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "remuda_engine_consul_failures_total", Help: "Calls to Consul that failed.",
		}),
		token: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "remuda_engine_token", Help: "Counter of the fencing token of the lock that the engine holds, 0 without one.",
		}),
		parked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "remuda_engine_parked", Help: "1 while the engine is parked: asleep on demand, across restarts.",
		}),
	}
	m.takeovers = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "remuda_engine_takeover_seconds", Help: "Time from the end of the replica's engine that served before to the moment this engine served, by the cause of that end.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 16),
	}, []string{"cause"})
	m.firstTokens = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "remuda_engine_takeover_first_token_seconds", Help: "Time from the end of the replica's engine that served before to the first token of this engine, by the cause of that end. Of take-overs that had a request within a second, and of engines that report their tokens (dialects vllm and sim).",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 18),
	}, []string{"cause"})
	wrapped.MustRegister(m.state, m.transitions, m.initSeconds, m.wakeSeconds, m.drainSeconds,
		m.healthFailed, m.consulFailed, m.token, m.parked, m.takeovers, m.firstTokens)
	m.entered(Init)
	return m
}

// entered notes that the engine is in state s now.
func (m *metrics) entered(s State) {
	for _, other := range []State{Init, Standby, Waking, Active, Draining, Dead} {
		m.state.WithLabelValues(string(other)).Set(0)
	}
	m.state.WithLabelValues(string(s)).Set(1)
	m.transitions.WithLabelValues(string(s)).Inc()
}

func (m *metrics) isParked(parked bool) {
	value := 0.0
	if parked {
		value = 1
	}
	m.parked.Set(value)
}

func (m *metrics) tookOver(t *Takeover) {
	m.takeovers.WithLabelValues(string(t.Cause)).Observe(t.Seconds)
	m.firstTokens.WithLabelValues(string(t.Cause)) // from 0, so that a rate sees the first one
}

func (m *metrics) madeFirstToken(cause Cause, after time.Duration) {
	m.firstTokens.WithLabelValues(string(cause)).Observe(after.Seconds())
}

func (m *metrics) woke(d time.Duration)    { m.wakeSeconds.Observe(d.Seconds()) }
func (m *metrics) drained(d time.Duration) { m.drainSeconds.Observe(d.Seconds()) }
