package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/controller/api"
	"remuda/controller/gateway/accesslog"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/tracing"
	"remuda/internal/certificate"
)

// unknownModel is the model label of requests whose model is not known: names
// that clients make up must not become label values.
const unknownModel = "unknown"

// statusClientGone is nginx's code for a client that left before its answer
// was complete. It is counted, never sent.
const statusClientGone = 499

// metrics are what the gateway counts. The label code is the status that the
// client got; a stream that breaks later keeps its 200 and counts in
// upstream_errors_total, one that the client leaves counts as 499.
type metrics struct {
	registry *prometheus.Registry

	requests       *prometheus.CounterVec   // model, route, code
	duration       *prometheus.HistogramVec // model, route
	firstByte      *prometheus.HistogramVec // model, route
	firstToken     *prometheus.HistogramVec // model, route
	upstreamErrors *prometheus.CounterVec   // model, replica, kind
	requestBytes   *prometheus.CounterVec   // model
	responseBytes  *prometheus.CounterVec   // model
	queueSeconds   *prometheus.HistogramVec // model
	queueTimeouts  *prometheus.CounterVec   // model
	refused        *prometheus.CounterVec   // model
	retries        *prometheus.CounterVec   // model
	budgetSpent    *prometheus.CounterVec   // model
	continued      *prometheus.CounterVec   // model
	unrecorded     *prometheus.CounterVec   // model
	tokens         *prometheus.CounterVec   // model, type
	keyTokens      *prometheus.CounterVec   // key, type
	rejectedKeys   prometheus.Counter

	mu sync.Mutex
	// keys are those that have series. It is guarded by mu.
	keys map[string]bool
}

// maxKeySeries is how many keys have series of their own.
const maxKeySeries = 256

// otherKey is the label of further keys. The controller lets no key have that name.
const otherKey = "other"

// countTokens counts what a request used.
func (m *metrics) countTokens(model, key string, u api.Usage) {
	key = m.seriesOf(key)
	for _, c := range [...]struct {
		kind string
		n    int64
	}{{"prompt", u.PromptTokens}, {"cached", u.CachedTokens}, {"completion", u.CompletionTokens}, {"estimated", u.EstimatedTokens}} {
		if c.n > 0 {
			m.tokens.WithLabelValues(model, c.kind).Add(float64(c.n))
			m.keyTokens.WithLabelValues(key, c.kind).Add(float64(c.n))
		}
	}
}

// seriesOf returns the key's label: its name, or "other" if maxKeySeries keys have series and it is not one
// of them.
func (m *metrics) seriesOf(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.keys[key] {
		if len(m.keys) == maxKeySeries {
			return otherKey
		}
		m.keys[key] = true
	}
	return key
}

func newMetrics(d *dispatch.Dispatcher, bodies *bodyStore) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "remuda", Subsystem: "gateway", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: name, Help: help, Buckets: buckets,
		}, []string{"model", "route"})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		keys:     map[string]bool{},
		requests: counter("requests_total", "Requests by the HTTP status sent to the client.", "model", "route", "code"),
		// An embedding takes milliseconds, a long generation ten minutes.
		duration: histogram("request_duration_seconds", "Time from a request's header to the end of its response.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}),
		firstByte: histogram("time_to_first_byte_seconds", "Time from a request's header to the first byte of the engine's response.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}),
		firstToken: histogram("time_to_first_token_seconds", "Time from a request's header to the first token of a streamed answer. Answers that are not streamed are not counted.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}),
		upstreamErrors: counter("upstream_errors_total", "Failed attempts at engines by kind: dial, timeout, reset, protocol, content, status, cut.", "model", "replica", "kind"),
		requestBytes:   counter("request_bytes_total", "Bytes of request bodies.", "model"),
		responseBytes:  counter("response_bytes_total", "Bytes of response bodies sent to clients.", "model"),
	}
	m.queueSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "remuda", Subsystem: "gateway", Name: "queue_seconds",
		Help:    "Time that requests waited for an engine. Requests that did not wait are not counted.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
	}, []string{"model"})
	m.queueTimeouts = counter("queue_timeouts_total", "Requests that waited for an engine until their time ran out.", "model")
	m.refused = counter("queue_full_total", "Requests that were rejected because the queue was full.", "model")
	m.retries = counter("retries_total", "Attempts at engines beyond the first one of a request.", "model")
	m.budgetSpent = counter("retry_budget_spent_total", "Requests that were not retried because the model's retry budget was spent.", "model")
	m.continued = counter("continuations_total", "Streams that were continued at another engine.", "model")
	m.unrecorded = counter("unrecorded_streams_total", "Streams that could not be continued any more because the gateway's buffer had no memory for their text.", "model")
	const types = " by type: prompt, cached (those of prompts that an engine had in its cache), completion, estimated (those of prompts and completions that no engine has counted)."
	m.tokens = counter("tokens_total", "Tokens that answers took,"+types, "model", "type")
	m.keyTokens = counter("key_tokens_total", "Tokens that the requests of an API key took,"+types+" The first 256 keys have series; the others count as other.", "key", "type")
	m.rejectedKeys = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "remuda", Subsystem: "gateway", Name: "rejected_keys_total", Help: "Requests that were rejected because of a wrong API key.",
	})
	m.registry.MustRegister(m.tokens, m.keyTokens, m.rejectedKeys, m.requests, m.duration, m.firstByte, m.firstToken, m.upstreamErrors, m.requestBytes, m.responseBytes,
		m.queueSeconds, m.queueTimeouts, m.refused, m.retries, m.budgetSpent, m.continued, m.unrecorded,
		&collector{dispatcher: d},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "buffered_bytes", Help: "Memory held for request bodies, for the text of streams that may be continued and for the answers of steps of pipelines.",
		}, func() float64 { return float64(bodies.used.Load()) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

func (m *metrics) handler(log hclog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
	})
}

