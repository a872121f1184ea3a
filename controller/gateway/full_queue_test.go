package gateway_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
)

// TestOneKeyCannotFillTheQueue: another key gets its part of a full queue, and a higher priority its place;
// the last of those that were there are told to come back.
func TestOneKeyCannotFillTheQueue(t *testing.T) {
	t.Parallel()
	const length = 4
	high := limit(func(l *queue.KeyLimit) { l.MaxPriority = 9 })
	f := newGateway(t, patient, withKey("crowd", high), withKey("other", high), func(c *gateway.Config) {
		c.Queue.Length, c.RetryAfter = length, 77*time.Second
	})
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody)
	s.next()
	var crowd []<-chan answer
	for i := range length {
		crowd = append(crowd, f.later(fmt.Sprint("c", i), unaryBody, as("crowd")...))
		f.waiting("m", i+1)
	}
	f.post(unaryBody, as("crowd")...).requireError(t, http.StatusTooManyRequests, "queue_full")

	others := []<-chan answer{f.later("o0", unaryBody, as("other", "X-Remuda-Priority", "0")...)}
	requireMadeRoom := func(a answer) {
		a.requireError(t, http.StatusTooManyRequests, "queue_full")
		require.Equal(t, 77, a.retryAfter(t))
	}
	requireMadeRoom(<-crowd[3])
	others = append(others, f.later("o1", unaryBody, as("other", "X-Remuda-Priority", "0")...))
	requireMadeRoom(<-crowd[2])
	f.waiting("m", length)
	f.post(unaryBody, as("other", "X-Remuda-Priority", "0")...).requireError(t, http.StatusTooManyRequests, "queue_full")
	urgent := f.later("urgent", unaryBody, as("crowd", "X-Remuda-Priority", "9")...)
	requireMadeRoom(<-crowd[1])
	require.Equal(t, 5.0, f.metric("remuda_gateway_queue_full_total", "model", "m"))

	close(s.leave)
	for _, c := range append(others, first, crowd[0], urgent) {
		require.Equal(t, http.StatusOK, (<-c).status)
	}
	f.requireRest()
}
