package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// inline is the longest request that is written before an answer is looked for: it
	// fits into the buffers of sockets, so that an engine that answers without having read
	// it holds nothing up.
	inline = 32 << 10
	// joined is the longest body that is copied behind the header, which is cheaper then
	// than a vector of two.
	joined = 4 << 10
	// maxKeptHead is how large a buffer for headers a kept connection keeps.
	maxKeptHead = 16 << 10
	// writeGrace is how long the end of an answer waits for the end of the request's
	// writing, so that the connection can be kept.
	writeGrace = 50 * time.Millisecond
)

// conn is a connection to an engine, with at most one request on it.
type conn struct {
	t *Transport
	// nc is the connection to the network. rw is what is read and written: nc, or TLS on it.
	nc, rw net.Conn
	raw    syscall.RawConn
	addr   string
	br     *bufio.Reader
	// used: it has carried an answer before.
	used bool
	// since is when it was kept last; guarded by idle.mu while it is kept.
	since time.Time
	// left is how many bytes more may be read from the network.
	left int64
	// fault is the error that reading from the network ended with, nil where it did not.
	fault error
	// head is the buffer for headers of requests.
	head bytes.Buffer
	// beside is the writing that goes on beside the reading, nil where there is none.
	beside *writing
	// broken: the request was not written whole.
	broken bool
	// written is how many bytes of the request were written. The goroutine that writes
	// changes it; it is read once that has ended.
	written int64
	// asked: the engine is not passing, and its host is asked each second; guarded by hosts.mu. lost: nc was closed
	// because the host is lost.
	asked bool
	lost  atomic.Bool
}

func newConn(t *Transport, nc net.Conn, addr string) (*conn, error) {
	c := &conn{t: t, nc: nc, rw: nc, addr: addr}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		_ = nc.Close()
		return nil, errors.New("the connection has no file descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("get the file descriptor of the connection: %w", err)
	}
	c.raw = raw
	c.br = bufio.NewReaderSize(c, 8<<10)
	return c, nil
}

// secure makes it a connection in TLS. With an error it is closed.
func (c *conn) secure(ctx context.Context) error {
	if bound := c.t.cfg.Connect; bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	secured := tls.Client(c.nc, c.t.cfg.TLS)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = c.nc.Close()
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.rw = secured
	return nil
}

// Read reads from the network, within the limit. It is for br alone.
func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.fault = ErrHeaderTooLong
		return 0, c.fault
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.rw.Read(p)
	err = c.reason("read", err)
	c.left -= int64(n)
	c.fault = err
	return n, err //nolint:wrapcheck // bufio and net/http compare it
}

// quiet tells whether nothing has happened on a kept connection: the engine has neither
// closed it nor sent anything.
func (c *conn) quiet() bool {
	alive := false
	err := c.raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && alive && !c.holdsBytes()
}

// holdsBytes reports whether the TLS connection has received data that has not been read.
func (c *conn) holdsBytes() bool {
	if c.rw == c.nc {
		return false
	}
	_ = c.nc.SetReadDeadline(past)
	_, err := c.rw.Read(make([]byte, 1))
	_ = c.nc.SetReadDeadline(time.Time{})
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// do sends the request and reads the header of its answer. With an error the connection is
// closed and nothing reads the request any more; the stage is how far it came.
func (c *conn) do(ctx context.Context, r *Request) (*http.Response, Stage, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.nc.Close() })
	wrote := c.send(r) // the engine may have answered also where this failed
	c.left = c.t.cfg.MaxHeader
	if _, err := c.br.Peek(1); err != nil {
		stop()
		c.close()
		if c.written == 0 {
			return nil, NotWritten, cmp.Or(wrote, err)
		}
		return nil, Unanswered, cmp.Or(wrote, err)
	}
	resp, err := c.header()
	if err != nil {
		stop()
		c.close()
		return nil, Malformed, err
	}
	if c.beside == nil {
		r.release()
	} else {
		c.beside.handOver()
	}
	c.left = math.MaxInt64
	a := &answer{c: c, body: resp.Body, keep: !resp.Close && !bodyMayFollow(resp), stop: stop}
	if resp.Body == http.NoBody {
		a.end(true, io.EOF)
	}
	resp.Body = a
	return resp, 0, nil
}

// send writes the request, or begins to.
func (c *conn) send(r *Request) error {
	c.head.Reset()
	r.writeHead(&c.head)
	c.beside, c.broken, c.written = nil, true, 0
	if c.head.Len()+len(r.Body) > inline {
		c.beside = &writing{done: make(chan struct{}), release: r.release}
		go c.beside.run(c, r.Body)
		return nil
	}
	err := c.write(r.Body)
	c.broken = err != nil
	return err
}