// forget drops the series of models and replicas that are gone for good.
func (m *metrics) forget(ch balance.Changes) {
	for _, name := range ch.Replicas {
		m.upstreamErrors.DeletePartialMatch(prometheus.Labels{"replica": name})
	}
	for _, name := range ch.Models {
		labels := prometheus.Labels{"model": name}
		for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
			m.requests, m.duration, m.firstByte, m.firstToken, m.upstreamErrors, m.requestBytes, m.responseBytes,
			m.queueSeconds, m.queueTimeouts, m.refused, m.retries, m.budgetSpent, m.continued, m.unrecorded, m.tokens,
		} {
			v.DeletePartialMatch(labels)
		}
	}
}

// follow adds what is known of the controller.
func (m *metrics) follow(f *follower) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "controller_index", Help: "Index of the controller's state that is in force.",
		}, func() float64 { return float64(f.index.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "controller_up", Help: "1 while one of the controller's servers answers and knows a leader.",
		}, func() float64 {
			if f.up.Load() {
				return 1
			}
			return 0
		}),
	)
}

// refusals adds how many registrations are refused.
func (m *metrics) refusals(a *admission) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "remuda", Subsystem: "gateway", Name: "registrations_refused",
		Help: "Engines in Consul that get no requests: the controller has not placed them there, or what they claim is impossible.",
	}, func() float64 { return float64(a.refusals()) }))
}

// certify adds what is known of the certificate.
func (m *metrics) certify(c *certificate.Pair) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "tls_reload_failures_total", Help: "Changes of the certificate or its key that could not be used: the last certificate stayed in use. Only with TLS.",
		}, func() float64 { return float64(c.Failures()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "tls_certificate_expires_seconds", Help: "Unix time when the certificate of the clients' port expires. Only with TLS.",
		}, func() float64 {
			if now := c.Current(); now != nil {
				return float64(now.Leaf.NotAfter.Unix())
			}
			return 0
		}),
	)
}

// observe adds what the access log and the tracer count.
func (m *metrics) observe(access *accesslog.Logger, tracer *tracing.Tracer) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "remuda", Subsystem: "gateway", Name: "access_log_dropped_total", Help: "Lines that could not be written to the access log.",
	}, func() float64 { return float64(access.Dropped()) }))
	for result, of := range map[string]func(tracing.Stats) uint64{
		"sent":    func(s tracing.Stats) uint64 { return s.Sent },
		"lost":    func(s tracing.Stats) uint64 { return s.Lost },
		"dropped": func(s tracing.Stats) uint64 { return s.Dropped },
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "remuda", Subsystem: "gateway", Name: "spans_total", Help: "Tracing spans by result: sent, lost or dropped.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(of(tracer.Stats())) }))
	}
}

// codeText returns a status as a label without allocating for known codes.
func codeText(status int) string {
	if status >= 100 && status < 100+len(codeTexts) {
		return codeTexts[status-100]
	}
	return strconv.Itoa(status)
}

var codeTexts = func() (out [500]string) {
	for i := range out {
		out[i] = strconv.Itoa(100 + i)
	}
	return out
}()

// collector reads the state of the engines when it is asked.
type collector struct{ dispatcher *dispatch.Dispatcher }

var _ prometheus.Collector = (*collector)(nil)

var (
	inFlightDesc = prometheus.NewDesc("remuda_gateway_in_flight", "Requests that engines are serving.", []string{"model"}, nil)
	enginesDesc  = prometheus.NewDesc("remuda_gateway_engines",
		"Engines by state: active, draining (the controller is about to stop it), open (it failed recently and is avoided), kept (active before a Consul outage), fenced (superseded by a higher token), not_passing.",
		[]string{"model", "state"}, nil)
	waitingDesc = prometheus.NewDesc("remuda_gateway_queue_length", "Requests that are waiting for an engine.", []string{"model"}, nil)
	oldestDesc  = prometheus.NewDesc("remuda_gateway_queue_oldest_seconds", "Waiting time of the oldest request in the queue.", []string{"model"}, nil)
	slotsDesc   = prometheus.NewDesc("remuda_gateway_slots", "Slots of the engines that can take requests.", []string{"model"}, nil)
	readyDesc   = prometheus.NewDesc("remuda_gateway_ready", "1 once the first list of engines from Consul has arrived, and with a controller its first state.", nil, nil)
)

// Describe lists the collector's metrics.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- inFlightDesc
	out <- enginesDesc
	out <- waitingDesc
	out <- oldestDesc
	out <- slotsDesc
	out <- readyDesc
}

// Collect reads the dispatcher.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), labels...)
	}
	ready := 0
	if c.dispatcher.Ready() {
		ready = 1
	}
	gauge(readyDesc, ready)
	for _, l := range c.dispatcher.Loads() {
		gauge(inFlightDesc, l.InFlight, l.Model)
		gauge(enginesDesc, l.Active, l.Model, "active")
		gauge(enginesDesc, l.Draining, l.Model, "draining")
		gauge(enginesDesc, l.Open, l.Model, "open")
		gauge(enginesDesc, l.Kept, l.Model, "kept")
		gauge(enginesDesc, l.Fenced, l.Model, "fenced")
		gauge(enginesDesc, l.NotPassing, l.Model, "not_passing")
		gauge(slotsDesc, l.Slots, l.Model)
	}
	now := time.Now()
	for model, q := range c.dispatcher.Lengths() {
		gauge(waitingDesc, q.Waiting, model)
		age := 0.0
		if !q.Oldest.IsZero() {
			age = now.Sub(q.Oldest).Seconds()
		}
		out <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age, model)
	}
}
