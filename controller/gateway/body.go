package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Sizes of pooled buffers. Smaller bodies are cheap to allocate, larger ones
// rare.
var bodyClasses = [...]int{64 << 10, 256 << 10, 1 << 20}

// smallBody is the largest body that is not pooled. Its memory is left to the
// garbage collector, so that it can be read by a plain bytes.Reader: of that
// type Go's transport knows that the header can wait for the body and sends
// both in one packet.
const smallBody = 16 << 10

// trustedLength is how much is allocated because a client announced it. Beyond
// it memory grows with what has arrived, so that announcing costs nothing.
const trustedLength = 256 << 10

// bodyStore lends out memory for request bodies, up to a limit.
type bodyStore struct {
	limit int64
	used  atomic.Int64
	pools [len(bodyClasses)]sync.Pool
}

var errBodyStoreFull = errors.New("too many bytes of requests are held")

// get returns a buffer of at least n bytes.
func (s *bodyStore) get(n int) ([]byte, error) {
	class := -1
	if n > smallBody {
		class = slices.IndexFunc(bodyClasses[:], func(size int) bool { return n <= size })
	}
	if class >= 0 {
		n = bodyClasses[class]
	}
	if s.used.Add(int64(n)) > s.limit {
		s.used.Add(-int64(n))
		return nil, errBodyStoreFull
	}
	if class >= 0 {
		if p, _ := s.pools[class].Get().(*[]byte); p != nil {
			return *p, nil
		}
	}
	return make([]byte, n), nil
}

func (s *bodyStore) put(b []byte) {
	b = b[:cap(b)]
	s.used.Add(-int64(len(b)))
	for i, size := range bodyClasses {
		if len(b) == size {
			s.pools[i].Put(&b)
			return
		}
	}
}

// body is a request's body in memory. It goes back to the store once its
// owner and every reader have released it: a transport may read a body for a
// while after it has returned the response. (A small body's memory is not
// recycled, so its readers need not be waited for.)
type body struct {
	data  []byte
	store *bodyStore
	refs  atomic.Int32
}

func (b *body) release() {
	if b.refs.Add(-1) == 0 {
		b.store.put(b.data)
	}
}

// reader returns a new reader of the whole body. The caller must own the body.
func (b *body) reader() io.ReadCloser {
	if cap(b.data) <= smallBody {
		return io.NopCloser(bytes.NewReader(b.data))
	}
	b.refs.Add(1)
	return &bodyReader{b: b}
}

// plainBody reads a small body that is not of the store.
func plainBody(p []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(p)) }

// bodyReader reads a body. After Close it touches the body no more, even when
// another goroutine is inside Read; that is why it offers no WriteTo.
type bodyReader struct {
	mu  sync.Mutex
	b   *body // nil once closed
	off int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.b == nil {
		return 0, errors.New("read of a closed request body")
	}
	n := copy(p, r.b.data[r.off:])
	r.off += n
	if r.off == len(r.b.data) {
		return n, io.EOF
	}
	return n, nil
}

func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.b != nil {
		r.b.release()
		r.b = nil
	}
	return nil
}

// readBody reads a request's body within the limits of size, time (serve has set
// a read deadline where timed) and memory.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, timed bool) (*body, *apiError) {
	limit := g.cfg.Limits.Body
	tooLarge := &apiError{status: http.StatusRequestEntityTooLarge, typ: typeRequest, code: "request_too_large", close: true,
		message: fmt.Sprintf("the request body is larger than %d bytes; send a shorter prompt", limit)}
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	src := http.MaxBytesReader(w, r.Body, limit)
	b := &body{store: &g.bodies}
	b.refs.Store(1)
	want := int64(4 << 10) // of chunks nobody knows how many will come
	if r.ContentLength >= 0 {
		want = min(r.ContentLength, trustedLength)
	}
	data, err := g.bodies.get(int(min(want, limit+1)))
	n := 0
	for err == nil {
		if n == len(data) {
			if int64(n) == r.ContentLength {
				break
			}
			var bigger []byte
			size := min(2*int64(n), limit+1)
			if r.ContentLength > 0 {
				size = min(size, r.ContentLength)
			}
			if bigger, err = g.bodies.get(int(size)); err == nil {
				copy(bigger, data)
				g.bodies.put(data)
				data = bigger
			}
			continue
		}
		if int64(n) == r.ContentLength {
			break
		}
		var m int
		m, err = src.Read(data[n:])
		n += m
	}
	if err == nil || errors.Is(err, io.EOF) {
		// The deadline must not reach the server's watch for a client that
		// leaves, which reads on from here.
		if timed {
			if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
				g.bodies.put(data)
				return nil, errClientGone()
			}
		}
		b.data = data[:n]
		return b, nil
	}
	if data != nil {
		g.bodies.put(data)
	}
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, tooLarge
	case errors.Is(err, errBodyStoreFull):
		return nil, &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_busy", close: true, retryAfter: g.cfg.RetryAfter,
			message: "the gateway holds as many bytes of requests as it may; retry after the time in Retry-After"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &apiError{status: http.StatusRequestTimeout, typ: typeRequest, code: "request_timeout", close: true,
			message: fmt.Sprintf("the request body did not arrive within %s; send it faster", g.cfg.Timeouts.Body)}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), r.Context().Err() != nil:
		return nil, errClientGone()
	default: // bad chunks
		return nil, &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "bad_body", close: true,
			message: "the request body could not be read to its end: " + err.Error()}
	}
}
