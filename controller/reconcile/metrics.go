package reconcile

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/raft"
	"remuda/controller/state"
)

// metrics counts what is done, and reads the state when it is asked. Only the leader
// shows what it reads, so that a sum over the servers is right.
type metrics struct {
	r         *Reconciler
	plans     *prometheus.CounterVec
	actions   *prometheus.CounterVec
	decisions *prometheus.CounterVec
	seconds   prometheus.Histogram

	replicas, inFlight, gateways, known *prometheus.Desc
}

func newMetrics(r *Reconciler) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("remuda_controller_"+name, help, labels, nil)
	}
	return &metrics{
		r: r,
		plans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_plans_total", Help: "Plans that this server has proposed, by result.",
		}, []string{"result"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_actions_total", Help: "What this server has done in Nomad, by kind and result.",
		}, []string{"kind", "result"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_decisions_total", Help: "Decisions that this server has committed, by kind.",
		}, []string{"kind"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "remuda_controller_reconcile_seconds", Help: "How long one look at the state and the world took, with the commit of what it led to.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		replicas: desc("replicas", "Replicas in the state. Only the leader tells.", "model", "variant", "tier", "phase"),
		inFlight: desc("in_flight", "Requests in flight as the gateways report them. Only the leader tells.", "model", "variant"),
		gateways: desc("gateways", "Gateways that report. Only the leader tells."),
		known:    desc("source_up", "1 where what was last heard of it is up to date. Only the leader tells.", "source"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.plans.Describe(ch)
	m.actions.Describe(ch)
	m.decisions.Describe(ch)
	m.seconds.Describe(ch)
	for _, d := range []*prometheus.Desc{m.replicas, m.inFlight, m.gateways, m.known} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.plans.Collect(ch)
	m.actions.Collect(ch)
	m.decisions.Collect(ch)
	m.seconds.Collect(ch)
	l := m.r.current()
	if l == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	type variant struct{ model, variant string }
	type stage struct {
		variant
		state.Stage
	}
	counts, flying := map[stage]int{}, map[variant]int{}
	loads := m.r.cfg.Loads.Totals()
	for _, r := range m.r.cfg.Raft.Store().View().Replicas(nil) {
		v := variant{r.Name.Model, r.Name.Variant}
		counts[stage{v, r.Stage()}]++
		flying[v] += loads[r.Name.String()].InFlight
	}
	for s, n := range counts {
		gauge(m.replicas, float64(n), s.model, s.variant.variant, string(s.Tier), string(s.Phase))
	}
	for v, n := range flying {
		gauge(m.inFlight, float64(n), v.model, v.variant)
	}
	gauge(m.gateways, float64(len(m.r.cfg.Loads.Gateways())))
	nodes, jobs, engines := l.seen.sources()
	for _, s := range []struct {
		name string
		Source
	}{{"nomad_nodes", nodes}, {"nomad_jobs", jobs}, {"consul_engines", engines}} {
		up := 0.0
		if s.Known {
			up = 1
		}
		gauge(m.known, up, s.name)
	}
}

func (m *metrics) plan(err error) {
	var refusal *state.Error
	result := "failed"
	switch {
	case err == nil:
		result = "committed"
	case errors.As(err, &refusal):
		result = "refused"
	case errors.Is(err, raft.ErrUnknownOutcome):
		result = "unknown"
	case errors.Is(err, raft.ErrNotLeader):
		result = "not_leader"
	}
	m.plans.WithLabelValues(result).Inc()
}
