package gateway

import (
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

// smallBody is the largest body that is not pooled: such memory is cheap.
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

var errBodyStoreFull = errors.New("the buffer for requests is full")

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

// exchange takes back a buffer for one that was made elsewhere.
func (s *bodyStore) exchange(was, now []byte) {
	s.put(was)
	s.used.Add(int64(cap(now)))
}

// body is a request's body in memory. It goes back to the store once its owner and
// everybody whom it was lent to have released it: an engine may still be reading it when
// its answer has begun.
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

// lend returns the whole body and what to call when it is read no more. The caller must
// own the body.
func (b *body) lend() (data []byte, release func()) {
	b.refs.Add(1)
	return b.data, b.release
}

// replace puts other bytes in the body's place, which may be the same memory. The caller must own
// the body, and have lent it to nobody.
func (b *body) replace(data []byte) {
	if len(b.data) > 0 && &data[0] != &b.data[0] {
		b.store.exchange(b.data, data)
	}
	b.data = data
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
			message: "the gateway's buffer for requests is full; retry after the time in the Retry-After header"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &apiError{status: http.StatusRequestTimeout, typ: typeRequest, code: "request_timeout", close: true,
			message: fmt.Sprintf("the request body did not arrive within %s; send it faster", g.cfg.Timeouts.Body)}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), r.Context().Err() != nil:
		return nil, errClientGone()
	default: // bad chunks
		return nil, &apiError{status: http.StatusBadRequest, typ: typeRequest, code: "bad_body", close: true,
			message: "cannot read the request body: " + err.Error()}
	}
}
