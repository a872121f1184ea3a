package tracing_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/tracing"
)

func TestTraceID(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"none", nil, ""},
		{"sampled", []string{sampled}, traceID},
		{"not sampled", []string{unsampled}, traceID},
		{"later version", []string{"01" + sampled[2:] + "-more"}, traceID},
		{"not allowed version", []string{"ff" + sampled[2:]}, ""},
		{"short", []string{sampled[:54]}, ""},
		{"long", []string{sampled + "-more"}, ""},
		{"zero", []string{"00-" + strings.Repeat("0", 32) + "-" + parentID + "-01"}, ""},
		{"upper case", []string{strings.ToUpper(sampled)}, ""},
		{"twice", []string{sampled, sampled}, ""},
	} {
		require.Equal(t, tc.want, tracing.TraceID(http.Header{"Traceparent": tc.lines}), tc.name)
	}
}

// A tracestate that is not valid does not cost the trace.
func TestBrokenState(t *testing.T) {
	tr := tracer(t, tracing.Config{Endpoint: newCollector(t).URL, Ratio: 1})
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
