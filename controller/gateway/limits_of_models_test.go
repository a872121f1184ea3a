package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
)

// newLimited starts a gateway without limits of its own that matter here, and with the model m.
func newLimited(t *testing.T, m api.GatewayModel) *fixture {
	t.Helper()
	c := newController(t, 1)
	c.state.Models = []api.GatewayModel{m}
	return newGateway(t, c.config, patient, func(cfg *gateway.Config) {
		cfg.Queue.Length, cfg.Timeouts.FirstByte, cfg.Retries.Attempts = 100, patience, 1
	})
}

func TestQueueLengthOfAModel(t *testing.T) {
	t.Parallel()
	f := newLimited(t, api.GatewayModel{Name: "m", QueueLength: 2})
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	answers := []<-chan answer{f.later("first", unaryBody)}
	s.next()
	answers = append(answers, f.later("b", unaryBody), f.later("c", unaryBody))
	f.waiting("m", 2)
	f.post(unaryBody).requireError(t, http.StatusTooManyRequests, "queue_full")
	close(s.leave)
	for _, a := range answers {
		require.Equal(t, http.StatusOK, (<-a).status)
	}
}

func TestQueueWaitOfAModel(t *testing.T) {
	t.Parallel()
	f := newLimited(t, api.GatewayModel{Name: "m", QueueWait: api.Duration(300 * time.Millisecond)})
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody)
	s.next()
	began := time.Now()
	f.post(unaryBody).requireError(t, http.StatusServiceUnavailable, "queue_timeout")
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	require.Less(t, time.Since(began), patience/2)
	close(s.leave)
	require.Equal(t, http.StatusOK, (<-first).status)
}

func TestFirstByteOfAModel(t *testing.T) {
	t.Parallel()
	f := newLimited(t, api.GatewayModel{Name: "m", FirstByte: api.Duration(300 * time.Millisecond)})
	s := newTurnstile(t, "a", 1) // which answers nobody
	f.engines(s.Engine)
	began := time.Now()
	e := f.post(unaryBody).requireError(t, http.StatusGatewayTimeout, "engine_timeout")
	require.Contains(t, e.Message, "within 300ms")
	require.Less(t, time.Since(began), patience/2)
}
