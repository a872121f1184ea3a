package tracing

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Names of the spans under a request's server span, in the order in which they come.
const (
	SpanQueue     = "queue"      // waits for an engine
	SpanConnect   = "connect"    // gets a connection and sends the request
	SpanFirstByte = "first byte" // waits for the engine's answer
	SpanStream    = "stream"     // passes the answer on
)

// Span is something that takes time. It is safe for concurrent use. A nil Span does
// nothing; of a request that is not sampled there is one, which records nothing and
// passes the trace context on.
type Span struct {
	t    *Tracer
	ctx  context.Context
	span trace.Span
}

// Start begins the server span of a request, now. Its parent is what the request's
// traceparent names, if it has a valid one. The name should be one of few: the method
// and the route, not the path that the client made up.
func (t *Tracer) Start(r *http.Request, name string) *Span {
	if t == nil {
		return nil
	}
	s := &Span{t: t}
	// The request's own context is not used: the span does not end with the client.
	s.ctx, s.span = t.tracer.Start(extract(r.Header), clip(name), trace.WithSpanKind(trace.SpanKindServer))
	if s.span.IsRecording() {
		s.span.SetAttributes(
			text("http.request.method", r.Method),
			text("url.path", r.URL.Path), // without the query, which may hold secrets
			text("url.scheme", scheme(r)),
			text("server.address", r.Host),
			text("client.address", r.RemoteAddr),
			text("network.protocol.version", strings.TrimPrefix(r.Proto, "HTTP/")),
			text("user_agent.original", r.UserAgent()),
		)
	}
	return s
}

func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// Child begins a span under this one: a part of the gateway's own work.
func (s *Span) Child(name string, start time.Time) *Span {
	return s.child(name, start, trace.SpanKindInternal)
}

// Client begins a span under this one that stands for a call of another server. It is
// the one to Inject into that call's header.
func (s *Span) Client(name string, start time.Time) *Span {
	return s.child(name, start, trace.SpanKindClient)
}

func (s *Span) child(name string, start time.Time, kind trace.SpanKind) *Span {
	if s == nil || !s.span.IsRecording() {
		return s // there is nothing to tell apart
	}
	c := &Span{t: s.t}
	c.ctx, c.span = s.t.tracer.Start(s.ctx, name, trace.WithTimestamp(start), trace.WithSpanKind(kind))
	return c
}

// End ends the span. Only the first End counts, and what is set later is not seen.
// Children should end first.
func (s *Span) End(at time.Time) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	s.span.End(trace.WithTimestamp(at))
}

// Set sets an attribute, in place of one with the same key. Texts, bools, numbers,
// lists of texts, and durations (in seconds) are values. Texts are cut at 512 bytes.
// Keys are those of OpenTelemetry's semantic conventions where they have one:
// "http.response.status_code", "error.type", "gen_ai.request.model".
func (s *Span) Set(key string, value any) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	// Nothing here keeps the value itself, so that a caller's value need not be put
	// on the heap to be ignored.
	var kv attribute.KeyValue
	switch v := value.(type) {
	case string:
		kv = text(key, v)
	case bool:
		kv = attribute.Bool(key, v)
	case int:
		kv = attribute.Int(key, v)
	case int64:
		kv = attribute.Int64(key, v)
	case uint64:
		kv = attribute.Int64(key, int64(min(v, 1<<63-1)))
	case float64:
		kv = attribute.Float64(key, v)
	case time.Duration:
		kv = attribute.Float64(key, v.Seconds())
	case []string:
		list := make([]string, len(v))
		for i, s := range v {
			list[i] = clip(s)
		}
		kv = attribute.StringSlice(key, list)
	default:
		kv = attribute.String(key, fmt.Sprintf("(%v, which an attribute cannot be)", reflect.TypeOf(value)))
	}
	s.span.SetAttributes(kv)
}

// Fail marks the span as failed. nil does nothing.
func (s *Span) Fail(err error) {
	if s == nil || err == nil || !s.span.IsRecording() {
		return
	}
	s.span.SetStatus(codes.Error, clip(err.Error()))
}

// TraceID returns the ID of the span's trace, 32 hexadecimal digits; "" for a nil Span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Inject puts the span's trace context into the header of a request that is about to
// be sent, in place of what is there. A nil Span leaves the header as it is.
func (s *Span) Inject(h http.Header) {
	if s == nil {
		return
	}
	inject(s.ctx, h)
}

func text(key, value string) attribute.KeyValue { return attribute.String(key, clip(value)) }

// clip cuts a text to maxText bytes and replaces what is not UTF-8. A protocol buffer with
// other bytes cannot be encoded, and the whole batch would be lost.
func clip(s string) string {
	if len(s) > maxText {
		n := maxText
		for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
