package reconcile

import (
	"cmp"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/gatewayreport"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// metrics counts plans and actions, and reads the state at each scrape. Only the leader
// exports what is read from the state, so that a sum over the servers is right.
type metrics struct {
	r *Reconciler

	mu sync.Mutex // guards named
	// named has the models for which evictions or replacements have a counter.
	named map[string]bool

	plans        *prometheus.CounterVec
	actions      *prometheus.CounterVec
	decisions    *prometheus.CounterVec
	evictions    *prometheus.CounterVec
	replacements *prometheus.CounterVec
	failovers    *prometheus.CounterVec
	seconds      prometheus.Histogram
	tiers        map[planner.Kind]*prometheus.HistogramVec

	replicas, target, inFlight, answered, failed, waiting, gateways, known, pools, gpus, degraded, missing *prometheus.Desc
}

// Parts of the duration of a tier change.
const (
	partAll    = "all"    // from the decision to the commit of the outcome
	partEngine = "engine" // the shim's share: the drain and the engine
)

func newMetrics(r *Reconciler) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("remuda_controller_"+name, help, labels, nil)
	}
	tier := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "remuda_controller_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 20),
		}, []string{"part"})
	}
	return &metrics{
		r: r, named: map[string]bool{},
		plans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_plans_total", Help: "Plans proposed by this server, by result.",
		}, []string{"result"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_actions_total", Help: "Actions of this server in Nomad and at shims, by kind and result.",
		}, []string{"kind", "result"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_decisions_total", Help: "Decisions committed by this server, by kind.",
		}, []string{"kind"}),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_evictions_total", Help: "Replicas evicted by this server to make room, by their model and the kind of the decision.",
		}, []string{"model", "kind"}),
		replacements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_replacements_total", Help: "Replicas replaced by this server because they failed their requests, by their model.",
		}, []string{"model"}),
		failovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_failovers_total", Help: "Failovers within replicas that this server recorded, by their model and why the engine before ended.",
		}, []string{"model", "cause"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "remuda_controller_reconcile_seconds", Help: "Duration of one reconciliation, with the commit of its plan.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		tiers: map[planner.Kind]*prometheus.HistogramVec{
			planner.Sleep: tier("sleep_seconds", "Duration from HOT to WARM after the drain: in total, until the memory is free, or the engine's share."),
			planner.Wake:  tier("wake_seconds", "Duration from WARM to HOT: in total, or the engine's share."),
		},
		replicas: desc("replicas", "Replicas in the state. Reported by the leader only.", "model", "variant", "tier", "status", "pool"),
		target:   desc("target_replicas", "Replicas that a model is to have, after every limit. Reported by the leader only.", "model"),
		gpus: desc("gpus", "GPUs of a node by state: ready, unhealthy, cordoned, memory_held (cordoned by the controller: a sleeping replica's memory was not freed). "+
			"Reported by the leader only.", "node", "state"),
		inFlight: desc("in_flight", "Requests in flight, as reported by the gateways. Reported by the leader only.", "model", "variant"),
		answered: desc("requests_answered", "Requests that replicas have answered within the last 30 s, as reported by the gateways. Reported by the leader only.", "model", "variant"),
		failed:   desc("requests_failed", "Requests that replicas have failed within the last 30 s, as reported by the gateways: 5xx, broken connections, time-outs. Reported by the leader only.", "model", "variant"),
		waiting:  desc("waiting", "Requests waiting for an engine, as reported by the gateways. Reported by the leader only.", "model"),
		gateways: desc("gateways", "Gateways that report to the controller. Reported by the leader only."),
		known:    desc("source_up", "1 if the data of this source is up to date. Reported by the leader only.", "source"),
		degraded: desc("degraded_replicas", "Failover pairs that serve and have no engine that could take over. Reported by the leader only.", "model"),
		missing:  desc("standby_missing_seconds", "For how long the model's failover pair that has lacked an engine to take over for longest has lacked it; 0 if none does. Reported by the leader only.", "model"),
		pools:    desc("pool_up", "1 if the Nomad of this capacity pool is reachable; the controller's own pool has an empty name. Reported by the leader only.", "pool"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.replicas, m.target, m.inFlight, m.answered, m.failed, m.waiting, m.gateways, m.known, m.pools, m.gpus, m.degraded, m.missing} {
		ch <- d
	}
}

