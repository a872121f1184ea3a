package server

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	blocked  prometheus.Gauge
	forwards *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_http_requests_total", Help: "Requests to the API, by route and status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "remuda_controller_http_request_seconds", Help: "Duration of requests to the API, including waiting for changes.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9), // 1 ms to a minute
		}, []string{"route", "method"}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "remuda_controller_http_watches", Help: "Blocking queries waiting for a change on this server.",
		}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "remuda_controller_http_forwards_total", Help: "Requests forwarded to the leader, by result.",
		}, []string{"result"}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.blocked, m.forwards} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

// methods are those that a label may have: clients choose the text.
var methods = map[string]bool{"GET": true, "HEAD": true, "PUT": true, "DELETE": true, "POST": true, "PATCH": true, "OPTIONS": true}

// request counts a request that was answered.
func (m *metrics) request(route, method string, status int, took time.Duration) {
	if !methods[method] {
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route, method).Observe(took.Seconds())
}

// block counts a query that waits until the function that it returns is called.
func (m *metrics) block() func() {
	m.blocked.Inc()
	return m.blocked.Dec
}

func (m *metrics) forwarded(err error) { m.forwards.WithLabelValues(forwardResult(err)).Inc() }
