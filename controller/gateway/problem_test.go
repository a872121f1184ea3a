package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestWhyAModelDoesNotCome: a client that streams reads it while it waits, another one gets
// 503 as soon as nothing can change within its wait.
func TestWhyAModelDoesNotCome(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "n"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond))
	f.engines()
	f.follows(2)
	stream := f.listen("stream", streamBody)
	unary := f.later("unary", unaryBody)
	f.waiting("m", 2)
	problem := func(index uint64, p *api.GatewayProblem) {
		c.change(func() { c.index, c.state.Models[0].Problem = index, p })
	}
	reason := func(state, text string) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			line, ok := stream.line()
			require.True(t, ok, "the stream ended: %v", stream.err)
			if strings.HasPrefix(line, ": remuda state="+state+" ") && strings.HasSuffix(line, " reason="+text) {
				return
			}
			require.True(t, time.Now().Before(deadline), "the last comment is %q", line)
		}
	}

	// What has just begun may end again: both wait.
	problem(3, &api.GatewayProblem{State: api.QueueCantPlace, Message: "no place: 140 GiB needed", Since: time.Now()})
	reason("CANT_PLACE", `"no place: 140 GiB needed"`)
	problem(4, &api.GatewayProblem{State: api.QueueLoadFailed, Message: "load failed 1 time: exit 1", Since: time.Now(), RetryAt: time.Now().Add(time.Second)})
	reason("LOAD_FAILED", `"load failed 1 time: exit 1"`)
	f.waiting("m", 2)

	problem(5, &api.GatewayProblem{State: api.QueueLoadFailed, Message: "load failed 3 times: exit 1: CUDA out of memory", Since: time.Now(), RetryAt: time.Now().Add(24 * time.Hour)})
	got := <-unary
	got.requireError(t, http.StatusServiceUnavailable, "LOAD_FAILED")
	require.Contains(t, got.body, "load failed 3 times: exit 1: CUDA out of memory")
	require.Equal(t, "600", got.header.Get("Retry-After"))

	problem(6, &api.GatewayProblem{State: api.QueueCantPlace, Message: "no place", Since: time.Now().Add(-time.Hour)})
	f.follows(6)
	got = f.do(http.MethodPost, chat, unaryBody)
	got.requireError(t, http.StatusServiceUnavailable, "CANT_PLACE")
	require.NotEmpty(t, got.header.Get("Retry-After"))

	// The other model has no problem, and an engine ends this one.
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	require.Equal(t, "stream", s.next())
	s.leave <- struct{}{}
	stream.requireStream("stream")
	f.requireRest()
}
