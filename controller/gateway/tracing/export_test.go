package tracing_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"remuda/controller/gateway/tracing"
	"remuda/internal/testkit/proclog"
)

func spans(tr *tracing.Tracer, n int) {
	for range n {
		tr.Start(request("Traceparent", sampled), "server").End(time.Now())
	}
}

// A span arrives soon, without Close.
func TestExportsSoon(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, tracing.Config{Endpoint: c.URL + "/otlp/", Ratio: 1})
	spans(tr, 1)
	require.Eventually(t, func() bool { return tr.Stats().Sent == 1 }, time.Minute, 10*time.Millisecond)
	c.take() // the collector has done with it
	require.Equal(t, "/otlp/v1/traces", c.requests[0].URL.Path)
}

// What passes is tried again, what will not is given up.
func TestRetries(t *testing.T) {
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, tc := range []struct {
		name     string
		answers  []http.HandlerFunc
		requests int
		sent     uint64
		least    time.Duration
		said     string
	}{
		{"busy", []http.HandlerFunc{status(503, "Retry-After", "1"), status(429)}, 3, 10, time.Second, ""},
		{"gone in the middle", []http.HandlerFunc{hangUp}, 1, 0, 0, "EOF"},
		{"refused", []http.HandlerFunc{status(400)}, 1, 0, 0, "400 Bad Request (body: no, 400)"},
		{"no such path", []http.HandlerFunc{status(404)}, 1, 0, 0, "/v1/traces: 404 Not Found"},
		{"partly", []http.HandlerFunc{partly(t, 4)}, 1, 6, 0, "too old (4 spans rejected)"},
		{"more than all", []http.HandlerFunc{partly(t, 11)}, 1, 0, 0, "lost=10"},
		{"a remark", []http.HandlerFunc{partly(t, 0)}, 1, 10, 0, "too old (0 spans rejected)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCollector(t, tc.answers...)
			var said proclog.Buffer
			tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1, Logger: said.Logger()})
			spans(tr, 10)
			began := time.Now()
			finish(t, tr)
			require.GreaterOrEqual(t, time.Since(began), tc.least)
			_, _, requests := c.take()
			require.Equal(t, tc.requests, requests)
			require.Equal(t, tracing.Stats{Ended: 10, Sent: tc.sent, Lost: 10 - tc.sent}, tr.Stats())
			require.Contains(t, said.String(), tc.said)
			if tc.said == "" {
				require.Empty(t, said.String())
			}
		})
	}
}

func partly(t *testing.T, rejected int64) http.HandlerFunc {
	answer, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{
		PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: rejected, ErrorMessage: "too old"}})
	require.NoError(t, err)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(answer)
	}
}

// The log hears of the first batch that is lost and of the end of it, not of all.
func TestSaysOnce(t *testing.T) {
	c := newCollector(t, status(400), status(400), status(400))
	var said proclog.Buffer
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1, Logger: said.Logger()})
	for n := range uint64(4) {
		spans(tr, 1)
		require.Eventually(t, func() bool { s := tr.Stats(); return s.Sent+s.Lost == n+1 }, time.Minute, 10*time.Millisecond)
	}
	finish(t, tr)
	require.Equal(t, tracing.Stats{Ended: 4, Sent: 1, Lost: 3}, tr.Stats())
	require.Regexp(t, `(?s)^[^\n]*cannot deliver all spans[^\n]*\n[^\n]*delivering all spans again[^\n]*lost_total=3 dropped_total=0\n$`, said.String())
}

// If nothing listens at the endpoint, all spans are lost and the log has one warning.
func TestNoCollector(t *testing.T) {
	c := newCollector(t)
	c.Close()
	var said proclog.Buffer
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1, Logger: said.Logger()})
	const n = 2000 // several batches
	spans(tr, n)
	finish(t, tr)
	require.Equal(t, tracing.Stats{Ended: n, Lost: n}, tr.Stats())
	require.Regexp(t, `^[^\n]*cannot deliver all spans[^\n]*connection refused[^\n]*\n$`, said.String())
}

// If the collector does not answer, the queue fills up to its bound, every span is counted,
// no request waits, and Close ends with its context.
func TestHungCollector(t *testing.T) {
	hung := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	c := newCollector(t, slices.Repeat([]http.HandlerFunc{hung}, 100)...)
	var said proclog.Buffer
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1, Logger: said.Logger()})
	const n = 10000
	spans(tr, n)
	require.Equal(t, tracing.Stats{Ended: n, Dropped: n - 8192}, tr.Stats())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := tr.Close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "8192 spans could not be sent to "+c.URL)
	require.Equal(t, tracing.Stats{Ended: n, Lost: 8192, Dropped: n - 8192}, tr.Stats())
	require.Contains(t, said.String(), "dropped=1808")

	require.NoError(t, tr.Close(t.Context()))
}

func TestBadConfig(t *testing.T) {
	for _, tc := range []struct {
		cfg  tracing.Config
		want string
	}{
		{tracing.Config{Endpoint: "localhost:4318", Ratio: 2},
			"tracing: endpoint is \"localhost:4318\": must be an http or https URL with a host, such as http://localhost:4318\n" +
				"tracing: ratio is 2: must be 0 to 1"},
		{tracing.Config{Endpoint: "http://u:p@h/?q"},
			`tracing: endpoint is "http://u:xxxxx@h/?q": must not have a user, a query or a fragment (credentials go into OTEL_EXPORTER_OTLP_HEADERS)`},
		{tracing.Config{Endpoint: "http://:4318"},
			`tracing: endpoint is "http://:4318": must be an http or https URL with a host, such as http://localhost:4318`},
		{tracing.Config{Endpoint: "http://a b/"},
			`tracing: endpoint: parse "http://a b/": invalid character " " in host name: must be a URL such as http://localhost:4318`},
	} {
		_, err := tracing.New(tc.cfg)
		require.EqualError(t, err, tc.want)
	}
}

// A request that comes while the gateway ends is in its trace as before; only its spans
// are missing.
func TestAfterClose(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1})
	before := tr.Start(request(), "before")
	finish(t, tr)
	before.Child("child", time.Now()).End(time.Now())
	before.End(time.Now())
	after := tr.Start(request("Traceparent", sampled, "Tracestate", "a=1"), "after")
	h := http.Header{"Traceparent": {"what"}, "Tracestate": {"b=2"}}
	after.Child("child", time.Now()).Inject(h)
	after.End(time.Now())
	require.Equal(t, traceID, tracing.TraceID(h))
	require.Equal(t, "a=1", h.Get("Tracestate"))
	_, count, _ := c.take()
	require.Zero(t, count)
	require.Zero(t, tr.Stats())
}