func (m *metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.plans, m.actions, m.decisions, m.evictions, m.replacements, m.failovers, m.seconds, m.tiers[planner.Sleep], m.tiers[planner.Wake]}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.followModels(m.r.cfg.Raft.Store().View())
	for _, c := range m.counted() {
		c.Collect(ch)
	}
	l := m.r.current()
	if l == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	type variant struct{ model, variant string }
	type group struct {
		variant
		status state.Status
		pool   string
	}
	counts, sums := map[group]int{}, map[variant]gatewayreport.Load{}
	loads := m.r.cfg.Loads.Totals()
	view := m.r.cfg.Raft.Store().View()
	for _, r := range view.Replicas(nil) {
		v := variant{r.Name.Model, r.Name.Variant}
		pool := ownPool
		if n := view.Node(nil, r.Placement.Node); n != nil {
			pool = n.CapacityPool
		}
		counts[group{v, r.Status, pool}]++
		sum, l := sums[v], loads[r.Name.String()]
		sum.InFlight += l.InFlight
		sum.Recent.Answered += l.Recent.Answered
		sum.Recent.Failed += l.Recent.Failed
		sums[v] = sum
	}
	for s, n := range counts {
		gauge(m.replicas, float64(n), s.model, s.variant.variant, string(s.status.Tier()), string(s.status), s.pool)
	}
	for v, sum := range sums {
		gauge(m.inFlight, float64(sum.InFlight), v.model, v.variant)
		gauge(m.answered, float64(sum.Recent.Answered), v.model, v.variant)
		gauge(m.failed, float64(sum.Recent.Failed), v.model, v.variant)
	}
	m.pairs(l, view, gauge)
	waiting, limits := m.r.cfg.Loads.Waiting(), view.Limits(nil)
	for _, one := range view.Models(nil) { // clients choose the other names: do not export them
		gauge(m.waiting, float64(waiting[one.Name]), one.Name)
		gauge(m.target, float64(one.Target(limits(one.Name)).Replicas), one.Name)
	}
	m.nodes(view, gauge)
	gauge(m.gateways, float64(len(m.r.cfg.Loads.Gateways())))
	up := func(known bool) float64 {
		if known {
			return 1
		}
		return 0
	}
	status := l.status()
	gauge(m.known, up(status.Nodes.Known), "nomad_nodes")
	gauge(m.known, up(status.Jobs.Known), "nomad_jobs")
	gauge(m.known, up(status.Engines.Known), "consul_engines")
	for _, p := range status.Pools {
		gauge(m.pools, up(p.Known()), p.Name)
	}
}

// nodes reports how many GPUs of each node are in each state. A node that is gone has none.
func (m *metrics) nodes(view *state.View, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	type group struct{ node, state string }
	counts := map[group]int{}
	for _, n := range view.Nodes(nil) {
		if n.WrittenOff {
			continue
		}
		name := cmp.Or(n.Name, n.ID)
		for _, s := range []string{gpuReady, gpuUnhealthy, gpuCordoned, gpuMemoryHeld} {
			counts[group{name, s}] += 0
		}
		for i := range n.GPUs {
			counts[group{name, gpuState(&n.GPUs[i])}]++
		}
	}
	for g, n := range counts {
		gauge(m.gpus, float64(n), g.node, g.state)
	}
}

// States of a GPU in the metrics.
const (
	gpuReady      = "ready"
	gpuUnhealthy  = "unhealthy"
	gpuCordoned   = "cordoned"
	gpuMemoryHeld = "memory_held"
)

func gpuState(g *state.GPU) string {
	switch {
	case g.MemoryHeld():
		return gpuMemoryHeld
	case g.Cordoned:
		return gpuCordoned
	case !g.Healthy:
		return gpuUnhealthy
	}
	return gpuReady
}

// pairs reports what the models' failover pairs lack.
func (m *metrics) pairs(l *loop, view *state.View, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	for _, one := range view.Models(nil) {
		if !one.Failover {
			continue
		}
		degraded, missing := 0, time.Duration(0)
		for _, r := range view.ReplicasOf(nil, one.Name) {
			if p := l.pairs.lastAnswer(r.Name.String()); p.Degraded != "" {
				degraded++
				missing = max(missing, l.cfg.Now().Sub(p.DegradedSince))
			}
		}
		gauge(m.degraded, float64(degraded), one.Name)
		gauge(m.missing, missing.Seconds(), one.Name)
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

// countDecision counts a decision.
func (m *metrics) countDecision(d state.Decision) {
	m.decisions.WithLabelValues(d.Kind).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch d.Kind {
	case planner.KindEvict, planner.KindEvictWarm:
		m.evictions.WithLabelValues(d.Model, d.Kind).Inc()
	case planner.KindReplaced:
		m.replacements.WithLabelValues(d.Model).Inc()
	case planner.KindFailover:
		m.failovers.WithLabelValues(d.Model, d.Details["cause"]).Inc()
	default:
		return
	}
	m.named[d.Model] = true
}

// failoverCauses are the causes that shims report.
var failoverCauses = []string{"exited", "hung", "lock", "stopped", "handover", "drill", "failed", "killed"}

// followModels drops the counters of deleted models. Those of the others begin with 0: an increase
// from nothing to 1 is none for Prometheus.
func (m *metrics) followModels(view *state.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range view.Models(nil) {
		m.named[one.Name] = true
		m.replacements.WithLabelValues(one.Name)
		if one.Failover {
			for _, cause := range failoverCauses {
				m.failovers.WithLabelValues(one.Name, cause)
			}
		}
	}
	maps.DeleteFunc(m.named, func(model string, _ bool) bool {
		if view.Model(nil, model) != nil {
			return false
		}
		labels := prometheus.Labels{"model": model}
		m.evictions.DeletePartialMatch(labels)
		m.replacements.DeletePartialMatch(labels)
		m.failovers.DeletePartialMatch(labels)
		return true
	})
}

// observeTierChange records the duration of a committed Sleep or Wake.
func (m *metrics) observeTierChange(t *tierChange, now time.Time) {
	h := m.tiers[t.o.Kind]
	if h == nil {
		return // a Drain changes no tier
	}
	from := t.r.Since
	if !wantedSince(t.r) {
		from = t.began // it was meant to serve already
	}
	h.WithLabelValues(partAll).Observe(now.Sub(from).Seconds())
	h.WithLabelValues(partEngine).Observe(t.engine.Seconds())
}

// wantedSince reports whether a replica's Since is when its tier change was decided.
func wantedSince(r *state.Replica) bool {
	return r.Status == state.StatusSleeping || r.Status == state.StatusWaking
}
