package tracing

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// pauseFirst is the pause before a batch is sent again; it doubles up to pauseMost.
	pauseFirst = 250 * time.Millisecond
	pauseMost  = 5 * time.Second
	// tryLimit bounds one attempt, as in OTLP's other exporters.
	tryLimit = 10 * time.Second
	// answerLimit is how much of a collector's answer is read.
	answerLimit = 64 << 10
	// sayEvery is how often the log is told of dropped spans.
	sayEvery = time.Minute
)

// exporter sends batches of spans (OTLP 1.x over HTTP, binary protocol buffers). Its
// ExportSpans is called by one goroutine at a time.
type exporter struct {
	target string
	header http.Header
	client *http.Client
	log    hclog.Logger
	// stop ends when Close has waited for long enough.
	stop  context.Context
	abort context.CancelFunc

	// waiting is how many spans were let in and are neither sent nor lost yet.
	waiting             atomic.Int64
	sent, lost, dropped atomic.Uint64

	// failing says that the last batch was lost; unsaid how many were since it began.
	failing bool
	unsaid  uint64
	// said is when dropped spans were last told of, and saidDropped how many.
	said        time.Time
	saidDropped uint64
}

var _ sdktrace.SpanExporter = (*exporter)(nil)

func newExporter(target string, headers map[string]string, log hclog.Logger) *exporter {
	e := &exporter{target: target, log: log, header: make(http.Header)}
	for k, v := range headers {
		e.header.Set(k, v)
	}
	e.header.Set("Content-Type", "application/x-protobuf")
	e.header.Set("User-Agent", "remuda-gateway (OTLP over HTTP)")
	e.client = &http.Client{
		Timeout: tryLimit,
		// A collector is named, not looked for: a redirect would send credentials along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     90 * time.Second,
			ForceAttemptHTTP2:   true,
		},
	}
	e.stop, e.abort = context.WithCancel(context.Background())
	return e
}

// ExportSpans sends a batch, several times if need be. It always returns nil: what
// fails is counted and logged here.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.stop, cancel)()

	n := uint64(len(spans))
	var rejected uint64
	body, err := proto.Marshal(request(spans))
	if err == nil {
		rejected, err = e.send(ctx, body)
	}
	if err != nil {
		rejected = n
	}
	rejected = min(rejected, n)
	e.lost.Add(rejected)
	e.sent.Add(n - rejected)
	e.waiting.Add(-int64(n))
	e.tell(rejected, err)
	return nil
}

// Shutdown is called after the last batch.
func (e *exporter) Shutdown(context.Context) error {
	e.abort()
	e.client.CloseIdleConnections()
	return nil
}

// tell logs the beginning and the end of a failure, and what was dropped.
func (e *exporter) tell(rejected uint64, err error) {
	e.unsaid += rejected
	switch {
	case err != nil && !e.failing:
		e.failing = true
		e.log.Warn("cannot export spans; they are lost until the collector accepts them", "endpoint", e.target, "spans", rejected, "error", err)
	case err == nil && e.failing:
		e.failing = false
		e.log.Info("exporting spans again", "endpoint", e.target, "lost_meanwhile", e.unsaid)
		e.unsaid = 0
	case err == nil:
		e.unsaid = 0
	}
	dropped := e.dropped.Load()
	if dropped > e.saidDropped && (e.said.IsZero() || time.Since(e.said) >= sayEvery) {
		e.log.Warn("the export queue was full; spans were dropped", "endpoint", e.target,
			"dropped", dropped-e.saidDropped, "queue", queued)
		e.said, e.saidDropped = time.Now(), dropped
	}
}

// send posts a batch until the collector takes it, says that it never will, or ctx
// ends. It returns how many spans of it the collector refused.
func (e *exporter) send(ctx context.Context, body []byte) (rejected uint64, err error) {
	pause := pauseFirst
	for {
		rejected, after, err := e.post(ctx, body)
		if err == nil {
			return rejected, nil
		}
		if after < 0 {
			return 0, err
		}
		// Half of it at random, so that gateways do not come back together.
		wait := max(after, pause/2+rand.N(pause/2))
		pause = min(2*pause, pauseMost)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, err
		}
	}
}

// never as a pause says that the same batch will be refused again.
const never = -1

// post makes one attempt. after is how long the collector asks to be left alone.
func (e *exporter) post(ctx context.Context, body []byte) (rejected uint64, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.target, bytes.NewReader(body))
	if err != nil {
		return 0, never, err
	}
	req.Header = e.header.Clone()
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		if err != nil { // taken, but nobody knows how much of it
			return 0, never, nil
		}
		return e.partial(answer), 0, nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusBadGateway,
		resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		// What OTLP calls retryable.
		return 0, retryAfter(resp.Header), refusal(resp, answer)
	default:
		return 0, never, refusal(resp, answer)
	}
}

// partial reads the answer of a collector that took the batch, perhaps not all of it.
func (e *exporter) partial(answer []byte) uint64 {
	var m collectorpb.ExportTraceServiceResponse
	if proto.Unmarshal(answer, &m) != nil { // some answer with JSON, or nothing
		return 0
	}
	p := m.GetPartialSuccess()
	if p.GetRejectedSpans() > 0 || p.GetErrorMessage() != "" {
		e.log.Warn("the collector rejected some spans", "endpoint", e.target, "rejected", p.GetRejectedSpans(), "error", clip(p.GetErrorMessage()))
	}
	return uint64(max(p.GetRejectedSpans(), 0))
}

func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(max(s, 0)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

func refusal(resp *http.Response, answer []byte) error {
	err := fmt.Errorf("the collector responded %s", resp.Status)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/") || strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		if text := strings.TrimSpace(clip(string(answer))); text != "" {
			err = fmt.Errorf("%w: %q", err, text)
		}
	}
	if resp.StatusCode == http.StatusNotFound {
		err = fmt.Errorf("%w; check the path of the endpoint", err)
	}
	return err
}
