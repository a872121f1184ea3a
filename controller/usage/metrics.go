package usage

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/state"
)

type metrics struct {
	commits   *prometheus.CounterVec
	uncounted prometheus.GaugeFunc
}

func newMetrics(r *Recorder) *metrics {
	return &metrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_usage_commits_total", Help: "Commands with usage of clients' keys that this server proposed, by result.",
		}, []string{"result"}),
		uncounted: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "remuda_controller_usage_uncounted", Help: "Counters of gateways that the leader has in memory and has not committed; 0 on other servers.",
		}, func() float64 { return float64(r.waiting()) }),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.commits, m.uncounted}
}

// committed counts a proposed command.
func (m *metrics) committed(err error) {
	result := "committed"
	switch {
	case errors.Is(err, state.ErrConflict):
		result = "conflict"
	case err != nil:
		result = "failed"
	}
	m.commits.WithLabelValues(result).Inc()
}
