package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"

	"remuda/controller/pipeline"
)

// caller calls models through the gateway's own handler.
type caller struct{ x *exchange }

var _ pipeline.Caller = caller{}

// Call implements pipeline.Caller.
func (c caller) Call(ctx context.Context, call pipeline.Call) (pipeline.Answer, error) {
	x := c.x
	h, err := x.header(call)
	if err != nil {
		return pipeline.Answer{}, err
	}
	defer x.runs(call.Step)()
	path := pathChat
	if call.Endpoint == pipeline.Completions {
		path = pathCompletions
	}
	body := x.asked.stepBody(call)
	req := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: path}, RequestURI: path, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Host: x.r.Host, RemoteAddr: x.r.RemoteAddr, TLS: x.r.TLS,
	}).WithContext(context.WithValue(ctx, inside{}, x.name))
	room := &room{x: x}
	sink := &sink{header: http.Header{}, limit: x.c.cfg.MaxAnswer, room: room, events: &events{x: x, call: call, limit: x.c.cfg.MaxAnswer, room: room}}
	err = x.next(sink, req)
	if ctx.Err() != nil {
		return pipeline.Answer{}, context.Cause(ctx)
	}
	return sink.answer(err)
}

// next has the request served, whatever becomes of it.
func (x *exchange) next(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = errAborted
		default:
			// Nothing above catches it: this is a goroutine of its own.
			x.c.cfg.Logger.Error("the handler of a step's request panicked", "id", r.Header.Get(headerID), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("the gateway failed: its log has the reason")
		}
	}()
	x.c.cfg.Next.ServeHTTP(w, r)
	return nil
}

// runs notes that a call runs, until the function that it returns is called.
func (x *exchange) runs(step string) func() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running[step]++
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.running[step]--; x.running[step] == 0 {
			delete(x.running, step)
		}
	}
}
