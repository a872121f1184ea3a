// Package tracing takes part in distributed traces: W3C trace context in and out, and
// OpenTelemetry spans that are exported by OTLP over HTTP.
//
// What it guarantees:
//   - Without an endpoint it costs nothing: New returns a nil Tracer, whose Start
//     returns a nil Span; both do nothing and allocate nothing. Headers that come in
//     are then passed on as they are, which is what Trace Context asks of those that
//     take no part.
//   - With one, it samples as the caller did (the sampled flag of traceparent), and
//     requests without a traceparent by a ratio of their trace IDs. A request that is
//     not sampled still gets a trace ID, and passes on that it is not sampled.
//   - No request waits for the collector. Spans that have ended wait in a bounded queue;
//     what finds no room is dropped, what cannot be sent is lost, and both are counted
//     (Stats) and told to the log.
//
// The exporter is our own, over the official protocol buffers: the official one
// (otlptracehttp) links gRPC and grpc-gateway and raises gRPC for the whole program.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// queued is how many spans that have ended wait at most: about 8 MiB.
	queued = 8192
	// batch is how many go in one request, and batchEvery how long one waits for
	// others: long enough to fill requests, short enough to watch.
	batch      = 512
	batchEvery = time.Second
	// batchLimit bounds the export of one batch with all its retries.
	batchLimit = 30 * time.Second
	// maxText is how many bytes of one text go into a span: paths and user agents
	// are as long as clients like.
	maxText = 512
)

// Config says where spans go.
type Config struct {
	// Endpoint is the collector's URL, http or https. A path that ends in "/traces"
	// is taken as it is, to any other "/v1/traces" is added, as with
	// OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318". "" switches tracing off.
	Endpoint string
	// Headers go with every export, for a collector that asks who comes.
	Headers map[string]string
	// Ratio is the share of the requests without a traceparent that are sampled, 0
	// to 1. The choice depends on the trace ID alone.
	Ratio float64
	// Service is the resource attribute service.name; "" means "remuda-gateway".
	// Instance is service.instance.id, which tells several gateways apart; "" is none.
	// OTEL_RESOURCE_ATTRIBUTES adds others.
	Service, Instance string
	// Logger hears when spans cannot be sent, and when they can again. nil is silent.
	Logger hclog.Logger
}

// Tracer makes spans. It is safe for concurrent use, and a nil Tracer does nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	gate     *gate
	export   *exporter
}

// Stats counts the spans that were sampled and have ended.
type Stats struct {
	// Ended is all of them: Sent, Lost, Dropped, and those that wait.
	Ended uint64
	// Sent is what the collector took.
	Sent uint64
	// Lost is what it refused, or was not there to take.
	Lost uint64
	// Dropped is what found no room in the queue, or ended while the Tracer closed.
	Dropped uint64
}

// New checks the config and starts the goroutine that exports. The caller must Close
// it. Without an endpoint it returns nil, which is a Tracer that does nothing. The
// collector need not be there.
func New(cfg Config) (*Tracer, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	target, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Service == "" {
		cfg.Service = "remuda-gateway"
	}
	about := []attribute.KeyValue{
		attribute.String("service.name", cfg.Service),
		attribute.String("telemetry.sdk.language", "go"),
		attribute.String("telemetry.sdk.name", "opentelemetry"),
		attribute.String("telemetry.sdk.version", sdk.Version()),
	}
	if cfg.Instance != "" {
		about = append(about, attribute.String("service.instance.id", cfg.Instance))
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxText
	t := &Tracer{export: newExporter(target, cfg.Headers, cfg.Logger)}
	t.gate = &gate{export: t.export, SpanProcessor: sdktrace.NewBatchSpanProcessor(t.export,
		sdktrace.WithMaxQueueSize(queued), sdktrace.WithMaxExportBatchSize(batch),
		sdktrace.WithBatchTimeout(batchEvery), sdktrace.WithExportTimeout(batchLimit))}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Ratio))),
		sdktrace.WithResource(resource.NewSchemaless(about...)),
		sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithSpanProcessor(t.gate))
	t.tracer = t.provider.Tracer("remuda/controller/gateway")
	return t, nil
}

// check returns the URL that spans are posted to, or all that is wrong.
func (cfg Config) check() (string, error) {
	var bad []error
	fail := func(format string, args ...any) { bad = append(bad, fmt.Errorf("tracing: "+format, args...)) }
	u, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil:
		fail("endpoint: %w: must be a URL such as http://localhost:4318", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		fail("endpoint is %q: must be an http or https URL with a host, such as http://localhost:4318", cfg.Endpoint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		fail("endpoint is %q: must not have a user, a query or a fragment (credentials go into headers)", u.Redacted())
	case !strings.HasSuffix(u.Path, "/traces"):
		u = u.JoinPath("v1", "traces")
	}
	if math.IsNaN(cfg.Ratio) || cfg.Ratio < 0 || cfg.Ratio > 1 {
		fail("ratio is %v: must be 0 to 1", cfg.Ratio)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Headers)) {
		control := func(r rune) bool { return r < ' ' || r == 0x7f }
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return control(r) || strings.ContainsRune(" :", r) }) ||
			strings.ContainsFunc(cfg.Headers[name], control) {
			fail("header %q has an invalid name or value: the name must be one word and the value one line", name)
		}
	}
	if len(bad) > 0 {
		return "", errors.Join(bad...)
	}
	return u.String(), nil
}

// Close exports the spans that wait and ends the goroutine. When ctx ends first, the
// spans that are left are lost, which is its error. What ends later is neither sent nor
// counted.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.gate.closed.Store(true)
	stop := context.AfterFunc(ctx, t.export.abort)
	defer stop()
	before := t.export.lost.Load()
	// It waits for its goroutine only as long as its own context lasts. The goroutine
	// ends when ctx does: every export fails from then on.
	if err := t.provider.Shutdown(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("tracing: close: %w", err)
	}
	if lost := t.export.lost.Load() - before; lost > 0 && ctx.Err() != nil {
		return fmt.Errorf("tracing: close: %d spans could not be sent to %s in time: %w", lost, t.export.target, context.Cause(ctx))
	}
	return nil
}

// Stats returns the counts since New.
func (t *Tracer) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	// Ended last: what ends between the reads counts as waiting.
	s := Stats{Sent: t.export.sent.Load(), Lost: t.export.lost.Load(), Dropped: t.export.dropped.Load()}
	s.Ended = t.gate.ended.Load()
	return s
}

// gate lets no more spans into the batches than their queue holds, so that what is
// dropped is counted here.
type gate struct {
	sdktrace.SpanProcessor
	export *exporter
	ended  atomic.Uint64
	closed atomic.Bool
}

// OnEnd takes a span that was sampled and has ended.
func (g *gate) OnEnd(s sdktrace.ReadOnlySpan) {
	g.ended.Add(1)
	switch {
	case g.closed.Load():
	case g.export.waiting.Add(1) > queued:
		g.export.waiting.Add(-1)
	default:
		g.SpanProcessor.OnEnd(s)
		return
	}
	g.export.dropped.Add(1)
}
