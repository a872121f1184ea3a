package tracing

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// carrier reads several lines of one header as one list (RFC 9110 section 5.3): no line of
// tracestate is lost, and two traceparents are not a valid one.
type carrier struct{ propagation.HeaderCarrier }

// Get returns the values of a header.
func (c carrier) Get(key string) string {
	return strings.Join(http.Header(c.HeaderCarrier).Values(key), ",")
}

// extract returns a context with the span that a request's traceparent names, if it has a
// valid one.
func extract(h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(context.Background(), carrier{propagation.HeaderCarrier(h)})
}

// TraceID returns the ID of the trace that a request's traceparent names, "" if it has no
// valid one. It is for requests without a Span.
func TraceID(h http.Header) string {
	sc := trace.SpanContextFromContext(extract(h))
	if !sc.IsValid() {
		return ""
	}
	return sc.TraceID().String()
}

// inject replaces the trace context in a header.
func inject(ctx context.Context, h http.Header) {
	h.Del("Tracestate") // it belongs to the parent that is replaced
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}
