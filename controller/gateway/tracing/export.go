package tracing

import (
	"context"
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter counts what the collector accepts of each batch, and logs the first batch that
// it does not. The SDK calls ExportSpans from one goroutine at a time.
type exporter struct {
	sdktrace.SpanExporter
	target string
	log    hclog.Logger
	// stop ends when Close may wait no longer: every export fails from then on.
	stop  context.Context
	abort context.CancelFunc

	// waiting is how many spans entered the queue and are neither sent nor lost yet.
	waiting             atomic.Int64
	sent, lost, dropped atomic.Uint64

	// failing is set from the first warning until a batch is sent and nothing was dropped.
	failing bool
	// reported is the value of dropped after the batch before.
	reported uint64
}

func newExporter(to sdktrace.SpanExporter, target string, log hclog.Logger) *exporter {
	e := &exporter{SpanExporter: to, target: target, log: log}
	e.stop, e.abort = context.WithCancel(context.Background())
	return e
}

// ExportSpans sends a batch. It always returns nil, because the SDK would write each error
// to the standard error.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.stop, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)

	n := uint64(len(spans))
	lost := rejected(err, n)
	e.lost.Add(lost)
	e.sent.Add(n - lost)
	e.waiting.Add(-int64(n))
	e.report(lost, err)
	return nil
}

// partial matches the error for a collector that accepted a part of a batch. The SDK does
// not export its type.
var partial = regexp.MustCompile(`(?s)OTLP partial success: .*\(([0-9]+) spans rejected\)$`)

// rejected returns how many of n spans were not accepted.
func rejected(err error, n uint64) uint64 {
	if err == nil {
		return 0
	}
	if m := partial.FindStringSubmatch(err.Error()); m != nil {
		if some, err := strconv.ParseUint(m[1], 10, 64); err == nil {
			return min(some, n)
		}
	}
	return n
}

// report logs the beginning and the end of a time in which spans are lost or dropped.
func (e *exporter) report(lost uint64, err error) {
	dropped := e.dropped.Load()
	failing := err != nil || dropped > e.reported
	switch {
	case failing && !e.failing:
		reason := "the queue is full"
		if err != nil {
			reason = clip(err.Error()) // it contains the collector's answer
		}
		e.log.Warn("cannot deliver all spans to the collector; check the endpoint and the collector's load",
			"endpoint", e.target, "lost", lost, "dropped", dropped-e.reported, "queue", queued, "reason", reason)
	case e.failing && !failing:
		e.log.Info("delivering all spans again", "endpoint", e.target, "lost_total", e.lost.Load(), "dropped_total", dropped)
	}
	e.failing, e.reported = failing, dropped
}
