package client

import "time"

// lease is the arithmetic of a session: it says until when a holder may believe
// that it holds the lock. lockd gives a session up SessionTTL after it received
// the last ping. The client cannot know that moment, but it knows that it was
// not before the ping was sent, so it counts from there: a lease ends no later
// than lockd's session, and lockd's lock delay comes on top.
//
// It reads no clock. Times must carry the monotonic clock.
type lease struct {
	// soft tells that the pings are signs of life only: the lease never ends.
	soft bool
	// ttl is 0 where there is no session; then nothing else counts.
	ttl time.Duration
	// until is the end: ttl after the send of the last request that was answered.
	until time.Time
	// sent is when the unanswered pings were sent, the oldest first: lockd
	// answers them in order.
	sent []time.Time
	// last is when the last request was sent.
	last time.Time
}

// newLease starts with an acquire that was sent at the given time. Its answer is
// outstanding, so until is only how long to wait for it.
func newLease(ttl time.Duration, soft bool, asked time.Time) lease {
	if ttl == 0 {
		return lease{}
	}
	return lease{soft: soft, ttl: ttl, until: asked.Add(ttl), last: asked}
}

// ends tells whether the lease has an end.
func (l *lease) ends() bool { return l.ttl != 0 && !l.soft }

// due is when the next ping must be sent. A third of the TTL leaves time for a
// ping that is answered late.
func (l *lease) due() time.Time { return l.last.Add(l.ttl / 3) }

// over tells whether the session has ended.
func (l *lease) over(now time.Time) bool { return l.ends() && !now.Before(l.until) }

// ping notes a ping that is about to be sent.
func (l *lease) ping(now time.Time) {
	l.sent = append(l.sent, now)
	l.last = now
}

// pong notes an answer. It is false if no ping is unanswered.
func (l *lease) pong() bool {
	if len(l.sent) == 0 {
		return false
	}
	l.until = l.sent[0].Add(l.ttl)
	l.sent = l.sent[1:]
	return true
}
