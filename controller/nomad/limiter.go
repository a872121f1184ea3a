package nomad

import (
	"context"
	"sync"
	"time"
)

// limiter is a token bucket. Whoever waits has taken its token already, so that
// those who come later wait longer.
type limiter struct {
	rate, burst float64

	mu     sync.Mutex // guards what follows, for some arithmetic only
	tokens float64
	last   time.Time
}

func newLimiter(rate float64, burst int) *limiter {
	return &limiter{rate: rate, burst: float64(burst), tokens: float64(burst), last: time.Now()}
}

// wait takes a token, or returns ctx's error and takes none.
func (l *limiter) wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	delay := l.take()
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		l.tokens++
		l.mu.Unlock()
		return ctx.Err()
	}
}

func (l *limiter) take() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tokens = min(l.burst, l.tokens+now.Sub(l.last).Seconds()*l.rate)
	l.last = now
	l.tokens--
	return time.Duration(-l.tokens / l.rate * float64(time.Second))
}
