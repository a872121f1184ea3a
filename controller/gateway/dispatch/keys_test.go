package dispatch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// TestKeyDemands: every request counts from when it asks until it leaves, however it does; the rest of
// what does not fit is one entry for each model.
func TestKeyDemands(t *testing.T) {
	table, err := balance.New(balance.Config{Remember: time.Minute})
	require.NoError(t, err)
	keys, err := queue.NewKeys(queue.KeyLimit{}, nil)
	require.NoError(t, err)
	d := dispatch.New(dispatch.Config{Length: 6, Aging: time.Minute, Table: table, Keys: keys, Budget: queue.BudgetConfig{Ratio: .2, Floor: 10, Window: 10 * time.Second}})
	t.Cleanup(d.Close)
	engine := replica.Engine{Name: replica.Name{Model: "m", Variant: "v", ID: "1"}, Role: replica.RolePrimary, Address: "127.0.0.1", Port: 1, Slots: 1, Passing: true}
	d.Update([]replica.Engine{engine}, false)
	require.Empty(t, d.KeyDemands(9))

	request := func(key string, weight float64, n int) *dispatch.Request {
		return &dispatch.Request{ID: fmt.Sprint(key, n), Model: "m", Key: key, Weight: weight, Cost: 1}
	}
	running := request("a", 2, 0)
	grant, err := d.Acquire(t.Context(), running, patient{})
	require.NoError(t, err)
	require.Equal(t, []api.KeyDemand{{Model: "m", Key: "a", Weight: 2, Need: 1}}, d.KeyDemands(9))

	ctx, leave := context.WithCancel(t.Context())
	type result struct {
		grant *dispatch.Grant
		err   error
	}
	results := make(chan result)
	waits := func(ctx context.Context, r *dispatch.Request) {
		n := d.Lengths()["m"].Waiting
		go func() {
			g, err := d.Acquire(ctx, r, patient{})
			results <- result{g, err}
		}()
		require.Eventually(t, func() bool { return d.Lengths()["m"].Waiting == n+1 }, time.Minute, time.Millisecond)
	}
	waits(t.Context(), request("a", 2, 1))
	for i := range 3 {
		waits(ctx, request("b", 0, i))
	}
	for _, key := range []string{"c", "d"} {
		waits(ctx, request(key, 1, 0))
	}
	all := []api.KeyDemand{{Model: "m", Key: "b", Weight: 1, Need: 3}, {Model: "m", Key: "a", Weight: 2, Need: 2}, {Model: "m", Key: "c", Weight: 1, Need: 1}, {Model: "m", Key: "d", Weight: 1, Need: 1}}
	require.Equal(t, all, d.KeyDemands(9))
	require.Equal(t, []api.KeyDemand{all[0], {Model: "m", Weight: 4, Need: 4}}, d.KeyDemands(3))

	// The queue is full: one of b gives way to e, and another request of b is refused.
	go func() {
		g, err := d.Acquire(ctx, request("e", 1, 0), patient{})
		results <- result{g, err}
	}()
	require.ErrorIs(t, (<-results).err, dispatch.ErrFull)
	_, err = d.Acquire(t.Context(), request("b", 1, 9), patient{})
	require.ErrorIs(t, err, dispatch.ErrFull)
	require.Equal(t, 2, d.KeyDemands(9)[1].Need)

	leave()
	for range 5 {
		require.ErrorIs(t, (<-results).err, context.Canceled)
	}
	require.Equal(t, []api.KeyDemand{{Model: "m", Key: "a", Weight: 2, Need: 2}}, d.KeyDemands(9))
	grant.Release()
	next := <-results
	require.NoError(t, next.err)
	require.Equal(t, 1, d.KeyDemands(9)[0].Need)
	next.grant.Release()
	require.Empty(t, d.KeyDemands(9))

}
