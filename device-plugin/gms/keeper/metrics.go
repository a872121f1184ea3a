package keeper

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	saves, loads, refused, broken prometheus.Counter
}

// newMetrics makes the metrics and, where there is a registerer, registers them.
func newMetrics(s *store, r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "remuda", Subsystem: "gms_keeper", Name: name, Help: help})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "remuda", Subsystem: "gms_keeper", Name: name, Help: help}, value)
	}
	m := &metrics{
		saves:   counter("saves_total", "Records that were saved."),
		loads:   counter("loads_total", "Records that were loaded."),
		refused: counter("connections_refused_total", "Connections of other users, or too many."),
		broken:  counter("connections_cut_total", "Connections that broke the protocol, stalled or failed."),
	}
	if r != nil {
		r.MustRegister(m.saves, m.loads, m.refused, m.broken,
			gauge("records", "Records that are kept.", func() float64 { n, _, _ := s.held(); return float64(n) }),
			gauge("descriptors", "Descriptors that are kept or on their way.", func() float64 { _, n, _ := s.held(); return float64(n) }),
			gauge("bytes", "Bytes of blobs that are kept or on their way.", func() float64 { _, _, n := s.held(); return float64(n) }))
	}
	return m
}
