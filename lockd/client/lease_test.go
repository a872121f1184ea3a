package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/lockd/wire"
)

func TestLease(t *testing.T) {
	t0 := time.Now()
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	l := newLease(9*time.Second, false, t0)
	require.Equal(t, at(3), l.due())
	require.Equal(t, at(9), l.until)
	require.False(t, l.over(at(8.999)))
	require.True(t, l.over(at(9)))
	require.False(t, l.pong(), "no ping was sent")

	l.ping(at(3))
	l.ping(at(6))
	require.Equal(t, at(9), l.until, "an unanswered ping proves nothing")
	require.Equal(t, at(9), l.due())
	require.True(t, l.pong())
	require.Equal(t, at(12), l.until, "from the send of the first ping")
	require.True(t, l.pong())
	require.Equal(t, at(15), l.until)
	require.False(t, l.pong(), "every ping is answered")

	none := newLease(0, false, t0)
	require.False(t, none.over(at(1e9)), "no session is never over")
}

// TestLeaseEndsBeforeTheSession plays lockd against the lease with delays on
// both ways: whenever lockd's session is over, the lease was over before.
func TestLeaseEndsBeforeTheSession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ttl = 9 * time.Second
		delay := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(6*time.Second)).Draw(t, name))
		}
		now := time.Now()
		l := newLease(ttl, false, now)
		session := now.Add(delay("acquire")).Add(ttl) // lockd's
		arrived := session.Add(-ttl)                  // at lockd, in order
		answered := arrived                           // here, in order
		for range rapid.IntRange(0, 20).Draw(t, "pings") {
			now = l.due()
			if l.over(now) {
				break
			}
			l.ping(now)
			if arrived = later(arrived, now.Add(delay("there"))); arrived.Before(session) {
				session = arrived.Add(ttl)
				if answered = later(answered, arrived.Add(delay("back"))); !l.over(answered) && !l.pong() {
					t.Fatal("a pong has no ping")
				}
			}
			if l.until.After(session) {
				t.Fatalf("the lease ends %s after the session", l.until.Sub(session))
			}
		}
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestOverIsOver: a process that was stopped finds an answer and the end of its
// session at once; the end counts.
func TestOverIsOver(t *testing.T) {
	for range 50 {
		l := &link{lease: newLease(time.Second, false, time.Now().Add(-time.Minute)), arrivals: make(chan arrival, 1)}
		l.lease.ping(time.Now())
		l.arrivals <- arrival{event: wire.Event{Event: wire.Granted, Token: 5}}
		_, err := l.next(t.Context())
		require.ErrorIs(t, err, errSession)
	}
}

func TestBackoffDoublesWithJitter(t *testing.T) {
	var b backoff
	most := backoffMin
	for range 12 {
		d := b.next()
		require.LessOrEqual(t, d, most)
		require.GreaterOrEqual(t, d, most/2)
		most = min(2*most, backoffMax)
	}
	require.Equal(t, backoffMax, most)
}

func TestSleepEndsWithTheContext(t *testing.T) {
	cause := errors.New("because")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	require.ErrorIs(t, sleep(ctx, time.Hour), cause)
	require.NoError(t, sleep(context.Background(), 0))
}
