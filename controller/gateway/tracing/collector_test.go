package tracing_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"remuda/controller/gateway/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector receives spans by OTLP over HTTP.
type collector struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	requests []*http.Request
	resource map[string]any
	spans    map[string]*tracepb.Span // by name
	count    int
	// answers are given first, one to a request; then all is well.
	answers []http.HandlerFunc
}

func newCollector(t testing.TB, answers ...http.HandlerFunc) *collector {
	t.Helper()
	c := &collector{t: t, spans: map[string]*tracepb.Span{}, answers: answers}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its sender has given up
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	if len(c.answers) > 0 {
		answer := c.answers[0]
		c.answers = c.answers[1:]
		answer(w, r)
		return
	}
	var m collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &m); err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Method != http.MethodPost {
		c.t.Errorf("not OTLP: %s %v: %v", r.Method, r.Header, err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, rs := range m.ResourceSpans {
		c.resource = values(rs.Resource.Attributes)
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans[s.Name] = s
				c.count++
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
	if err == nil {
		_, err = w.Write(answer)
	}
	if err != nil {
		c.t.Errorf("answer: %v", err)
	}
}

// take returns what came so far.
func (c *collector) take() (spans map[string]*tracepb.Span, count, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans, c.count, len(c.requests)
}

func values(in []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range in {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.Key] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			out[kv.Key] = v.DoubleValue
		case *commonpb.AnyValue_BoolValue:
			out[kv.Key] = v.BoolValue
		case *commonpb.AnyValue_ArrayValue:
			var list []string
			for _, e := range v.ArrayValue.Values {
				list = append(list, e.GetStringValue())
			}
			out[kv.Key] = list
		}
	}
	return out
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		http.Error(w, fmt.Sprintf("no, %d", code), code)
	}
}

// tracer returns a tracer that is closed at the end of the test, if not before.
func tracer(t *testing.T, cfg tracing.Config) *tracing.Tracer {
	t.Helper()
	tr, err := tracing.New(cfg)
	require.NoError(t, err)
	require.NotNil(t, tr)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nothing more is expected to be sent
		_ = tr.Close(ctx)
	})
	return tr
}

// finish closes a tracer and lets it send all.
func finish(t *testing.T, tr *tracing.Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, tr.Close(ctx))
}

func request(header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://gateway:8080/v1/chat/completions?key=secret", nil)
	r.Header.Set("User-Agent", "test/1")
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}
