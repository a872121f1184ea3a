package gateway

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"remuda/controller/gateway/compose"
)

// firstBody is how much memory a body has at first, and bodyGrowth how many times as much each time
// that it is full: what is taken follows what has arrived, and announcing a length costs nothing.
const (
	firstBody  = 4 << 10
	bodyGrowth = 4
)

// bodyPools are for buffers of firstBody and its doubles, up to 1 MiB. Larger ones are rare.
const bodyPools = 9

// bodyStore lends out memory for request bodies and what else requests hold, up to a limit in all and
// one for each client.
type bodyStore struct {
	limit int64
	// share is how much one client may hold.
	share int64
	used  atomic.Int64
	pools [bodyPools]sync.Pool

	mu sync.Mutex
	// held is how much each client holds; guarded by mu.
	held map[string]int64
}

var (
	errBodyStoreFull = errors.New("the buffer for requests is full")
	errBodyShareFull = errors.New("the client's share of the buffer for requests is full")
)

// setLimits sets the limits. The largest body must fit a client's share while it grows.
func (s *bodyStore) setLimits(l Limits) {
	s.limit = l.Buffered
	s.share = min(max(l.Buffered/4, 2*l.Body), l.Buffered)
	s.held = map[string]int64{}
}

// pool returns the number of the pool for buffers of n bytes, -1 if there is none.
func pool(n int) int {
	if i := bits.Len(uint(n-1)) - bits.Len(uint(firstBody-1)); n > firstBody>>1 && i < bodyPools {
		return i
	}
	return -1
}

// get returns a buffer of at least n bytes for a client.
func (s *bodyStore) get(client string, n int) ([]byte, error) {
	i := pool(n)
	if i >= 0 {
		n = firstBody << i
	}
	if err := s.take(client, int64(n)); err != nil {
		return nil, err
	}
	if i >= 0 {
		if p, _ := s.pools[i].Get().(*[]byte); p != nil {
			return *p, nil
		}
	}
	return make([]byte, n), nil
}

func (s *bodyStore) take(client string, n int64) error {
	if s.used.Add(n) > s.limit {
		s.used.Add(-n)
		return errBodyStoreFull
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[client]+n > s.share {
		s.used.Add(-n)
		return errBodyShareFull
	}
	s.held[client] += n
	return nil
}

// give ends a take.
func (s *bodyStore) give(client string, n int64) {
	s.used.Add(-n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[client] -= n; s.held[client] == 0 {
		delete(s.held, client)
	}
}

func (s *bodyStore) put(client string, b []byte) {
	b = b[:cap(b)]
	s.give(client, int64(len(b)))
	if i := pool(len(b)); i >= 0 && len(b) == firstBody<<i {
		s.pools[i].Put(&b)
	}
}

// loan is the memory that a request holds beside its body. It may be used from several goroutines.
type loan struct {
	store  *bodyStore
	client string
	taken  atomic.Int64
}

var _ compose.Memory = (*loan)(nil)

// Take takes so many bytes more, false where the store, or the client's share of it, has none.
func (l *loan) Take(n int) bool {
	if l.store.take(l.client, int64(n)) != nil {
		return false
	}
	l.taken.Add(int64(n))
	return true
}

// end gives all back.
func (l *loan) end() {
	if n := l.taken.Swap(0); n > 0 {
		l.store.give(l.client, n)
	}
}

// bodyClient is whose share of the buffer a request uses: its known key's, or else its address's.
func bodyClient(key string, known bool, remote string) string {
	if known {
		return "key " + key
	}
	return clientNetwork(remote)
}

// clientNetwork is the address of a client without its port, and for IPv6 its /64: one host has all
// addresses of it.
func clientNetwork(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.String()
		}
	}
	return addr.String()
}

// exchange takes back a buffer for one that was made elsewhere.
func (s *bodyStore) exchange(client string, was, now []byte) {
	s.used.Add(int64(cap(now)))
	s.mu.Lock()
	s.held[client] += int64(cap(now))
	s.mu.Unlock()
	s.put(client, was)
}

// body is a request's body in memory. It goes back to the store once its owner and
// everybody whom it was lent to have released it: an engine may still be reading it when
// its answer has begun.
type body struct {
	data  []byte
	store *bodyStore
	// client is whose share of the store it is in.
	client string
	refs   atomic.Int32
}

func (b *body) release() {
	if b.refs.Add(-1) == 0 {
		b.store.put(b.client, b.data)
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
		b.store.exchange(b.client, b.data, data)
	}
	b.data = data
}

// readBody reads a request's body within the limits of size, time (serve has set
// a read deadline where timed) and memory. client is whose share of the memory it uses.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, timed bool, client string) (*body, *apiError) {
	limit := g.cfg.Limits.Body
	tooLarge := &apiError{status: http.StatusRequestEntityTooLarge, typ: typeRequest, code: "request_too_large", close: true,
		message: fmt.Sprintf("the request body is larger than %d bytes; send a shorter prompt", limit)}
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	src := http.MaxBytesReader(w, r.Body, limit)
	b := &body{store: &g.bodies, client: client}
	b.refs.Store(1)
	want := int64(firstBody)
	if r.ContentLength >= 0 {
		want = min(r.ContentLength, want)
	}
	data, err := g.bodies.get(client, int(min(want, limit+1)))
	n := 0
	for err == nil {
		if n == len(data) {
			if int64(n) == r.ContentLength {
				break
			}
			var bigger []byte
			size := min(bodyGrowth*int64(n), limit+1)
			if r.ContentLength > 0 {
				size = min(size, r.ContentLength)
			}
			if bigger, err = g.bodies.get(client, int(size)); err == nil {
				copy(bigger, data)
				g.bodies.put(client, data)
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
				g.bodies.put(client, data)
				return nil, errClientGone()
			}
		}
		b.data = data[:n]
		return b, nil
	}
	if data != nil {
		g.bodies.put(client, data)
	}
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, tooLarge
	case errors.Is(err, errBodyStoreFull):
		return nil, &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_busy", close: true, retryAfter: g.cfg.RetryAfter,
			message: "the gateway's buffer for requests is full; retry after the time in the Retry-After header"}
	case errors.Is(err, errBodyShareFull):
		return nil, &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "too_much_buffered", close: true, retryAfter: g.cfg.RetryAfter,
			message: fmt.Sprintf("the requests of this client that the gateway holds have %d bytes together, which is the limit for one client; send fewer or smaller ones at a time", g.bodies.share)}
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
