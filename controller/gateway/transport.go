package gateway

import (
	"context"
	"net"
	"net/http"
)

// dialError is a connection that could not be made: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// newTransport returns the transport to the engines.
//
// Keep-alive connections go stale when an engine closes them while a request
// is on its way. The transport repeats such a request on a new connection if
// no byte of an answer was seen, the request has GetBody and is marked
// idempotent; the exchange does both. A completion changes nothing in an
// engine, so running one twice is harmless.
func newTransport(cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.Timeouts.Connect}
	return &http.Transport{
		Proxy: nil, // engines are never behind a proxy, whatever the environment says
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, &dialError{err}
			}
			return c, nil
		},
		DisableCompression:     true,
		MaxIdleConns:           0, // unlimited: IdleConnTimeout is short
		MaxIdleConnsPerHost:    4096,
		IdleConnTimeout:        cfg.Timeouts.EngineIdle,
		MaxResponseHeaderBytes: 64 << 10,
		// One write for the header and a usual body.
		WriteBufferSize: 16 << 10,
		ReadBufferSize:  8 << 10,
	}
}
