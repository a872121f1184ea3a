package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a strategy plugin. They may be used from several goroutines at once.
type Metrics struct {
	decisions *prometheus.CounterVec
	target    *prometheus.GaugeVec
	slots     *prometheus.GaugeVec
	inert     *prometheus.GaugeVec
	observe   *prometheus.CounterVec
	state     *prometheus.CounterVec
	lost      prometheus.Counter
	took      *prometheus.HistogramVec
}

// NewMetrics registers them.
func NewMetrics(to prometheus.Registerer, strategy string) *Metrics {
	labels := prometheus.Labels{"strategy": strategy}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "remuda_autoscaler", Name: name, Help: help, ConstLabels: labels}
	}
	m := &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts(opts("decisions_total", "Decisions by direction: up, down or none.")), []string{"model", "direction"}),
		target:    prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("target_replicas", "Replicas of each variant in the last decision.")), []string{"model", "variant"}),
		slots:     prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("predicted_slots", "Slots in remuda-predictive's last decision: load, peak, forecast, need, and short (needed and not available).")), []string{"model", "of"}),
		inert:     prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("inert", "1 while the policy cannot make a decision: no matching series, or all replicas unknown.")), []string{"model"}),
		observe:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("observe_errors_total", "Decisions for which the model could not be observed.")), []string{"model"}),
		state:     prometheus.NewCounterVec(prometheus.CounterOpts(opts("state_errors_total", "States that could not be loaded (load) or saved (save).")), []string{"model", "kind"}),
		lost:      prometheus.NewCounter(prometheus.CounterOpts(opts("decisions_unwritten_total", "Decisions that could not be written to the decisions file."))),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "remuda_autoscaler", Name: "duration_seconds", Help: "Duration of a call of the strategy (run) and of its observation alone (observe).",
			ConstLabels: labels, Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 2, 10},
		}, []string{"part"}),
	}
	to.MustRegister(m.decisions, m.target, m.slots, m.inert, m.observe, m.state, m.lost, m.took)
	return m
}

func (m *Metrics) decided(model string, a *Answer) {
	m.decisions.WithLabelValues(model, a.Direction).Inc()
	for v, n := range a.Targets {
		m.target.WithLabelValues(model, v).Set(float64(n))
	}
	if p := a.Predictive; p != nil {
		for of, f := range map[string]float64{"load": p.Load, "peak": p.Base, "forecast": p.Forecast, "need": p.Need, "short": p.Short} {
			m.slots.WithLabelValues(model, of).Set(f)
		}
	}
	inert := 0.0
	if a.Inert != "" {
		inert = 1
	}
	m.inert.WithLabelValues(model).Set(inert)
}

// forget drops the series of a model that nobody asks for any more.
func (m *Metrics) forget(model string) {
	of := prometheus.Labels{"model": model}
	m.target.DeletePartialMatch(of)
	m.slots.DeletePartialMatch(of)
	m.inert.DeletePartialMatch(of)
}

func (m *Metrics) since(part string, start time.Time) {
	m.took.WithLabelValues(part).Observe(time.Since(start).Seconds())
}
