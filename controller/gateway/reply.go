package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"remuda/controller/gateway/continuation"
)

// replyBuffer is how much of an answer is held at most: a whole answer that
// fits is sent only when it is complete, a line of a stream that fits likewise.
const replyBuffer = 32 << 10

// doneGrace is how long an engine may take to end a stream after [DONE].
const doneGrace = time.Second

var replyBuffers = sync.Pool{New: func() any { return new([replyBuffer]byte) }}

// relay passes an engine's answer to the client. The error it returns has not
// been sent.
func (x *exchange) relay(ctx context.Context, resp *http.Response) (verdict, *apiError) {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	isJSON := kind == contentJSON || strings.HasSuffix(kind, "+json")
	status := resp.StatusCode
	ok := status >= 200 && status < 300
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return x.badContent(fmt.Sprintf("responded %d with Content-Encoding %s, which the gateway does not accept", status, shorten(enc)))
	}
	switch {
	case ok && kind == contentSSE && !x.route.binary:
		// Whether a stream was asked for is the engine's to say: vLLM takes
		// "stream": 1 for true.
		return x.relayStream(ctx, resp)
	case x.committed && status >= 500:
		x.blame(kindStatus, fmt.Errorf("responded %d to the continuation of a stream", status))
		return failedThere, errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response")
	case x.committed && status >= 400:
		// It is about the request that the gateway made: the engine is well.
		x.lease.answered()
		x.g.log.Warn("an engine rejected the continuation of a stream", "id", x.id, "model", x.head.Model, "engine", x.engine.ServiceID, "status", status)
		return failedThere, errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response")
	case x.committed:
		// The stream should go on, and an answer of another kind came.
		return x.badContent(fmt.Sprintf("responded %d with content type %s to the continuation of a stream", status, shorten(kind)))
	case x.mayFail(status) && status >= 500:
		return x.setAside(ctx, resp, kind, isJSON)
	case ok && isJSON, ok && x.route.binary && kind == contentBytes, status >= 400 && isJSON:
		return x.relayWhole(ctx, resp, isJSON)
	case status >= 400:
		return x.wrap(resp, kind, nil)
	default:
		return x.badContent(fmt.Sprintf("responded %d with content type %s instead of JSON", status, shorten(kind)))
	}
}

func (x *exchange) badContent(what string) (verdict, *apiError) {
	x.blame(kindContent, errors.New(what))
	return failedThere, errEngine(http.StatusBadGateway, "engine_bad_content", x.head.Model, what)
}

// mayFail tells whether another engine may be asked after an answer of this status: those
// that are about the engine, while there are attempts left.
func (x *exchange) mayFail(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return x.repeatable()
	}
	return false
}

// setAside keeps an engine's 5xx in case no engine does better.
func (x *exchange) setAside(ctx context.Context, resp *http.Response, kind string, isJSON bool) (verdict, *apiError) {
	const limit = 16 << 10
	x.allow(min(x.g.cfg.Timeouts.StreamIdle, time.Second))
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if x.ctx.Err() != nil {
		return finished, x.left()
	}
	if err != nil && len(text) == 0 {
		return x.fault(ctx, err)
	}
	if !isJSON || err != nil || len(text) == limit || !json.Valid(text) {
		_, e := x.wrap(resp, kind, text)
		return failedThere, e
	}
	x.blame(kindStatus, fmt.Errorf("responded %d with %s", resp.StatusCode, shorten(strings.ToValidUTF8(string(text), "?"))))
	e := errEngine(resp.StatusCode, "engine_error", x.head.Model, fmt.Sprintf("responded %d", resp.StatusCode))
	e.raw = text
	return failedThere, e
}

// wrap turns an engine's error that is not of OpenAI's shape into one that is. A
// 4xx keeps its status: it is about the request. text is what was read of it; of
// one that was not read, nil, what comes at once is quoted.
func (x *exchange) wrap(resp *http.Response, kind string, text []byte) (verdict, *apiError) {
	if text == nil {
		x.allow(min(x.g.cfg.Timeouts.StreamIdle, time.Second))
		text, _ = io.ReadAll(io.LimitReader(resp.Body, 200))
		if x.ctx.Err() != nil {
			return finished, x.left()
		}
	}
	text = text[:min(len(text), 200)]
	what := fmt.Sprintf("responded %d with %s", resp.StatusCode, shorten(strings.ToValidUTF8(string(text), "?")))
	if resp.StatusCode >= 500 {
		x.blame(kindStatus, errors.New(what+", content type "+shorten(kind)))
		return finished, errEngine(http.StatusBadGateway, "engine_error", x.head.Model, what)
	}
	x.lease.answered()
	e := errEngine(resp.StatusCode, "engine_refused", x.head.Model, what)
	e.typ = typeRequest
	e.message = strings.TrimSuffix(e.message, "; retry the request")
	return finished, e
}

