package lockd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// metrics are what lockd counts.
type metrics struct {
	granted  *prometheus.CounterVec // regranted
	refused  *prometheus.CounterVec // code
	fenced   prometheus.Counter
	writes   prometheus.Histogram
	failures prometheus.Counter
}

func newMetrics(s *Server, registry prometheus.Registerer) *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "remuda", Subsystem: "lockd", Name: name, Help: help}
	}
	m := &metrics{
		granted: prometheus.NewCounterVec(opts("grants_total", "Grants sent, by whether the holder already had the lock."), []string{"regranted"}),
		refused: prometheus.NewCounterVec(opts("refusals_total", "Rejected requests by code."), []string{"code"}),
		fenced:  prometheus.NewCounter(opts("fences_total", "Holders that were killed with their cohorts.")),
		writes: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "remuda", Subsystem: "lockd", Name: "state_write_seconds",
			Help: "Time to write a record to disk.", Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}}),
		failures: prometheus.NewCounter(opts("state_write_failures_total", "Records that could not be written.")),
	}
	if registry != nil {
		registry.MustRegister(m.granted, m.refused, m.fenced, m.writes, m.failures, &groupCollector{s})
	}
	return m
}

func (m *metrics) sent(msg lock.Message) {
	switch msg.Event {
	case wire.Granted:
		regranted := "false"
		if msg.Regranted {
			regranted = "true"
		}
		m.granted.WithLabelValues(regranted).Inc()
	case wire.Refused:
		m.refused.WithLabelValues(msg.Code).Inc()
	}
}

func (m *metrics) persisted(took time.Duration, err error) {
	m.writes.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}

// groupCollector shows the groups as they are.
type groupCollector struct{ s *Server }

var (
	tokenDesc   = prometheus.NewDesc("remuda_lockd_token", "Newest fencing token.", []string{"group"}, nil)
	waitersDesc = prometheus.NewDesc("remuda_lockd_waiters", "Clients that are waiting for the lock.", []string{"group"}, nil)
	stateDesc   = prometheus.NewDesc("remuda_lockd_state", "1 for the lock's state: free, held, reconnecting or fencing.", []string{"group", "state"}, nil)
)

// Describe lists the collector's metrics.
func (c *groupCollector) Describe(out chan<- *prometheus.Desc) {
	out <- tokenDesc
	out <- waitersDesc
	out <- stateDesc
}

// Collect reads the groups.
func (c *groupCollector) Collect(out chan<- prometheus.Metric) {
	c.s.mu.Lock()
	var all []lock.Status
	if c.s.machine != nil {
		all = c.s.machine.Status()
	}
	c.s.mu.Unlock()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, g := range all {
		gauge(tokenDesc, float64(g.Token), g.Group)
		gauge(waitersDesc, float64(len(g.Waiters)), g.Group)
		for _, state := range []lock.State{lock.Free, lock.Held, lock.Reconnecting, lock.Fencing} {
			v := 0.0
			if g.State == state {
				v = 1
			}
			gauge(stateDesc, v, g.Group, string(state))
		}
	}
}
