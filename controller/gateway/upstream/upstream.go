// Package upstream sends requests to engines over HTTP/1.1 and keeps their connections.
//
// It does for the gateway what net/http.Transport does for everybody, with what the
// gateway does not need left out: requests are POSTs whose whole body is in memory, and
// engines are plain TCP. In return the goroutine that asks is the one that writes and
// reads, where net/http hands each request to one goroutine of the connection and its
// answer back from another: on an idle machine those wake-ups were a good part of what a
// proxy adds to a request. Answers are parsed by net/http.
//
// A kept connection is looked at before it is used again: one that the engine has closed,
// or on which bytes came that nobody asked for, is not. Where the engine closes it at the
// very moment, and no byte of an answer came, the request is sent once more, on a new
// connection: a completion changes nothing in an engine, so running one twice is harmless.
package upstream

import (
	"bytes"
	"context"
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
	// MaxHeader is how many bytes the header of an answer may have; 0 is 64 KiB.
	MaxHeader int64
}

// Request is a POST. It is not changed.
type Request struct {
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
	// Connected, if there is one, is called each time that there is a connection.
	Connected func()
}

func (r *Request) release() {
	if r.Release != nil {
		r.Release()
	}
}

// DialError is a connection that could not be made. Nothing was sent, except where a kept
// connection had been closed by the engine and this was to be the second try.
type DialError struct{ Err error }

// Error returns the text of Err.
func (e *DialError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *DialError) Unwrap() error { return e.Err }

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
	cfg  Config
	dial net.Dialer
	idle idle
}

// New returns a transport without connections.
func New(cfg Config) *Transport {
	if cfg.MaxHeader <= 0 {
		cfg.MaxHeader = defaultMaxHeader
	}
	t := &Transport{cfg: cfg, dial: net.Dialer{Timeout: cfg.Connect}}
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
// The error is the context's where it had ended before, a *DialError where no connection
// could be made, ErrHeaderTooLong,
// ErrInformational, a *net.OpError or io.EOF where the engine ended the
// connection before its answer began, io.ErrUnexpectedEOF in the middle of the header, or
// one of net/http's where the answer is not HTTP.
func (t *Transport) Do(ctx context.Context, r *Request) (*http.Response, error) {
	if err := ctx.Err(); err != nil { // a kept connection would be lost for nothing
		r.release()
		return nil, err //nolint:wrapcheck // the context's own
	}
	for again := false; ; again = true {
		c, err := t.conn(ctx, r.Addr, again)
		if err != nil {
			r.release()
			return nil, err
		}
		if r.Connected != nil {
			r.Connected()
		}
		resp, unanswered, err := c.do(ctx, r)
		if err == nil {
			return resp, nil
		}
		if !unanswered || !c.used || again || ctx.Err() != nil {
			r.release()
			return nil, err
		}
	}
}

// conn returns a connection for one request: one that was kept unless it has to be new.
func (t *Transport) conn(ctx context.Context, addr string, anew bool) (*conn, error) {
	if !anew {
		if c := t.idle.get(addr); c != nil {
			return c, nil
		}
	}
	nc, err := t.dial.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &DialError{err}
	}
	return newConn(t, nc, addr)
}

// notSent are the headers that are the transport's own.
var notSent = map[string]bool{"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

// writeHead writes the request's header.
func (r *Request) writeHead(w *bytes.Buffer) {
	for _, s := range [...]string{"POST ", r.Target, " HTTP/1.1\r\nHost: ", r.Addr, "\r\nContent-Length: "} {
		w.WriteString(s)
	}
	w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(len(r.Body)), 10))
	w.WriteString("\r\n")
	_ = r.Header.WriteSubset(w, notSent) // a bytes.Buffer takes everything
	w.WriteString("\r\n")
}