// hasError tells whether a whole JSON text is an error in OpenAI's shape, as far
// as clients look: an object with the key "error".
func hasError(text []byte) bool {
	var v struct {
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(text, &v) == nil && len(v.Error) > 0 && string(v.Error) != "null"
}

// read reads more of the answer under the watch for silence: idle is how long
// the engine may be silent once it has begun.
func (x *exchange) read(resp *http.Response, buf []byte, idle time.Duration) (int, error) {
	if !x.fresh {
		x.allow(idle)
	}
	n, err := resp.Body.Read(buf)
	if n > 0 {
		x.fresh = false
		if x.firstByte.IsZero() {
			x.firstByte = time.Now()
		}
	}
	return n, err
}

// commit sends the answer's header, unless the client has one already. From here on
// there is no other answer.
func (x *exchange) commit(resp *http.Response, length int64) {
	x.committed = true
	if x.recorder == nil {
		x.freeBody()
	}
	if resp.StatusCode >= 500 {
		x.countFault(kindStatus, nil)
	} else {
		x.lease.answered()
	}
	if x.held {
		return
	}
	h := x.w.Header()
	copyAnswerHeader(h, resp.Header)
	h[headerID] = []string{x.id}
	h[headerVia] = append(h[headerVia], viaRemuda)
	x.describe()
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	} else {
		delete(h, "Content-Length")
	}
	x.status = resp.StatusCode
	x.w.WriteHeader(x.status)
}

// send writes to the client. It does not return when the client is gone.
func (x *exchange) send(p []byte) {
	if x.watch != nil { // no engine has it yet where a client is told that it waits
		// While the client is slow the engine is not to blame.
		x.watch.Stop()
	}
	n, err := x.w.Write(p)
	x.sent += int64(n)
	if err != nil {
		x.abort(statusClientGone)
	}
}

// relayWhole passes on an answer that is of no use before its end. A short one
// is held until it is complete, so that a fault can still be told properly.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, isJSON bool) (verdict, *apiError) {
	pooled := replyBuffers.Get().(*[replyBuffer]byte)
	defer replyBuffers.Put(pooled)
	buf := pooled[:]
	n := 0
	var err error
	for err == nil && n < len(buf) {
		var m int
		m, err = x.read(resp, buf[n:], x.g.cfg.Timeouts.StreamIdle)
		n += m
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return x.fault(ctx, err)
	}
	if resp.StatusCode >= 400 && err != nil && !hasError(buf[:n]) {
		return x.wrap(resp, resp.Header.Get("Content-Type"), buf[:n])
	}
	if isJSON {
		if c := firstByte(buf[:n]); c != '{' && c != '[' {
			return x.badContent(fmt.Sprintf("responded %d with content type JSON and a body that starts with %s", resp.StatusCode, shorten(string(buf[:min(n, 40)]))))
		}
	}
	// A body that neither has a length nor is chunked ends with the
	// connection, whole or not: its last byte has to tell.
	unframed := resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && isJSON
	last := lastByte(buf[:n], 0)
	if err != nil {
		if unframed && last != '}' && last != ']' {
			return x.fault(ctx, io.ErrUnexpectedEOF)
		}
		if x.held {
			return x.asEvent(resp, buf[:n])
		}
		x.commit(resp, int64(n))
		x.send(buf[:n])
		return finished, nil
	}
	if x.held {
		return x.badContent(fmt.Sprintf("responded %d with %d bytes or more instead of a stream", resp.StatusCode, n))
	}
	x.commit(resp, resp.ContentLength)
	x.send(buf[:n])
	for {
		n, err := x.read(resp, buf, x.g.cfg.Timeouts.StreamIdle)
		if n > 0 {
			last = lastByte(buf[:n], last)
			x.send(buf[:n])
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			if !unframed || last == '}' || last == ']' {
				return finished, nil
			}
			err = io.ErrUnexpectedEOF
		}
		_, e := x.fault(ctx, err)
		x.code = e.code
		if e.status == statusClientGone {
			x.abort(statusClientGone)
		}
		x.abort(x.status)
	}
}

// asEvent sends a whole answer to a client whose stream has begun, mostly an error: a
// refusal that came after the client had waited.
func (x *exchange) asEvent(resp *http.Response, text []byte) (verdict, *apiError) {
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // an event has one line
		return x.badContent("responded with invalid JSON: " + err.Error())
	}
	x.commit(resp, 0)
	x.status = resp.StatusCode
	if resp.StatusCode >= 400 {
		x.code = "engine_refused"
	}
	x.send([]byte("data: " + line.String() + "\n\ndata: [DONE]\n\n"))
	x.flush()
	return finished, nil
}

