// Package tracing takes part in distributed traces: W3C trace context in and out, and
// OpenTelemetry spans that are exported by OTLP over HTTP.
//
// What it guarantees:
//   - Without an endpoint it costs nothing: New returns a nil Tracer, whose Start
//     returns a nil Span; both do nothing and allocate nothing. Headers that come in
//     are then passed on as they are, which is what Trace Context asks of a proxy that
//     takes no part.
//   - With one, a request continues the trace of its traceparent. The configured ratio
//     decides which traces are sampled. A client cannot have more of its requests
//     sampled; it can exclude a request with a sampled flag of 0. A request that is not
//     sampled still has a trace ID, and the engine gets a sampled flag of 0.
//   - No request waits for the collector. Spans that have ended wait in a bounded queue.
//     Spans that find no room are dropped, spans that cannot be sent are lost; both are
//     counted (Stats), and logged once until all spans are delivered again.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// queued is how many ended spans wait at most: about 8 MiB.
	queued = 8192
	// batch is how many spans go in one request, and batchEvery how long a span waits for
	// others: long enough to fill requests, short enough to watch.
	batch      = 512
	batchEvery = time.Second
	// batchLimit bounds the export of one batch with all its retries.
	batchLimit = 30 * time.Second
	// retryFirst is the pause before a batch is sent again; it grows up to retryMost. A
	// collector that restarts is back before the queue is full.
	retryFirst = 250 * time.Millisecond
	retryMost  = 5 * time.Second
	// maxText is how many bytes of one text go into a span: paths and user agents
	// are as long as clients like.
	maxText = 512
)

// Config says where spans go. The variables OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE,
// _CLIENT_CERTIFICATE, _CLIENT_KEY, _COMPRESSION and _TIMEOUT of OpenTelemetry apply to the
// exporter, and OTEL_RESOURCE_ATTRIBUTES adds resource attributes.
type Config struct {
	// Endpoint is the collector's base URL, http or https, to which "/v1/traces" is
	// added: "http://localhost:4318". "" switches tracing off.
	Endpoint string
	// Ratio is the share of traces that are sampled, 0 to 1. The choice depends on the
	// trace ID alone, so gateways that see the same trace choose alike.
	Ratio float64
	// Service is the resource attribute service.name; "" means "remuda-gateway".
	Service string
	// Logger gets a warning when spans cannot be delivered, and a message when they can
	// again. nil is silent.
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
	// The context ends nothing later: an HTTP exporter connects when it sends.
	otlp, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(target),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: retryFirst, MaxInterval: retryMost, MaxElapsedTime: batchLimit,
		}))
	if err != nil {
		return nil, fmt.Errorf("tracing: create the exporter for %s: %w", target, err)
	}
	about, err := resource.New(context.Background(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", cfg.Service)))
	if err != nil {
		return nil, fmt.Errorf("tracing: describe the service: %w", err)
	}
	t := &Tracer{export: newExporter(otlp, target, cfg.Logger)}
	t.gate = &gate{export: t.export, SpanProcessor: sdktrace.NewBatchSpanProcessor(t.export,
		sdktrace.WithMaxQueueSize(queued), sdktrace.WithMaxExportBatchSize(batch),
		sdktrace.WithBatchTimeout(batchEvery), sdktrace.WithExportTimeout(batchLimit))}
	ratio := sdktrace.TraceIDRatioBased(cfg.Ratio)
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(ratio, sdktrace.WithRemoteParentSampled(ratio))),
		sdktrace.WithResource(about),
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
		fail("endpoint is %q: must not have a user, a query or a fragment (credentials go into OTEL_EXPORTER_OTLP_HEADERS)", u.Redacted())
	}
	if math.IsNaN(cfg.Ratio) || cfg.Ratio < 0 || cfg.Ratio > 1 {
		fail("ratio is %v: must be 0 to 1", cfg.Ratio)
	}
	if len(bad) > 0 {
		return "", errors.Join(bad...)
	}
	return u.JoinPath("v1", "traces").String(), nil
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
