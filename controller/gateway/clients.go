package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxStreams is how many requests one HTTP/2 connection may have at a time. More wait at
	// the client.
	maxStreams = 250
	// pingAfter is after which silence an HTTP/2 client is asked whether it is still there, and
	// pingWait how long it has for the answer. For HTTP/1.1 keep-alive probes of TCP find out.
	pingAfter, pingWait = 15 * time.Second, 15 * time.Second
)

// clientKeepAlive ends connections of clients whose host is gone after half a minute, so that they
// free their engine.
var clientKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// clientServer returns the server of the clients' port. base is the context of its requests.
func (g *Gateway) clientServer(base context.Context) *http.Server {
	server := &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ReadHeaderTimeout: g.cfg.Timeouts.Header,
		// For what net/http answers by itself, an Expect that it does not know, and
		// whose body it then waits for. The handler sets its own.
		ReadTimeout:    g.cfg.Timeouts.Header + g.cfg.Timeouts.Body,
		IdleTimeout:    g.cfg.Timeouts.KeepAlive,
		MaxHeaderBytes: int(g.cfg.Limits.Header),
		BaseContext:    func(net.Listener) context.Context { return base },
		ConnState:      g.unasked.watch,
		ConnContext:    g.unasked.mark,
		ErrorLog:       g.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingWait, WriteByteTimeout: g.cfg.Timeouts.Write,
		},
		// What holds for every request holds for OPTIONS * too.
		DisableGeneralOptionsHandler: true,
	}
	if g.certificates != nil { // TLS ends below net/http: see plainConn
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	return server
}

// serveClients serves until the server is closed.
func (g *Gateway) serveClients(server *http.Server, l net.Listener) error {
	clients := &clientListener{Listener: l, timeout: g.cfg.Timeouts.Write, errorLog: server.ErrorLog}
	if g.certificates != nil {
		clients.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: g.certificates.Get, NextProtos: protocols()}
	}
	return server.Serve(clients)
}

// protocols are what the gateway offers over TLS. GODEBUG=http2server=0 switches HTTP/2 off in net/http.
func protocols() []string {
	if strings.Contains(os.Getenv("GODEBUG"), "http2server=0") {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

// warnOpen logs what the network can read or reach.
func (g *Gateway) warnOpen(clients, operators net.Addr) {
	if !isLoopback(clients) && g.certificates == nil {
		g.log.Warn("the clients' port is open to the network without TLS: API keys, prompts and answers can be read on their way; set tls { cert, key }, or put a TLS proxy in front", "address", clients)
	}
	if !isLoopback(operators) {
		g.log.Warn("the operators' port is open to the network: whoever reaches it reads the metrics of all models; let only Prometheus reach it", "address", operators)
	}
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// clientListener hands out connections whose writes cannot be stuck for ever.
type clientListener struct {
	net.Listener
	timeout  time.Duration
	tls      *tls.Config // nil without TLS
	errorLog *log.Logger
}

// Accept waits for the next client.
func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok { // Run listens on TCP only
		_ = c.Close() // without TLS it must not be served
		return nil, fmt.Errorf("accept a client: its connection is a %T, expected TCP", c)
	}
	conn := &clientConn{TCPConn: tcp, timeout: l.timeout}
	if l.tls == nil {
		return &plainConn{duplex: conn}, nil
	}
	secure := tls.Server(conn, l.tls)
	return &plainConn{duplex: secure, secure: secure, errorLog: l.errorLog}, nil
}

// clientConn moves its write deadline along with its writes.
type clientConn struct {
	*net.TCPConn
	timeout time.Duration
	armed   atomic.Int64 // when the deadline was last set, in ns since clockStart
}

// clockStart lets a time of the monotonic clock fit into an int64.
var clockStart = time.Now()

// Write writes with a deadline of timeout, or up to a sixteenth less: setting
// it for each token of a stream would cost more than it is worth.
func (c *clientConn) Write(p []byte) (int, error) {
	now := time.Since(clockStart)
	if last := c.armed.Load(); last == 0 || now-time.Duration(last) > c.timeout/16 {
		c.armed.Store(int64(now))
		if err := c.TCPConn.SetWriteDeadline(clockStart.Add(now + c.timeout)); err != nil {
			return 0, err
		}
	}
	return c.TCPConn.Write(p)
}

// SetWriteDeadline is how net/http takes the deadline away after each request
// of a connection; the next Write sets it again. tls.Conn.Close
// sets a deadline for its close_notify: that Write does not put off.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	c.arm(t)
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline is SetWriteDeadline and SetReadDeadline.
func (c *clientConn) SetDeadline(t time.Time) error {
	c.arm(t)
	return c.TCPConn.SetDeadline(t)
}

func (c *clientConn) arm(t time.Time) {
	set := time.Duration(0)
	if !t.IsZero() {
		set = time.Since(clockStart)
	}
	c.armed.Store(int64(set))
}

// streamWriter bounds the writes of one HTTP/2 stream. The connection's deadline does not: a client
// that opens no window holds up its stream only.
type streamWriter struct {
	http.ResponseWriter
	timeout time.Duration
	stuck   *time.Timer // nil before the first write

	mu sync.Mutex
	// over: the handler has ended, and the stream is the server's; guarded by mu.
	over bool
}

// WriteHeader sends no Connection header: a stream that is not read to its end is reset alone,
// and the other streams of the connection go on.
func (w *streamWriter) WriteHeader(status int) {
	delete(w.Header(), "Connection")
	w.ResponseWriter.WriteHeader(status)
}

// Write fails when the client takes nothing for the timeout.
func (w *streamWriter) Write(p []byte) (int, error) {
	w.arm()
	defer w.stuck.Stop()
	return w.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (w *streamWriter) FlushError() error {
	w.arm()
	defer w.stuck.Stop()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// arm has the stream reset after the timeout.
func (w *streamWriter) arm() {
	if w.stuck != nil {
		w.stuck.Reset(w.timeout)
		return
	}
	w.stuck = time.AfterFunc(w.timeout, func() { w.limit(time.Now()) })
}

// limit sets when the stream is reset. It fails only when the stream is over.
func (w *streamWriter) limit(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
	}
}

// finish bounds what the server writes after the handler: the rest of its buffer.
func (w *streamWriter) finish() {
	w.limit(time.Now().Add(w.timeout))
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
}

// Unwrap is for http.ResponseController.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