const jsonSpace = " \t\r\n"

func firstByte(p []byte) byte {
	if p = bytes.TrimLeft(p, jsonSpace); len(p) > 0 {
		return p[0]
	}
	return 0
}

// lastByte returns the last byte of p that is no space, or prior.
func lastByte(p []byte, prior byte) byte {
	if p = bytes.TrimRight(p, jsonSpace); len(p) > 0 {
		return p[len(p)-1]
	}
	return prior
}

// relayStream passes on server-sent events as they come. Only whole lines are
// sent: half a line is of no use to a client, and without it an error event
// can follow at any time. A stream is complete when it has said [DONE].
func (x *exchange) relayStream(ctx context.Context, resp *http.Response) (verdict, *apiError) {
	pooled := replyBuffers.Get().(*[replyBuffer]byte)
	defer replyBuffers.Put(pooled)
	buf := pooled[:]
	done := false
	taken := false // the stream goes on here
	grace := x.g.cfg.Timeouts.StreamIdle
	midLine := false // the line at the start of buf has been sent in part
	went := x.committed
	splice := x.committed
	had := 0 // tokens
	if x.recorder != nil {
		had = x.recorder.Tokens()
	}
	var bad error // what makes the rest of the stream useless for a continuation
	pass := func(p []byte) {
		if x.recorder != nil {
			if p, bad = sound(p, midLine); len(p) == 0 {
				return
			}
		}
		if splice && !taken {
			taken = true
			x.lease.answered()
			x.continued++
			x.g.metrics.continued.WithLabelValues(x.label).Inc()
		}
		if !went {
			went = true
			if resp.Header.Get("X-Accel-Buffering") == "" {
				resp.Header.Set("X-Accel-Buffering", "no") // for an nginx in front
			}
			x.commit(resp, -1)
		}
		if done = saysDone(p, done, midLine); done {
			grace = min(grace, doneGrace)
		}
		switch {
		case x.recorder == nil:
		case splice:
			p = x.recorder.Splice(p)
		default:
			x.recorder.Feed(p)
		}
		x.progress = x.progress || x.recorder != nil && x.recorder.Tokens() > had
		if len(p) > 0 {
			x.send(p)
			x.flush()
		}
	}
	held := 0
	for {
		n, err := x.read(resp, buf[held:], grace)
		end := held + n
		whole := bytes.LastIndexByte(buf[held:end], '\n') + 1
		switch {
		case whole > 0:
			whole += held
			pass(buf[:whole])
			held, midLine = copy(buf, buf[whole:end]), false
		case end == len(buf):
			// A line longer than the buffer cannot be held.
			pass(buf)
			held, midLine = 0, true
		default:
			held = end
		}
		if bad != nil && err == nil {
			err = bad
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			// The engine ended properly: what is left is its last line. Behind half a
			// line nothing could go on.
			if held > 0 && x.recorder == nil {
				pass(buf[:held])
			}
			if done {
				return finished, nil
			}
			if x.fresh {
				return x.badContent("ended a stream without an event")
			}
			err = errors.New("the stream ended without [DONE]")
		case done:
			return finished, nil // all that mattered has arrived
		}
		v, e := x.fault(ctx, err)
		if x.committed && x.recorder == nil {
			v = finished
		}
		return v, e
	}
}

// sound returns the beginning of p that a stream can go on behind, as continuation.Check
// does. Of a line that comes in parts nothing can be said: inLine tells that p begins in one,
// and p may be another part, which has no line's end.
func sound(p []byte, inLine bool) ([]byte, error) {
	from := 0
	if inLine {
		from = bytes.IndexByte(p, '\n') + 1
	}
	to := bytes.LastIndexByte(p, '\n') + 1
	if to <= from {
		return p, nil
	}
	n, err := continuation.Check(p[from:to])
	if err != nil {
		p = p[:from+n]
	}
	return p, err
}

// saysDone tells whether the stream ends with "data: [DONE]" once p, whole
// lines or a part of one, has been added to it.
func saysDone(p []byte, before, midLine bool) bool {
	p = bytes.TrimRight(p, "\r\n")
	if len(p) == 0 {
		return before
	}
	i := bytes.LastIndexAny(p, "\r\n")
	if i < 0 && midLine {
		return false
	}
	data, ok := bytes.CutPrefix(p[i+1:], []byte("data:"))
	return ok && string(bytes.TrimSpace(data)) == "[DONE]"
}
