package usage

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/state"
)

type metrics struct {
	commits   *prometheus.CounterVec
	uncounted prometheus.GaugeFunc
	budgets   *budgets
}

// budgets reads at each scrape how much of their budgets keys have used. Only the leader knows it.
type budgets struct {
	r    *Recorder
	used *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (b *budgets) Describe(ch chan<- *prometheus.Desc) { ch <- b.used }

// Collect implements prometheus.Collector.
func (b *budgets) Collect(ch chan<- prometheus.Metric) {
	if !b.r.leads() {
		return
	}
	used := b.r.Budgets()
	for _, k := range b.r.cfg.Raft.Store().View().Keys(nil) {
		for period, of := range map[string]struct{ used, budget int64 }{
			"day": {used[k.Name].Today, k.TokensPerDay}, "month": {used[k.Name].ThisMonth, k.TokensPerMonth},
		} {
			if of.budget > 0 {
				ch <- prometheus.MustNewConstMetric(b.used, prometheus.GaugeValue, float64(of.used)/float64(of.budget), k.Name, period)
			}
		}
	}
}

func newMetrics(r *Recorder) *metrics {
	return &metrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_usage_commits_total", Help: "Commands with usage of clients' keys that this server proposed, by result.",
		}, []string{"result"}),
		uncounted: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "remuda_controller_usage_uncounted", Help: "Counters of gateways that the leader has in memory and has not committed; 0 on other servers.",
		}, func() float64 { return float64(r.waiting()) }),
		budgets: &budgets{r: r, used: prometheus.NewDesc("remuda_controller_key_budget_used_ratio",
			"Share of a key's budget of tokens that is used, by period: day, month (in UTC). From 1 on its requests are rejected. Reported by the leader only.",
			[]string{"key", "period"}, nil)},
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.commits, m.uncounted, m.budgets}
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
