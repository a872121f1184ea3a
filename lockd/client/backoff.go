package client

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// backoffMin is about what lockd takes to start.
	backoffMin = 20 * time.Millisecond
	// backoffMax is how much later than possible a lock may be asked for, or
	// got back. A connection that lasted as long counts as a good one.
	backoffMax = time.Second
)

// backoff is the time between attempts. The zero value is ready.
type backoff struct{ delay time.Duration }

// next doubles the delay. Half of it is jitter, so that the many clients of a
// restarted lockd do not come at once.
func (b *backoff) next() time.Duration {
	b.delay = min(max(2*b.delay, backoffMin), backoffMax)
	return b.delay/2 + rand.N(b.delay/2+1)
}

// sleep waits. The error is the context's cause.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
