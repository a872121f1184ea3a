package gateway

import (
	"bytes"
	"cmp"
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

	"remuda/controller/gateway/openai"
)

// replyBuffer is how much of an answer is held at most: a whole answer that
// fits is sent only when it is complete, a line of a stream that fits likewise.
const replyBuffer = 32 << 10

var replyBuffers = sync.Pool{New: func() any { return new([replyBuffer]byte) }}

// relay passes an engine's answer to the client. The error it returns has not
// been sent.
func (x *attempt) relay(ctx context.Context, resp *http.Response) (verdict, *apiError) {
	kind := mediaType(resp.Header.Get("Content-Type"))
	isJSON := kind == contentJSON || strings.HasSuffix(kind, "+json")
	status := resp.StatusCode
	ok := status >= 200 && status < 300
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return x.badContent(fmt.Sprintf("responded %d with Content-Encoding %s, which the gateway does not accept", status, shorten(enc)))
	}
	switch {
	case status == http.StatusUnauthorized && x.engine.Key != "":
		// The gateway sent its own credential, so the client must not see this 401.
		return x.badContent("responded 401 to its API key")
	case x.route.stored && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return finished, x.notStored(status)
	case ok && kind == contentSSE && x.route.streams:
		// Whether a stream was asked for is the engine's to say: vLLM takes
		// "stream": 1 for true.
		return x.relayStream(ctx, resp)
	case x.client.committed && status >= 500:
		x.blame(kindStatus, fmt.Errorf("responded %d to the continuation of a stream", status))
		return failedThere, errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response")
	case x.client.committed && status >= 400:
		// It is about the request that the gateway made: the engine is well.
		x.grant.Answered()
		x.g.log.Warn("an engine rejected the continuation of a stream", "id", x.id, "model", x.head.Model, "engine", x.engine.ServiceID, "status", status)
		return failedThere, errEngine(http.StatusBadGateway, "engine_cut_off", x.head.Model, "did not finish its response")
	case x.client.committed:
		// The stream should go on, and an answer of another kind came.
		return x.badContent(fmt.Sprintf("responded %d with content type %s to the continuation of a stream", status, shorten(kind)))
	case status >= 400:
		return x.relayError(ctx, resp, kind, isJSON)
	case ok && isJSON, ok && x.route.takes(kind):
		return x.relayWhole(ctx, resp, isJSON)
	default:
		return x.badContent(fmt.Sprintf("responded %d with content type %s instead of JSON", status, shorten(kind)))
	}
}

// mediaType is the type that a Content-Type names.
func mediaType(value string) string {
	kind, _, _ := strings.Cut(value, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

func (x *attempt) badContent(what string) (verdict, *apiError) {
	x.blame(kindContent, errors.New(what))
	return failedThere, errEngine(http.StatusBadGateway, "engine_bad_content", x.head.Model, what)
}

// mayFail tells whether another engine may be asked after an answer of this status: those
// that are about the engine, while there are attempts left.
func (x *attempt) mayFail(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return x.repeatable()
	}
	return false
}

// maxError is how much of an engine's error is read at most.
const maxError = 32 << 10

// relayError turns an engine's error into one in the gateway's form. One that can be read keeps its
// status and what it says; of another the text is quoted. Another engine may do better than a 5xx.
func (x *attempt) relayError(ctx context.Context, resp *http.Response, kind string, isJSON bool) (verdict, *apiError) {
	status, model := resp.StatusCode, shorten(x.head.Model)
	v := finished
	if x.mayFail(status) {
		v = failedThere
	}
	patience := x.g.cfg.Timeouts.StreamIdle
	if status >= 500 || !isJSON {
		patience = min(patience, time.Second)
	}
	x.allow(patience)
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxError+1))
	x.fresh = x.fresh && len(text) == 0
	switch {
	case err != nil && (len(text) == 0 || status < 500 && isJSON):
		return x.fault(ctx, err)
	case x.ctx.Err() != nil:
		return finished, x.left()
	}
	quoted := fmt.Sprintf("responded %d with %s", status, shorten(strings.ToValidUTF8(string(text[:min(len(text), 200)]), "?")))
	if status >= 500 {
		x.blame(kindStatus, errors.New(quoted+", content type "+shorten(kind)))
	} else {
		x.grant.Answered()
		x.firstByte = time.Now()
	}
	var e *apiError
	switch said, ok := openai.ReadError(text); {
	case ok && len(text) <= maxError:
		e = &apiError{status: status, typ: cmp.Or(said.Type, typeOf(status)), code: said.Code, param: said.Param,
			logCode: "engine_refused",
			message: cmp.Or(said.Message, fmt.Sprintf("an engine of model %s %s", model, quoted))}
		if status >= 500 {
			e.logCode = "engine_error"
		}
	case status >= 500:
		e = errEngine(http.StatusBadGateway, "engine_error", x.head.Model, quoted)
	default:
		e = &apiError{status: status, typ: typeOf(status), code: "engine_refused", message: fmt.Sprintf("an engine of model %s %s", model, quoted)}
	}
	e.retryAfter = retryAfterOf(resp.Header)
	e.noRetry = resp.Header.Get(headerShouldRetry) == "false"
	return v, e
}

