package gms

import (
	"errors"
	"sort"

	"github.com/prometheus/client_golang/prometheus"

	"remuda/device-plugin/gms/layout"
)

// maxTagLabels bounds how many tags of allocations have a series of their own for
// each layout: clients choose them.
const maxTagLabels = 32

// metrics are what the service counts.
type metrics struct {
	requests       *prometheus.CounterVec // gpu, tag, request, result
	handshakes     *prometheus.CounterVec // gpu, tag, lock_type, result
	clears         *prometheus.CounterVec // gpu, tag, reason
	oom            *prometheus.CounterVec // gpu, tag
	refused        *prometheus.CounterVec // reason
	descriptors    prometheus.Counter
	acceptFailures prometheus.Counter
	keeperFailures prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "remuda", Subsystem: "gms", Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "remuda", Subsystem: "gms", Name: name, Help: help}, labels)
	}
	return &metrics{
		requests:       vec("requests_total", "Requests by their kind and whether they were done (ok), refused, or their answer could not be sent (unsent).", "gpu", "tag", "request", "result"),
		handshakes:     vec("handshakes_total", "Handshakes by requested lock and result.", "gpu", "tag", "lock_type", "result"),
		clears:         vec("clears_total", "Layouts that were cleared by a new writer or an aborted one, or because no engine used them.", "gpu", "tag", "reason"),
		oom:            vec("oom_total", "Allocations that had to wait for free GPU memory.", "gpu", "tag"),
		refused:        vec("connections_cut_total", "Connections that were closed for a protocol error or a timeout, by reason.", "reason"),
		descriptors:    counter("unasked_descriptors_total", "Unexpected descriptors from clients, which were closed."),
		acceptFailures: counter("accept_failures_total", "Connections that could not be accepted for lack of descriptors or memory."),
		keeperFailures: counter("keeper_failures_total", "Layouts that could not be kept, dropped or restored."),
	}
}

func (m *metrics) register(r prometheus.Registerer, s *Server) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.handshakes, m.clears, m.oom, m.refused, m.descriptors, m.acceptFailures, m.keeperFailures, collector{s}} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

// collector shows how things stand.
type collector struct{ s *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("remuda_gms_"+name, help, labels, nil)
}

var (
	infoDesc      = desc("info", "1, with the nonce of this incarnation.", "nonce")
	connsDesc     = desc("connections", "Connections that are served.")
	sessionsDesc  = desc("sessions", "Sessions that are open, by mode.", "gpu", "tag", "mode")
	waitersDesc   = desc("waiting_writers", "Writers that are waiting for the lock.", "gpu", "tag")
	stateDesc     = desc("state", "1 for the layout's state.", "gpu", "tag", "state")
	committedDesc = desc("committed", "1 if a layout is committed.", "gpu", "tag")
	keptDesc      = desc("kept", "1 if the keeper has the committed layout.", "gpu", "tag")
	countDesc     = desc("allocations", "Allocations of a layout, by their own tag.", "gpu", "tag", "allocation_tag")
	bytesDesc     = desc("allocated_bytes", "Bytes of a layout's allocations, aligned, by their own tag.", "gpu", "tag", "allocation_tag")
	usedDesc      = desc("used_bytes", "Bytes of a GPU that the service has in use.", "gpu")
	capacityDesc  = desc("capacity_bytes", "Total bytes of a GPU, 0 if unknown.", "gpu")
	releasingDesc = desc("releasing_bytes", "Bytes of a GPU that are being released.", "gpu")
	startsDesc    = desc("starts", "How often the keeper has started the service.")
)

// Describe lists the collector's metrics.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{infoDesc, connsDesc, sessionsDesc, waitersDesc, stateDesc, committedDesc, keptDesc, countDesc, bytesDesc, usedDesc, capacityDesc, releasingDesc, startsDesc} {
		out <- d
	}
}

// Collect reads the layouts and the GPUs.
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := c.s
	gauge(infoDesc, 1, s.nonce)
	s.mu.Lock()
	gauge(connsDesc, float64(len(s.conns)))
	s.mu.Unlock()
	for i, g := range s.cfg.GPUs {
		gauge(usedDesc, float64(g.Backend.Used()), g.UUID)
		gauge(capacityDesc, float64(g.Backend.Capacity()), g.UUID)
		gauge(releasingDesc, float64(s.releasers[i].bytes()), g.UUID)
	}
	for _, u := range s.list() {
		u.mu.Lock()
		status, allocations := u.machine.Status(), u.machine.Allocations()
		u.mu.Unlock()
		gpu, tag := u.gpu.UUID, u.tag
		gauge(sessionsDesc, one(status.HasWriter), gpu, tag, string(layout.Writer))
		gauge(sessionsDesc, float64(status.Readers), gpu, tag, string(layout.Reader))
		gauge(waitersDesc, float64(status.Waiting), gpu, tag)
		gauge(committedDesc, one(status.Committed), gpu, tag)
		gauge(keptDesc, one(status.Committed && u.kept.Load()), gpu, tag)
		for _, state := range []layout.State{layout.Empty, layout.Writing, layout.Committed, layout.Reading} {
			gauge(stateDesc, one(status.State == state), gpu, tag, string(state))
		}
		for _, t := range totals(allocations) {
			gauge(countDesc, float64(t.count), gpu, tag, t.tag)
			gauge(bytesDesc, float64(t.bytes), gpu, tag, t.tag)
		}
	}
	gauge(startsDesc, float64(s.cfg.Starts))
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// total is what the allocations with one tag come to.
type total struct {
	tag          string
	count, bytes uint64
}

// totals sums allocations up by tag. The largest have a total of their own; the
// rest shares one, as do tags that are no label.
func totals(all []layout.Allocation) []total {
	byTag := map[string]*total{}
	for _, a := range all {
		t := byTag[a.Tag]
		if t == nil {
			t = &total{tag: a.Tag}
			byTag[a.Tag] = t
		}
		t.count++
		t.bytes += a.AlignedSize
	}
	sorted := make([]total, 0, len(byTag))
	for _, t := range byTag {
		sorted = append(sorted, *t)
	}
	sort.Slice(sorted, func(i, j int) bool {
		if sorted[i].bytes != sorted[j].bytes {
			return sorted[i].bytes > sorted[j].bytes
		}
		return sorted[i].tag < sorted[j].tag
	})
	rest := total{tag: "other"}
	out := []total{}
	for _, t := range sorted {
		if len(out) < maxTagLabels && len(t.tag) <= 64 && t.tag != rest.tag {
			out = append(out, t)
			continue
		}
		rest.count += t.count
		rest.bytes += t.bytes
	}
	if rest.count > 0 {
		out = append(out, rest)
	}
	return out
}
