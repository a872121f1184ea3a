package gateway

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
)

// plainConn is a client's connection as net/http reads and writes it: TLS, if any, ends below it, so that
// framing sees what the client sent. net/http finds HTTP/2 by its preface there; useTLS compares it with
// what the handshake has chosen.
type plainConn struct {
	duplex
	framing framing

	// secure is duplex, nil without TLS.
	secure *tls.Conn
	// errorLog gets the error of a handshake that fails.
	errorLog  *log.Logger
	handshake sync.Once
	// state is nil until the handshake has succeeded.
	state *tls.ConnectionState
}

// duplex has the methods that *clientConn and *tls.Conn share. ConnectionState is not among them: with it net/http
// would not look for HTTP/2.
type duplex interface {
	net.Conn
	CloseWrite() error
}

// Read also looks for headers that frame bodies. The first Read does the handshake, within the deadline for a header.
func (c *plainConn) Read(p []byte) (int, error) {
	if c.secure != nil {
		c.handshake.Do(c.shakeHands)
		if c.state == nil {
			return 0, io.EOF
		}
	}
	n, err := c.duplex.Read(p)
	c.framing.see(p[:n])
	return n, err
}

// shakeHands logs and answers errors as net/http does for a *tls.Conn.
func (c *plainConn) shakeHands() {
	err := c.secure.Handshake()
	if err == nil {
		state := c.secure.ConnectionState()
		c.state = &state
		return
	}
	reason := err.Error()
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok && e.Conn != nil && beginsHTTP(e.RecordHeader) {
		reason = "client sent an HTTP request to an HTTPS server"
		_, _ = io.WriteString(e.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
	}
	c.errorLog.Printf("http: TLS handshake error from %s: %s", c.RemoteAddr(), reason)
}

// beginsHTTP reports whether the bytes in the place of a record's header are those of an HTTP request.
func beginsHTTP(b [5]byte) bool {
	switch string(b[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// useTLS sets r.TLS. It aborts a request in another protocol than the handshake has chosen (RFC 9113 section 3.2).
func useTLS(r *http.Request) {
	c, ok := r.Context().Value(unaskedKey{}).(*plainConn)
	if !ok || c.secure == nil {
		return
	}
	if (r.ProtoMajor == 2) != (c.state.NegotiatedProtocol == "h2") {
		panic(http.ErrAbortHandler)
	}
	r.TLS = c.state
}
