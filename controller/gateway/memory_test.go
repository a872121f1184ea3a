package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

// TestLongStreamsGoOnWithoutMemory: the text of a stream counts, and one that has no memory goes on, but
// cannot be continued.
func TestLongStreamsGoOnWithoutMemory(t *testing.T) {
	t.Parallel()
	const pieces, length = 40, 1000
	f := goesOn(t, func(c *gateway.Config) { c.Limits.Body, c.Limits.Buffered = 16<<10, 128<<10 }) // 32 KiB for each client
	piece := `data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", length) + `"}}]}` + "\n\n"
	half, step := make(chan struct{}, 2), make(chan struct{}, 2)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		for _, n := range []int{10, pieces - 10} {
			sse(w, strings.Repeat(piece, n))
			half <- struct{}{}
			select {
			case <-step:
			case <-r.Context().Done():
			}
		}
		panic(http.ErrAbortHandler)
	}))
	got := f.later("", `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`)
	<-half
	eventually(t, "the text counts", func() bool { return f.metric("remuda_gateway_buffered_bytes") > 10*length })
	require.Zero(t, f.metric("remuda_gateway_unrecorded_streams_total", "model", "m"))
	step <- struct{}{}
	<-half
	eventually(t, "it is not recorded any more", func() bool {
		return f.metric("remuda_gateway_unrecorded_streams_total", "model", "m") == 1 && f.metric("remuda_gateway_buffered_bytes") == 0
	})
	step <- struct{}{}
	requireBroken(t, <-got, strings.Repeat(piece, pieces), "engine_cut_off")
	require.Zero(t, f.metric("remuda_gateway_continuations_total", "model", "m"))
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
}

// TestStepsOfPipelinesCount: what steps answer is held, and bounded.
func TestStepsOfPipelinesCount(t *testing.T) {
	t.Parallel()
	f, _ := composing(t, map[string]string{"support": supportSource}, func(c *gateway.Config) {
		c.Limits.Body, c.Limits.Buffered, c.RetryAfter = 16<<10, 64<<10, 3*time.Second // 32 KiB for each client
	})
	long := 0
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	f.engines(newModel(t, "small", func(prompted) string { return strings.Repeat("tech ", long) }, nil),
		newModel(t, "tech-llm", func(prompted) string { entered <- struct{}{}; <-leave; return "done" }, nil))
	long = 4000 // 20 KB
	got := f.later("", asking("support", "it burns", false))
	<-entered
	require.Greater(t, f.metric("remuda_gateway_buffered_bytes"), float64(20_000))
	close(leave)
	require.Equal(t, http.StatusOK, (<-got).status)
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))

	long = 10_000
	a := f.post(asking("support", "it burns", false))
	a.requireError(t, http.StatusServiceUnavailable, "gateway_busy")
	require.Equal(t, 3, a.retryAfter(t))
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
}
