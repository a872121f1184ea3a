package compose

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"remuda/controller/pipeline"
)

const (
	headerID          = "X-Request-Id"
	headerTimeout     = "X-Remuda-Timeout"
	headerRetry       = "Retry-After"
	headerShouldRetry = "X-Should-Retry"
	contentJSON       = "application/json"
	contentSSE        = "text/event-stream"
)

// exchange is one request to a pipeline.
type exchange struct {
	c    *Composer
	w    http.ResponseWriter
	r    *http.Request
	name string
	// memory is for what the steps answer.
	memory Memory
	began  time.Time
	asked  asked
	// id is the request's, reply that of the answer in OpenAI's form.
	id, reply string
	// limit is the client's time for the first byte, 0: none.
	limit time.Duration

	mu sync.Mutex // guards what is below, and writes to w
	// running are the calls that run, by step.
	running map[string]int
	// committed: the header of the stream was sent; answering: a piece of the answer was;
	// gone: the client takes no more.
	committed, answering, gone bool
}

// refuse answers with an error, before anything else was sent.
func (x *exchange) refuse(f *failure) {
	h := x.w.Header()
	b := f.body()
	h.Set("Content-Type", contentJSON)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if f.retryAfter != "" {
		h.Set(headerRetry, f.retryAfter)
	}
	if f.noRetry {
		h.Set(headerShouldRetry, "false")
	}
	x.w.WriteHeader(f.status)
	_, _ = x.w.Write(b) // a client that is gone needs no error
}

// serve runs the pipeline, and reports whether the stream was cut.
func (x *exchange) serve(p *pipeline.Pipeline, body []byte) (cut bool) {
	x.identify()
	var f *failure
	if x.asked, f = parse(x.r.URL.Path, body); f != nil {
		x.refuse(f)
		return false
	}
	if text := x.r.Header.Get(headerTimeout); text != "" {
		var err error
		if x.limit, err = time.ParseDuration(text); err != nil || x.limit <= 0 {
			x.refuse(badRequest("the header %s is %q: must be a time with a unit, such as 30s", headerTimeout, text))
			return false
		}
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	in := x.asked.input
	if x.asked.stream {
		in.Emit = x.emit
	}
	stop := x.attend(cancel)
	result, err := p.Run(ctx, in, caller{x})
	stop()
	x.c.cfg.Logger.Debug("pipeline", "id", x.id, "pipeline", x.name, "step", result.Step, "took", time.Since(x.began), "error", err)
	if err != nil {
		return x.fail(err)
	}
	return x.answer(result)
}

// identify gives the request and its answer their IDs.
func (x *exchange) identify() {
	h := x.w.Header()
	x.id = h.Get(headerID)
	if x.id == "" {
		x.id = x.r.Header.Get(headerID)
	}
	if x.id == "" {
		x.id = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	}
	if h.Get(headerID) == "" {
		h.Set(headerID, x.id)
	}
	x.reply = "chatcmpl-" + x.id
	if x.r.URL.Path == pathCompletions {
		x.reply = "cmpl-" + x.id
	}
}

// attend tells a client that waits how things go, and ends the pipeline when the client's own
// time is over. The function that it returns ends that and waits for it.
func (x *exchange) attend(cancel context.CancelCauseFunc) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var limit <-chan time.Time
		if x.limit > 0 {
			t := time.NewTimer(time.Until(x.began.Add(x.limit)))
			defer t.Stop()
			limit = t.C
		}
		comment := time.NewTimer(x.c.cfg.CommentAfter)
		defer comment.Stop()
		if !x.asked.stream {
			comment.Stop()
		}
		for {
			select {
			case <-done:
				return
			case <-limit:
				if !x.isAnswering() {
					cancel(fmt.Errorf("%w: %s", errTooSlow, x.limit))
					return
				}
				limit = nil
			case <-comment.C:
				if !x.comment() {
					comment.Stop()
					continue
				}
				comment.Reset(x.c.cfg.CommentEvery)
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

func (x *exchange) isAnswering() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.answering
}

// fail ends the request with what went wrong, in the way that is still open. It reports whether the
// stream was cut.
func (x *exchange) fail(err error) (cut bool) {
	f := failed(x.name, err)
	if f == nil && x.r.Context().Err() == nil && !x.gone {
		// Only the client's own end is none of its business.
		f = &failure{status: http.StatusInternalServerError, typ: typeServer, code: "pipeline_failed", message: fmt.Sprintf("pipeline %q: %v", x.name, err)}
	}
	switch {
	case f == nil:
		return true
	case !x.committed:
		x.refuse(f)
		return false
	}
	_ = x.write([]byte("data: " + string(f.body()) + "\n\n")) // the connection is cut in any case
	return true
}

// stepID is the request ID of a call, cut to what the gateway takes.
func (x *exchange) stepID(c pipeline.Call) string {
	const longest = 128
	own := "." + c.ID()
	return x.id[:min(len(x.id), longest-len(own))] + own
}

// remaining is what is left of the client's time; ok is false where it is over.
func (x *exchange) remaining() (left time.Duration, ok bool) {
	left = x.limit - time.Since(x.began)
	return left, left > 0
}

// passed are the headers of the client that its steps' requests have as well, beside those
// that begin with X-Remuda-.
var passed = []string{"Authorization", "Traceparent", "Tracestate", "Baggage", "User-Agent", "X-Forwarded-For"}

// header is that of a step's request.
func (x *exchange) header(c pipeline.Call) (http.Header, error) {
	h := http.Header{"Content-Type": {contentJSON}, headerID: {x.stepID(c)}}
	for name, values := range x.r.Header {
		if strings.HasPrefix(name, "X-Remuda-") {
			h[name] = values
		}
	}
	for _, name := range passed {
		if v := x.r.Header[name]; len(v) > 0 {
			h[name] = v
		}
	}
	if x.limit > 0 && !x.isAnswering() {
		left, ok := x.remaining()
		if !ok {
			return nil, fmt.Errorf("%w: %s", errTooSlow, x.limit)
		}
		h.Set(headerTimeout, left.String())
	}
	return h, nil
}

var errAborted = errors.New("the response was cut off")