// typeOf is the type of an error with a status, where the engine does not name it.
func typeOf(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return typeLimit
	case status >= 500:
		return typeServer
	}
	return typeRequest
}

// retryAfterOf is the time that a header Retry-After tells, in seconds or as a date; 0 if there is none.
func retryAfterOf(h http.Header) time.Duration {
	value := h.Get(headerRetryAfter)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second //nolint:gosec // it has 31 bits
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// read reads more of the answer under the watch for silence: idle is how long
// the engine may be silent once it has begun.
func (x *attempt) read(resp *http.Response, buf []byte, idle time.Duration) (int, error) {
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
func (x *attempt) commit(resp *http.Response, length int64) {
	x.client.committed = true
	if x.recorder == nil {
		x.freeBody()
	}
	x.grant.Answered()
	x.tokens.answered = x.tokens.answered || !x.route.stored
	if x.client.held {
		x.client.describe(x.attempts, x.engine.Replica)
		return
	}
	h := x.client.w.Header()
	copyAnswerHeader(h, resp.Header)
	h[headerID] = []string{x.id}
	h[headerVia] = append(h[headerVia], viaRemuda)
	x.client.describe(x.attempts, x.engine.Replica)
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	} else {
		delete(h, "Content-Length")
	}
	x.client.begin(resp.StatusCode)
}

// send writes to the client.
func (x *attempt) send(p []byte) *apiError {
	x.watch.Stop() // while the client is slow the engine is not to blame
	return x.client.write(p)
}

// relayWhole passes on an answer that is of no use before its end. A short one
// is held until it is complete, so that a fault can still be told properly.
func (x *attempt) relayWhole(ctx context.Context, resp *http.Response, isJSON bool) (verdict, *apiError) {
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
		x.tokens.whole(buf[:n], isJSON)
		x.learnWhole(buf[:n])
		if x.client.held {
			return x.asEvent(resp, buf[:n])
		}
		x.commit(resp, int64(n))
		return finished, x.send(buf[:n])
	}
	if x.client.held {
		return x.badContent(fmt.Sprintf("responded %d with %d bytes or more instead of a stream", resp.StatusCode, n))
	}
	x.learnWhole(buf[:n])
	x.commit(resp, resp.ContentLength)
	for {
		x.tokens.part(buf[:n], isJSON)
		last = lastByte(buf[:n], last)
		if e := x.send(buf[:n]); e != nil {
			return finished, e
		}
		if err != nil {
			break
		}
		n, err = x.read(resp, buf, x.g.cfg.Timeouts.StreamIdle)
	}
	x.tokens.ended(isJSON)
	if errors.Is(err, io.EOF) {
		if !unframed || last == '}' || last == ']' {
			return finished, nil
		}
		err = io.ErrUnexpectedEOF
	}
	_, e := x.fault(ctx, err)
	return finished, e
}

// asEvent sends a whole answer to a client whose stream has begun.
func (x *attempt) asEvent(resp *http.Response, text []byte) (verdict, *apiError) {
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // an event has one line
		return x.badContent("responded with invalid JSON: " + err.Error())
	}
	x.commit(resp, 0)
	return finished, x.client.event(append([]byte("data: "+line.String()+"\n\n"), openai.StreamEnd(x.route.api)...))
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
