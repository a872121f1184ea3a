package gateway

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// stopGrace is how long connections without a request may live on when the gateway stops: a
// request that has been sent to it is served.
const stopGrace = 100 * time.Millisecond

// unasked has the connections of clients on which no request is being served: those that are new
// or have sent a part of a header. http.Server.Shutdown waits for them, up to Timeouts.Header.
type unasked struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
}

// unaskedKey is the key of a connection in its context.
type unaskedKey struct{}

// watch is for http.Server.ConnState.
func (u *unasked) watch(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if state == http.StateNew || state == http.StateActive {
		u.conns[c] = struct{}{}
	} else {
		delete(u.conns, c)
	}
}

// mark is for http.Server.ConnContext.
func (u *unasked) mark(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, unaskedKey{}, c)
}

// asked takes the connection of a request out.
func (u *unasked) asked(r *http.Request) {
	if c, ok := r.Context().Value(unaskedKey{}).(net.Conn); ok {
		u.mu.Lock()
		delete(u.conns, c)
		u.mu.Unlock()
	}
}

// close closes what is left.
func (u *unasked) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		_ = c.Close() // nothing was promised on it
	}
}
