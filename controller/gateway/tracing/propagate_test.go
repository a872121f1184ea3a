package tracing_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"remuda/controller/gateway/tracing"
)

func TestTraceID(t *testing.T) {
	for in, want := range map[string]string{
		sampled:                               traceID,
		unsampled:                             traceID,
		sampled[:53] + "ff":                   traceID, // flags to come
		"01" + sampled[2:]:                    traceID,
		"01" + sampled[2:] + "-more":          traceID,
		"01" + sampled[2:] + "more":           "",
		sampled + "-more":                     "",
		"":                                    "",
		"ff" + sampled[2:]:                    "",
		sampled[:54]:                          "",
		strings.ToUpper(sampled):              "",
		strings.Replace(sampled, "-", "_", 1): "",
		"00-" + strings.Repeat("0", 32) + "-" + parentID + "-01": "",
		"00-" + traceID + "-" + strings.Repeat("0", 16) + "-01":  "",
		"00-" + traceID[:31] + "g-" + parentID + "-01":           "",
		" " + sampled[1:]: "",
	} {
		require.Equal(t, want, tracing.TraceID(http.Header{"Traceparent": {in}}), "%q", in)
	}
	require.Empty(t, tracing.TraceID(http.Header{}))
	require.Empty(t, tracing.TraceID(http.Header{"Traceparent": {sampled, sampled}}), "nobody knows which")
}

// A tracestate that is not valid does not cost the trace.
func TestBrokenState(t *testing.T) {
	tr := tracer(t, tracing.Config{Endpoint: newCollector(t).URL})
	for in, want := range map[string][]string{
		"a=1,b=2":                  {"a=1,b=2"},
		"a=1,a=2":                  nil, // twice
		"=,\x00":                   nil,
		"A=1":                      nil,
		strings.Repeat("a=1,", 33): nil,
	} {
		s := tr.Start(request("Traceparent", sampled, "Tracestate", in), "server")
		h := http.Header{"Tracestate": {in}}
		s.Inject(h)
		s.End(time.Now())
		require.Equal(t, traceID, tracing.TraceID(h))
		require.Equal(t, want, h["Tracestate"], "%q", in)
	}
}

// FuzzParent holds the reading of traceparent against OpenTelemetry's own, which
// differs in two things: it lets a dash pass at the end of version 00, and it takes reserved flags of version 00 for an error, which the
// specification says to ignore.
func FuzzParent(f *testing.F) {
	for _, s := range []string{sampled, unsampled, "01" + sampled[2:] + "-x", "ff" + sampled[2:], sampled[:53] + "0f", "00-", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		h := http.Header{"Traceparent": {in}}
		want := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h)))
		got := tracing.TraceID(h)
		if strings.HasPrefix(in, "00-") && len(in) != len(sampled) {
			require.Empty(t, got, "version 00 has nothing behind its flags, though OpenTelemetry lets a dash pass")
			return
		}
		if got == "" {
			require.False(t, want.IsValid(), "%q", in)
			return
		}
		require.Equal(t, got, in[3:35])
		if strings.HasPrefix(in, "00-") && in[53:] > "03" {
			return
		}
		require.Equal(t, want.TraceID().String(), got, "%q", in)
	})
}
