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
)

// replyBuffer is how much of an answer is held at most: a whole answer that
// fits is sent only when it is complete, a line of a stream that fits likewise.
const replyBuffer = 32 << 10

// doneGrace is how long an engine may take to end a stream after [DONE].
const doneGrace = time.Second

var replyBuffers = sync.Pool{New: func() any { return new([replyBuffer]byte) }}

// relay passes an engine's answer to the client. The error it returns has not
// been sent, nor has anything else.
func (x *exchange) relay(ctx context.Context, resp *http.Response) *apiError {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	isJSON := kind == contentJSON || strings.HasSuffix(kind, "+json")
	status := resp.StatusCode
	ok := status >= 200 && status < 300
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return x.badContent(fmt.Sprintf("answered %d with Content-Encoding %s, which it was not offered", status, shorten(enc)))
	}
	switch {
	case ok && kind == contentSSE && !x.route.binary:
		// Whether a stream was asked for is the engine's to say: vLLM takes
		// "stream": 1 for true.
		return x.relayStream(ctx, resp)
	case ok && isJSON, ok && x.route.binary && kind == contentBytes, status >= 400 && isJSON:
		return x.relayWhole(ctx, resp, isJSON)
	case status >= 400:
		return x.wrap(resp, kind, nil)
	default:
		return x.badContent(fmt.Sprintf("answered %d with content of type %s, want JSON", status, shorten(kind)))
	}
}

func (x *exchange) badContent(what string) *apiError {
	x.blame(kindContent, errors.New(what))
	return errEngine(http.StatusBadGateway, "engine_bad_content", x.head.Model, what)
}

// wrap turns an engine's error that is not of OpenAI's shape into one that is. A
// 4xx keeps its status: it is about the request. text is what was read of it; of
// one that was not read, nil, what comes at once is quoted.
func (x *exchange) wrap(resp *http.Response, kind string, text []byte) *apiError {
	if text == nil {
		x.watch.Reset(min(x.g.cfg.Timeouts.StreamIdle, time.Second))
		text, _ = io.ReadAll(io.LimitReader(resp.Body, 200))
		if x.r.Context().Err() != nil {
			return x.left()
		}
	}
	what := fmt.Sprintf("answered %d with %s", resp.StatusCode, shorten(strings.ToValidUTF8(string(text), "?")))
	if resp.StatusCode >= 500 {
		x.blame(kindStatus, errors.New(what+", content type "+shorten(kind)))
		return errEngine(http.StatusBadGateway, "engine_error", x.head.Model, what)
	}
	x.lease.Answered()
	e := errEngine(resp.StatusCode, "engine_refused", x.head.Model, what)
	e.typ = typeRequest
	e.message = strings.TrimSuffix(e.message, "; retry the request")
	return e
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
	if !x.firstByte.IsZero() {
		x.watch.Reset(idle)
	}
	n, err := resp.Body.Read(buf)
	if n > 0 && x.firstByte.IsZero() {
		x.firstByte = time.Now()
	}
	return n, err
}

// commit sends the answer's header. From here on there is no other answer.
func (x *exchange) commit(resp *http.Response, length int64) {
	h := x.w.Header()
	copyHeader(h, resp.Header)
	h[headerID] = []string{x.id}
	h[headerVia] = append(h[headerVia], viaRemuda)
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	} else {
		delete(h, "Content-Length")
	}
	x.status = resp.StatusCode
	if x.status >= 500 {
		x.countFault(kindStatus)
	} else {
		x.lease.Answered()
	}
	x.w.WriteHeader(x.status)
}

// send writes to the client. It does not return when the client is gone.
func (x *exchange) send(p []byte) {
	// While the client is slow the engine is not to blame.
	x.watch.Stop()
	n, err := x.w.Write(p)
	x.sent += int64(n)
	if err != nil {
		x.abort(statusClientGone)
	}
}

// relayWhole passes on an answer that is of no use before its end. A short one
// is held until it is complete, so that a fault can still be told properly.
func (x *exchange) relayWhole(ctx context.Context, resp *http.Response, isJSON bool) *apiError {
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
			return x.badContent(fmt.Sprintf("answered %d with a body that is said to be JSON but starts with %s", resp.StatusCode, shorten(string(buf[:min(n, 40)]))))
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
		x.commit(resp, int64(n))
		x.send(buf[:n])
		return nil
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
				return nil
			}
			err = io.ErrUnexpectedEOF
		}
		if e := x.fault(ctx, err); e.status == statusClientGone {
			x.abort(statusClientGone)
		}
		x.abort(x.status)
	}
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
func (x *exchange) relayStream(ctx context.Context, resp *http.Response) *apiError {
	pooled := replyBuffers.Get().(*[replyBuffer]byte)
	defer replyBuffers.Put(pooled)
	buf := pooled[:]
	rc := http.NewResponseController(x.w)
	committed, done := false, false
	grace := x.g.cfg.Timeouts.StreamIdle
	midLine := false // the line at the start of buf has been sent in part
	pass := func(p []byte) {
		if !committed {
			committed = true
			if resp.Header.Get("X-Accel-Buffering") == "" {
				resp.Header.Set("X-Accel-Buffering", "no") // for an nginx in front
			}
			x.commit(resp, -1)
		}
		if done = saysDone(p, done, midLine); done {
			grace = min(grace, doneGrace)
		}
		x.send(p)
		if rc.Flush() != nil {
			x.abort(statusClientGone)
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
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			// The engine ended properly: what is left is its last line.
			if held > 0 {
				pass(buf[:held])
			}
			if done {
				return nil
			}
			if !committed && x.firstByte.IsZero() {
				return x.badContent("ended a stream without a single event")
			}
			err = errors.New("the stream ended without [DONE]")
		case done:
			return nil // all that mattered has arrived
		}
		e := x.fault(ctx, err)
		if !committed {
			return e
		}
		if e.status == statusClientGone {
			x.abort(statusClientGone)
		}
		// The blank line ends the event that is open, if one is.
		x.send([]byte("\n\ndata: " + string(e.body()) + "\n\n"))
		_ = rc.Flush() // the connection is cut in any case
		x.abort(x.status)
	}
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
