package plugin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
)

// remuda-capacity removes nothing before fewer were enough for the hold, and then one after
// the other.
func TestFewerMustBeEnoughForAWhile(t *testing.T) {
	call := capacityCall(model(0, 4, 0.01))
	call.Options.Capacity.Hold = 2 * time.Minute
	after := func(d time.Duration, l4 int, kv float64) plugin.Answer {
		t.Helper()
		call.Snapshot = model(0, l4, kv)
		call.Now += int64(d)
		var a plugin.Answer
		a, call.State = call.Decide()
		return a
	}
	first := after(0, 4, 0.01)
	require.Equal(t, plugin.None, first.Direction)
	require.Contains(t, first.Reason, "scale-down waits, because fewer replicas were enough for only 0s of the required 2m0s: l4 from 4 to 3")
	require.Equal(t, plugin.None, after(time.Minute, 4, 0.01).Direction)
	require.Equal(t, plugin.Up, after(time.Minute, 4, 0.9).Direction, "a load in between: it begins anew")
	require.Equal(t, plugin.None, after(10*time.Second, 4, 0.01).Direction)
	require.Equal(t, plugin.None, after(4*time.Minute, 4, 0.01).Direction, "a host that slept is no proof")
	require.Equal(t, plugin.None, after(59*time.Second, 4, 0.01).Direction)
	require.Equal(t, 3, after(time.Second, 4, 0.01).Count)
	require.Equal(t, 2, after(10*time.Second, 3, 0.01).Count, "the next one need not wait")
	require.Equal(t, plugin.Up, after(10*time.Second, 2, 0.79).Direction)
	require.Equal(t, plugin.None, after(10*time.Second, 3, 0.01).Direction)
}

// What is above the model's max goes at once.
func TestTheMaxDoesNotWait(t *testing.T) {
	call := capacityCall(model(0, 4, 0.01))
	call.Options.Capacity.Hold = time.Hour
	call.Snapshot.Max = 2
	a, _ := call.Decide()
	require.Equal(t, 2, a.Count, a.Reason)
}
