// Package upstream sends requests to engines over HTTP/1.1 and keeps their connections.
//
// It does for the gateway what net/http.Transport does for everybody, with what the
// gateway does not need left out: the whole body of a request is in memory. In return
// the goroutine that asks is the one that writes and reads, where net/http hands each request to one goroutine of the connection and its
// answer back from another: on an idle machine those wake-ups were a good part of what a
// proxy adds to a request. Answers are parsed by net/http.
//
// A kept connection is checked before it is used again: one that the engine has closed, or
// that has unexpected bytes, is closed. Nothing is ever sent twice: an Error says how far
// the request came, and the caller decides whether to send it again.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Config is how a Transport deals with connections.
type Config struct {
	// Connect bounds how long a new connection may take; 0 is no bound but the context's.
	Connect time.Duration
	// Idle is how long a connection is kept without a request; 0 keeps none.
	Idle time.Duration
	// MaxIdle is how many connections are kept per address; 0 keeps none.
	MaxIdle int
	// TLS is for the connections, nil: plain TCP.
	TLS *tls.Config
	// MaxHeader is how many bytes the header of an answer may have; 0 is 64 KiB.
	MaxHeader int64
}

// Request is a request to an engine. It is not changed.
type Request struct {
	// Method is POST, GET or DELETE; empty is POST.
	Method string
	// Addr is the engine's "host:port", also sent as Host.
	Addr string
	// Target is the path with the query, escaped.
	Target string
	// Header is sent but for Host, Content-Length, Transfer-Encoding and Trailer, which
	// are the transport's. Connection is the caller's to remove.
	Header http.Header
	// Body is sent whole. It must not change until Release was called.
	Body []byte
	// Release, if there is one, is called exactly once, when Body is read no more. That
	// may be after Do has returned, and in another goroutine.
	Release func()
	// Connected, if there is one, is called when there is a connection.
	Connected func()
}

func (r *Request) release() {
	if r.Release != nil {
		r.Release()
	}
}

// Stage is how far a request came.
type Stage uint8

const (
	// NotConnected: there was no connection.
	NotConnected Stage = iota
	// NotWritten: there was a connection, and it took no byte of the request.
	NotWritten
	// Unanswered: at least a part of the request was written, and no byte of an answer came.
	Unanswered
	// Malformed: an answer began, and its header is not valid HTTP or did not end.
	Malformed
)

// Error is a request without an answer.
type Error struct {
	Stage Stage
	// Kept: the connection had served a request before, so that the engine may have closed it
	// because it was idle.
	Kept bool
	// Err is ErrHeaderTooLong, ErrInformational, a *net.OpError or io.EOF where the engine
	// ended the connection before its answer began, io.ErrUnexpectedEOF in the middle of the
	// header, or an error of net/http where the answer is not HTTP.
	Err error
}

// Error returns the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

var (
	// ErrHeaderTooLong is an answer whose header is longer than Config.MaxHeader.
	ErrHeaderTooLong = errors.New("the header of the response is too long")
	// ErrInformational is an answer that begins with too many of status 1xx.
	ErrInformational = errors.New("too many informational (1xx) responses")
)

const (
	defaultMaxHeader = 64 << 10
	// maxInformational is how many answers 1xx may come before the real one, as in
	// net/http.
	maxInformational = 5
)

// Transport sends requests. It is safe for concurrent use.
type Transport struct {
	cfg   Config
	dial  net.Dialer
	idle  idle
	hosts hosts
}

// New returns a transport without connections.
func New(cfg Config) *Transport {
	if cfg.MaxHeader <= 0 {
		cfg.MaxHeader = defaultMaxHeader
	}
	t := &Transport{cfg: cfg, dial: net.Dialer{Timeout: cfg.Connect, KeepAliveConfig: keepAlive, Control: setUserTimeout}}
	t.idle.keep, t.idle.max = cfg.Idle, cfg.MaxIdle
	return t
}

// CloseIdle closes the connections that no request uses now.
func (t *Transport) CloseIdle() { t.idle.closeAll() }

// Do sends a request and returns the answer as soon as its header is there. The caller
// reads the body to its end, after which the connection is kept for others, or closes it,
// which closes the connection. When ctx ends the connection is closed, at any time until
// the body has ended; what Do or the body's Read return then is of no meaning.
//
// The error is an *Error, or the context's where it had ended before.
func (t *Transport) Do(ctx context.Context, r *Request) (*http.Response, error) {
	if err := ctx.Err(); err != nil { // a kept connection would be lost for nothing
		r.release()
		return nil, err //nolint:wrapcheck // the context's own
	}
	c, err := t.conn(ctx, r.Addr)
	if err != nil {
		r.release()
		return nil, &Error{Stage: NotConnected, Err: err}
	}
	if r.Connected != nil {
		r.Connected()
	}
	resp, stage, err := c.do(ctx, r)
	if err != nil {
		r.release()
		return nil, &Error{Stage: stage, Kept: c.used, Err: err}
	}
	return resp, nil
}

// conn returns a connection for one request, a kept one if there is one.
func (t *Transport) conn(ctx context.Context, addr string) (*conn, error) {
	if c := t.idle.get(addr); c != nil {
		return c, nil
	}
	nc, err := t.dial.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err //nolint:wrapcheck // Do wraps it
	}
	c, err := newConn(t, nc, addr)
	if err == nil && t.cfg.TLS != nil {
		err = c.secure(ctx)
	}
	if err == nil {
		t.hosts.add(c)
	}
	return c, err
}

// notSent are the headers that are the transport's own.
var notSent = map[string]bool{"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

// writeHead writes the request's header.
func (r *Request) writeHead(w *bytes.Buffer) {
	method := cmp.Or(r.Method, http.MethodPost)
	for _, s := range [...]string{method, " ", r.Target, " HTTP/1.1\r\nHost: ", r.Addr, "\r\n"} {
		w.WriteString(s)
	}
	if method == http.MethodPost || len(r.Body) > 0 {
		w.WriteString("Content-Length: ")
		w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(len(r.Body)), 10))
		w.WriteString("\r\n")
	}
	_ = r.Header.WriteSubset(w, notSent) // a bytes.Buffer takes everything
	w.WriteString("\r\n")
}
