package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"remuda/lockd/wire"
)

// Grant is a lock that is held, until Lost is closed. All its methods are safe
// for concurrent use.
type Grant struct {
	c      *Client
	token  uint64
	lost   chan struct{}
	cancel context.CancelFunc
	// ended is closed when the goroutine that keeps the lock has ended.
	ended chan struct{}

	// mu guards err, which is set once, before lost is closed.
	mu  sync.Mutex
	err error
}

// newGrant keeps the lock that was granted on a link, which it takes over.
func newGrant(c *Client, l *link, token uint64) *Grant {
	ctx, cancel := context.WithCancel(context.Background())
	g := &Grant{c: c, token: token, lost: make(chan struct{}), cancel: cancel, ended: make(chan struct{})}
	go g.keep(ctx, l)
	return g
}

// Token is the grant's. A later grant of the group has a larger one, and it
// stays the same over reconnections.
func (g *Grant) Token() uint64 { return g.token }

// Lost is closed when the lock is lost, or closed.
func (g *Grant) Lost() <-chan struct{} { return g.lost }

// Err is nil while the lock is held. After Lost it says why and wraps ErrLost;
// also a *RefusedError if lockd refused to give the lock back, or ErrClosed.
func (g *Grant) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Close closes the connection and Lost, without waiting for lockd. For lockd the
// process is still the holder: see the package's comment. It may be called more
// than once; the error is always nil.
func (g *Grant) Close() error {
	g.lose(ErrClosed)
	g.cancel()
	<-g.ended
	return nil
}

// lose closes Lost, once.
func (g *Grant) lose(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = fmt.Errorf("%w: %w", ErrLost, why)
		close(g.lost)
	}
}

// keep keeps the lock until it is lost or ctx ends.
func (g *Grant) keep(ctx context.Context, l *link) {
	defer close(g.ended)
	defer g.cancel()
	var b backoff
	for first := true; ; first = false {
		err := g.hold(ctx, l)
		broken := time.Now()
		if ctx.Err() != nil || final(err) || errors.Is(err, errSession) {
			g.lose(err)
			l.close()
			return
		}
		l.close()
		// At once, unless lockd does nothing but drop connections.
		var delay time.Duration
		if first || l.age() >= backoffMax {
			b = backoff{}
		} else {
			delay = b.next()
		}
		g.c.log.Warn("connection to lockd lost: requesting the lock again", "token", g.token, "error", err, "after", delay)
		var until time.Time
		if l.lease.ends() {
			until = l.lease.until
		}
		l, err = g.regain(ctx, until, &b, delay)
		if err != nil {
			g.lose(err)
			return
		}
		g.c.log.Info("lock kept after a reconnect", "token", g.token, "away", time.Since(broken))
	}
}

// hold watches a connection and returns when it is lost, or the lock is.
func (g *Grant) hold(ctx context.Context, l *link) error {
	e, err := l.next(ctx)
	switch {
	case err != nil:
		return err
	case e.Event == wire.Refused:
		return refused(e)
	default:
		return unexpected(e, "the lock is already granted")
	}
}

// regain gets the lock back on a new connection, which the caller closes. The
// error is why the lock is lost: the session is over at until, if that is not zero.
func (g *Grant) regain(ctx context.Context, until time.Time, b *backoff, delay time.Duration) (*link, error) {
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, until, errSession)
		defer cancel()
	}
	var trouble troubles
	for {
		err := sleep(ctx, delay)
		var l *link
		if err == nil {
			l, err = g.again(ctx)
		}
		switch {
		case ctx.Err() != nil || !until.IsZero() && !time.Now().Before(until):
			// An answer that comes too late keeps nothing.
			if l != nil {
				l.close()
			}
			why := context.Cause(ctx)
			if why == nil {
				why = errSession
			}
			if trouble.last != nil {
				return nil, fmt.Errorf("%w (last attempt: %w)", why, trouble.last)
			}
			return nil, why
		case err == nil:
			return l, nil
		case final(err) || errors.Is(err, errAnother):
			return nil, err
		}
		delay = b.next()
		trouble.note(g.c.log, "cannot request the lock again: retrying", err, delay)
	}
}

// errAnother means that lockd has another holder than this grant's.
var errAnother = errors.New("lockd no longer has the grant")

// answerTimeout is how long lockd may take to give a lock back: it answers from memory.
const answerTimeout = 10 * time.Second

// again asks once for the lock that was granted. Only the same grant keeps it.
func (g *Grant) again(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	l, err := g.c.cfg.open(ctx, g.c.dial, g.c.cfg.ttl(), g.c.cfg.soft(), g.c.cfg.acquire(g.token))
	if err != nil {
		return nil, err
	}
	e, err := l.next(ctx)
	switch {
	case err != nil:
	case e.Event == wire.Refused:
		err = refused(e)
	case e.Event == wire.Waiting:
		err = fmt.Errorf("%w: token %d is waiting at position %d", errAnother, g.token, e.Position)
	case e.Event != wire.Granted:
		err = unexpected(e, "the client requested its lock again")
	case e.Token != g.token || !e.Regranted:
		err = fmt.Errorf("%w: requested token %d, granted %d, regranted %t", errAnother, g.token, e.Token, e.Regranted)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}
