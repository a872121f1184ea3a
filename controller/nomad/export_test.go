package nomad

import "context"

// NewLimiterForTest returns a limiter's wait.
func NewLimiterForTest(rate float64, burst int) func(context.Context) error {
	return newLimiter(rate, burst).wait
}
