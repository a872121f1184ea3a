package tracing_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"remuda/controller/gateway/tracing"
)

const (
	traceID   = "0af7651916cd43dd8448eb211c80319c"
	parentID  = "b7ad6b7169203331"
	sampled   = "00-" + traceID + "-" + parentID + "-01"
	unsampled = "00-" + traceID + "-" + parentID + "-00"
)

// One request as the gateway sees it: a server span under the client's, and the parts
// of its work under that, as a collector gets them.
func TestRequest(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 1, Service: "gw"})
	r := request("Traceparent", sampled, "Tracestate", "a=1", "Tracestate", "b=2")
	before := time.Now()
	s := tr.Start(r, "POST /v1/chat/completions")
	require.Equal(t, traceID, s.TraceID())
	t0 := time.Now().Add(time.Second)

	queue := s.Child(tracing.SpanQueue, t0)
	queue.Set("position", 3)
	queue.End(t0.Add(time.Second))
	connect := s.Client(tracing.SpanConnect, t0.Add(time.Second))
	out := http.Header{"Traceparent": {sampled}, "Tracestate": {"a=1", "b=2"}, "Baggage": {"x=y"}}
	connect.Inject(out)
	connect.Fail(errors.New("refused " + strings.Repeat("x", 1000)))
	connect.End(t0.Add(2 * time.Second))
	for key, v := range map[string]any{
		"text": "t\xff", "long": strings.Repeat("ü", 400), "yes": true, "int": 1, "int64": int64(-2), "big": uint64(1 << 63),
		"float": 0.5, "took": 1500 * time.Millisecond, "list": []string{"a", "b\xff"}, "odd": struct{ A int }{},
	} {
		s.Set(key, v)
	}
	s.Fail(nil)
	s.End(t0.Add(3 * time.Second))
	s.End(t0.Add(9 * time.Second))
	s.Set("late", true)
	finish(t, tr)

	spans, count, _ := c.take()
	require.Equal(t, 3, count)
	root, q, cn := spans["POST /v1/chat/completions"], spans["queue"], spans["connect"]
	require.Equal(t, parentID, hex.EncodeToString(root.ParentSpanId))
	require.Equal(t, "a=1,b=2", root.TraceState)
	require.Equal(t, tracepb.Span_SPAN_KIND_SERVER, root.Kind)
	require.EqualValues(t, 0x301, root.Flags, "sampled, and the parent is known to be remote")
	require.Equal(t, tracepb.Status_STATUS_CODE_UNSET, root.Status.Code)
	require.WithinRange(t, time.Unix(0, int64(root.StartTimeUnixNano)), before, t0)
	require.EqualValues(t, t0.Add(3*time.Second).UnixNano(), root.EndTimeUnixNano)
	got := values(root.Attributes)
	require.Equal(t, strings.Repeat("ü", 256), got["long"])
	delete(got, "long")
	require.Equal(t, map[string]any{
		"http.request.method": "POST", "url.path": "/v1/chat/completions", "url.scheme": "http", "server.address": "gateway:8080",
		"client.address": r.RemoteAddr, "network.protocol.version": "1.1", "user_agent.original": "test/1",
		"text": "t\ufffd", "yes": true, "int": int64(1), "int64": int64(-2), "big": int64(1<<63 - 1),
		"float": 0.5, "took": 1.5, "list": []string{"a", "b\ufffd"}, "odd": "(struct { A int }, which an attribute cannot be)",
	}, got)
	for _, child := range []*tracepb.Span{q, cn} {
		require.Equal(t, traceID, hex.EncodeToString(child.TraceId))
		require.Equal(t, root.SpanId, child.ParentSpanId)
		require.EqualValues(t, 0x101, child.Flags)
		require.Equal(t, time.Second.Nanoseconds(), int64(child.EndTimeUnixNano-child.StartTimeUnixNano))
	}
	require.EqualValues(t, t0.UnixNano(), q.StartTimeUnixNano)
	require.Equal(t, tracepb.Span_SPAN_KIND_INTERNAL, q.Kind)
	require.Equal(t, map[string]any{"position": int64(3)}, values(q.Attributes))
	require.Equal(t, tracepb.Span_SPAN_KIND_CLIENT, cn.Kind)
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, cn.Status.Code)
	require.Equal(t, "refused "+strings.Repeat("x", 504), cn.Status.Message)
	require.Equal(t, http.Header{
		"Traceparent": {"00-" + traceID + "-" + hex.EncodeToString(cn.SpanId) + "-01"},
		"Tracestate":  {"a=1,b=2"}, "Baggage": {"x=y"},
	}, out, "the engine's span will be a child of the call")
	require.Equal(t, "gw", c.resource["service.name"])
	require.Equal(t, "go", c.resource["telemetry.sdk.language"])
	require.Equal(t, "/v1/traces", c.requests[0].URL.Path)
	require.Equal(t, tracing.Stats{Ended: 3, Sent: 3}, tr.Stats())
}