// write writes the header and the body.
func (c *conn) write(body []byte) error {
	if len(body) <= joined {
		c.head.Write(body)
		n, err := c.rw.Write(c.head.Bytes())
		c.written = int64(n)
		return c.reason("write", err)
	}
	n, err := (&net.Buffers{c.head.Bytes(), body}).WriteTo(c.rw)
	c.written = n
	return c.reason("write", err)
}

// writing is a body on its way to an engine that may answer before it has read it.
type writing struct {
	done    chan struct{} // closed when nothing is written any more
	err     error         // how it ended, once done is closed
	release func()

	mu         sync.Mutex
	ended      bool // guarded by mu
	handedOver bool // guarded by mu: release is this one's to call
}

func (w *writing) run(c *conn, body []byte) {
	w.err = c.write(body)
	close(w.done)
	w.mu.Lock()
	w.ended = true
	release := w.handedOver
	w.mu.Unlock()
	if release {
		w.release()
	}
}

// handOver has the request released once it is written.
func (w *writing) handOver() {
	w.mu.Lock()
	w.handedOver = true
	release := w.ended
	w.mu.Unlock()
	if release {
		w.release()
	}
}

// whole tells, at the end of an answer, whether the request was written whole. It waits a
// moment for that.
func (c *conn) whole() bool {
	if c.beside == nil {
		return !c.broken
	}
	select {
	case <-c.beside.done:
	default:
		t := time.NewTimer(writeGrace)
		defer t.Stop()
		select {
		case <-c.beside.done:
		case <-t.C:
			return false
		}
	}
	return c.beside.err == nil
}

// close ends the connection, and with it the writing.
func (c *conn) close() {
	c.t.hosts.remove(c)
	_ = c.nc.Close()
	if c.beside != nil {
		<-c.beside.done
	}
}

// header reads the header of the answer, past the informational ones.
func (c *conn) header() (*http.Response, error) {
	for range maxInformational + 1 {
		resp, err := http.ReadResponse(c.br, post)
		if err != nil {
			return nil, c.cause(err)
		}
		if resp.StatusCode < 100 || resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Close = true // nobody asked for it, and nobody knows what follows
			return resp, nil
		}
		if resp.StatusCode >= 200 {
			return resp, nil
		}
		c.left = c.t.cfg.MaxHeader
	}
	return nil, ErrInformational
}

// cause returns why a header could not be read. net/http takes the half of a line that
// comes before an error for a whole one, and says then that it is malformed.
func (c *conn) cause(err error) error {
	switch {
	case c.fault == nil:
		return err
	case errors.Is(c.fault, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return c.fault
}

// bodyMayFollow tells whether an answer whose status allows no body (204 and 304) announces
// one. net/http reads none, and an engine that sends it nevertheless would have it taken for
// the next answer.
func bodyMayFollow(resp *http.Response) bool {
	if resp.Body != http.NoBody {
		return false
	}
	length := resp.Header.Get("Content-Length")
	return len(resp.TransferEncoding) > 0 || length != "" && length != "0"
}

// post is what net/http has to know about the request to read its answer.
var post = &http.Request{Method: http.MethodPost}

// answer is the body of an answer. Its connection goes back when it has ended.
type answer struct {
	c    *conn
	body io.Reader
	keep bool
	stop func() bool
	// over is what Read returns from now on, nil while the answer goes on.
	over error
}

// Read reads the body. It is not for use beside Close.
func (a *answer) Read(p []byte) (int, error) {
	if a.over != nil {
		return 0, a.over
	}
	n, err := a.body.Read(p)
	if err != nil {
		a.end(errors.Is(err, io.EOF), err)
	}
	return n, err //nolint:wrapcheck // the caller looks at its type
}

// Close ends the answer. A connection of which not all was read is closed.
func (a *answer) Close() error {
	a.end(false, errClosed)
	return nil
}

var errClosed = errors.New("read from a closed response body")

// end is the end of the answer, whole or not.
func (a *answer) end(whole bool, err error) {
	if a.over != nil {
		return
	}
	a.over = err
	c := a.c
	if a.stop() && whole && a.keep && c.br.Buffered() == 0 && c.whole() {
		c.used, c.beside = true, nil
		if c.head.Cap() > maxKeptHead {
			c.head = bytes.Buffer{}
		}
		c.t.idle.put(c)
		return
	}
	c.close()
}
