package tracing

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Names of the headers of W3C Trace Context, in canonical form.
const (
	headerParent = "Traceparent"
	headerState  = "Tracestate"
)

// TraceID returns the ID of the trace that a request's traceparent names, for those
// who make no spans; "" if it has no valid one.
func TraceID(h http.Header) string {
	if _, ok := parseParent(h[headerParent]); !ok {
		return ""
	}
	return h[headerParent][0][3:35]
}

// parentOf returns the trace context that came with a request. A tracestate that is
// not valid is left out; one without a valid traceparent does not count.
func parentOf(h http.Header) (trace.SpanContext, bool) {
	cfg, ok := parseParent(h[headerParent])
	if !ok {
		return trace.SpanContext{}, false
	}
	cfg.Remote = true
	// Several lines are one list (RFC 9110 section 5.3).
	if state, err := trace.ParseTraceState(strings.Join(h[headerState], ",")); err == nil {
		cfg.TraceState = state
	}
	return trace.NewSpanContext(cfg), true
}

// parseParent reads a traceparent (W3C Trace Context, section 3.2): a version, a trace
// ID, a parent's ID and flags, "00-<32 hex>-<16 hex>-<2 hex>". Of later versions more
// may follow. Flags that are not known are ignored, two lines are none.
func parseParent(lines []string) (cfg trace.SpanContextConfig, ok bool) {
	if len(lines) != 1 {
		return cfg, false
	}
	s := lines[0]
	var version, flags [1]byte
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' ||
		!unhex(version[:], s[:2]) || !unhex(cfg.TraceID[:], s[3:35]) || !unhex(cfg.SpanID[:], s[36:52]) || !unhex(flags[:], s[53:55]) ||
		version[0] == 0xff || !cfg.TraceID.IsValid() || !cfg.SpanID.IsValid() {
		return cfg, false
	}
	if len(s) > 55 && (version[0] == 0 || s[55] != '-') {
		return cfg, false
	}
	cfg.TraceFlags = trace.TraceFlags(flags[0]) & (trace.FlagsSampled | trace.FlagsRandom)
	return cfg, true
}

// unhex decodes lower case hexadecimal digits; others are not allowed in traceparent.
func unhex(dst []byte, s string) bool {
	for i := range dst {
		hi, lo := digit(s[2*i]), digit(s[2*i+1])
		if hi|lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// inject replaces the trace context in a header.
func inject(sc trace.SpanContext, h http.Header) {
	delete(h, headerState) // it belongs to the parent that is replaced
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), propagation.HeaderCarrier(h))
}