// The ratio decides, and a client can only exclude its request. The trace goes on in any
// case, with the decision.
func TestSampling(t *testing.T) {
	for _, tc := range []struct {
		name   string
		ratio  float64
		parent string
		want   bool
		// trace is the trace that goes on; "" is a new one.
		trace string
	}{
		{"sampled parent, all", 1, sampled, true, traceID},
		{"sampled parent, none", 0, sampled, false, traceID},
		{"unsampled parent, all", 1, unsampled, false, traceID},
		{"unsampled parent, none", 0, unsampled, false, traceID},
		{"no parent, all", 1, "", true, ""},
		{"no parent, none", 0, "", false, ""},
		{"parent of a later version", 1, "cc-" + traceID + "-" + parentID + "-09-what", true, traceID},
		{"broken parent", 0, "00-" + traceID + "-0000000000000000-01", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCollector(t)
			tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: tc.ratio})
			r := request("Tracestate", "a=1")
			if tc.parent != "" {
				r.Header.Set("Traceparent", tc.parent)
			}
			s := tr.Start(r, "server")
			child := s.Child("child", time.Now())
			h := r.Header.Clone()
			child.Inject(h)
			child.Set("a", 1)
			child.Fail(errors.New("x"))
			child.End(time.Now())
			s.End(time.Now())
			finish(t, tr)

			_, count, _ := c.take()
			flags, want := "-00", 0
			if tc.want {
				flags, want = "-01", 2
			}
			require.Equal(t, want, count)
			require.Equal(t, child.TraceID(), tracing.TraceID(h), "it is a valid one: %v", h)
			// Also 03, where the new trace ID is said to be random.
			require.Contains(t, []string{flags, flags[:2] + string(flags[2]|2)}, h.Get("Traceparent")[52:])
			if tc.trace == "" {
				require.NotEqual(t, traceID, s.TraceID())
				require.Empty(t, h["Tracestate"], "it belonged to what was no trace")
			} else {
				require.Equal(t, tc.trace, s.TraceID())
				require.Equal(t, []string{"a=1"}, h["Tracestate"])
			}
		})
	}
}

// A client that marks its traces as sampled gets no more of them than the ratio allows.
func TestRatioBoundsSampledParents(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 0})
	for range 300 {
		tr.Start(request("Traceparent", sampled), "server").End(time.Now())
	}
	finish(t, tr)
	require.Zero(t, tr.Stats())
	_, count, _ := c.take()
	require.Zero(t, count)
}

// The share of the traces that are sampled is the ratio, also if the clients mark all of
// them as sampled.
func TestRatio(t *testing.T) {
	for name, header := range map[string]func() []string{
		"no parent": func() []string { return nil },
		"sampled parent": func() []string {
			return []string{"Traceparent", fmt.Sprintf("00-%016x%016x-%s-01", rand.Uint64(), rand.Uint64(), parentID)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			tr := tracer(t, tracing.Config{Endpoint: c.URL, Ratio: 0.25})
			const n = 2000
			for range n {
				tr.Start(request(header()...), "server").End(time.Now())
			}
			finish(t, tr)
			got := tr.Stats()
			require.Equal(t, got.Ended, got.Sent)
			require.InDelta(t, n/4, float64(got.Sent), n/4*0.3) // 7.7 standard deviations
		})
	}
}

func TestOff(t *testing.T) {
	tr, err := tracing.New(tracing.Config{})
	require.NoError(t, err)
	require.Nil(t, tr)
	r := request("Traceparent", sampled, "Tracestate", "a=1")
	h := r.Header.Clone()
	model, tokens, now, fault := "m-"+r.Host, len(r.Host)+1000, time.Now(), errors.New("x")
	var id string
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s := tr.Start(r, "server")
		child := s.Child("queue", now)
		child.Set("model", model)
		child.Set("tokens", tokens)
		child.Set("waited", time.Duration(tokens))
		child.Fail(fault)
		child.End(now)
		s.Client("connect", now).Inject(h)
		s.End(now)
		id = s.TraceID()
	}))
	require.Equal(t, r.Header, h, "passed on as it is")
	require.Empty(t, id)
	require.Zero(t, tr.Stats())
	require.NoError(t, tr.Close(t.Context()))
}

func BenchmarkRequest(b *testing.B) {
	c := newCollector(b)
	for _, bc := range []struct {
		name, endpoint, parent string
	}{{"off", "", sampled}, {"unsampled", c.URL, unsampled}, {"sampled", c.URL, sampled}} {
		b.Run(bc.name, func(b *testing.B) {
			tr, err := tracing.New(tracing.Config{Endpoint: bc.endpoint, Ratio: 1})
			require.NoError(b, err)
			r := request("Traceparent", bc.parent)
			h := http.Header{}
			model := "model"
			b.ReportAllocs()
			for b.Loop() {
				s := tr.Start(r, "server")
				s.Set("gen_ai.request.model", model)
				at := time.Now()
				s.Child(tracing.SpanQueue, at).End(at)
				client := s.Client(tracing.SpanConnect, at)
				client.Inject(h)
				client.End(at)
				s.Child(tracing.SpanFirstByte, at).End(at)
				s.Child(tracing.SpanStream, at).End(at)
				s.Set("http.response.status_code", 200)
				s.End(at)
			}
			b.StopTimer()
			require.NoError(b, tr.Close(b.Context()))
			b.ReportMetric(float64(tr.Stats().Dropped)/float64(b.N), "dropped/op")
		})
	}
}
