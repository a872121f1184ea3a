package plugin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

// grows is a call that wants more of the cheapest variant.
func grows() plugin.Call {
	c := capacityCall(model(1, 1, 0.75))
	c.Options.UnplaceableHold = 2 * time.Minute
	return c
}

func TestAVariantWithoutAPlaceIsHeldDown(t *testing.T) {
	call := grows()
	l4 := &call.Snapshot.Variants[1]
	// chosen decides 30 s later whether l4 grows.
	chosen := func() bool {
		call.Now += int64(30 * time.Second)
		var a plugin.Answer
		a, call.State = call.Decide()
		require.Equal(t, plugin.Up, a.Direction, a.Reason)
		return a.Targets["l4"] > 1
	}
	require.True(t, chosen())
	l4.Unplaceable, l4.Why = true, strings.Repeat("no L4 is free ", 100)
	require.False(t, chosen())
	l4.Unplaceable = false
	for i := range 3 {
		require.False(t, chosen(), "%d s after it has a place again", 30*(i+1))
	}
	require.Len(t, call.State.Held, 1)
	require.LessOrEqual(t, len(call.State.Held[0].Why), 200)
	require.True(t, chosen(), "two minutes after")
	require.Empty(t, call.State.Held)

	// Its place comes and goes: each time the two minutes begin anew.
	for range 5 {
		l4.Unplaceable = true
		require.False(t, chosen())
		l4.Unplaceable = false
		require.False(t, chosen())
	}

	// It is held while it has no place of its own to grow to, whatever else happens.
	call.Snapshot.Variants[0].Unplaceable = true
	require.True(t, chosen(), "any place is better than none")
	call.Snapshot.Variants[0].Unplaceable = false
	require.True(t, chosen(), "both are held: the cheapest is as good as the other")
	call.Options.UnplaceableHold = 0
	l4.Unplaceable = true
	require.False(t, chosen())
	l4.Unplaceable = false
	require.True(t, chosen(), "it is switched off")
}

func TestHoldingDownSurvives(t *testing.T) {
	call := grows()
	call.Snapshot.Variants[1].Unplaceable = true
	_, call.State = call.Decide()
	call.Snapshot.Variants[1].Unplaceable = false

	t.Run("JSON", func(t *testing.T) {
		raw, err := json.Marshal(call)
		require.NoError(t, err)
		var again plugin.Call
		require.NoError(t, json.Unmarshal(raw, &again))
		a, _ := again.Decide()
		require.Equal(t, map[string]int{"h100": 2, "l4": 1}, a.Targets, a.Reason)
	})
	t.Run("a clock that jumps", func(t *testing.T) {
		c := call
		for _, jump := range []time.Duration{time.Hour, -2 * time.Hour} {
			c.Now += int64(jump)
			a, s := c.Decide()
			require.Equal(t, 1, a.Targets["l4"], "a minute at most has passed")
			c.State = s
		}
	})
	t.Run("what the analyzer is shown", func(t *testing.T) {
		in := call.CapacityInput()
		require.True(t, in.Variants[1].Unplaceable)
		require.False(t, call.Snapshot.Variants[1].Unplaceable, "the call is not changed")
	})
	t.Run("waking up", func(t *testing.T) {
		c := call
		c.Snapshot = model(0, 0, 0)
		c.Snapshot.Queue = observe.Queue{Known: true, Waiting: 1}
		a, _ := c.Decide()
		require.Equal(t, map[string]int{"h100": 1, "l4": 0}, a.Targets, a.Reason)
	})
	t.Run("variants that are gone are forgotten", func(t *testing.T) {
		c := call
		c.Snapshot.Variants = c.Snapshot.Variants[:1]
		_, s := c.Decide()
		require.Empty(t, s.Held)
	})
}

func TestWhatIsHeldIsBoundedAndChecked(t *testing.T) {
	call := grows()
	call.Snapshot.Variants = nil
	for i := range 1500 {
		call.Snapshot.Variants = append(call.Snapshot.Variants, observe.Variant{Variant: fmt.Sprintf("v%04d", i), Unplaceable: true})
	}
	_, s := call.Decide()
	require.Len(t, s.Held, 1000)
	require.NoError(t, s.Validate())
	s.Held[1] = s.Held[0]
	s.Held[0].Left = -1
	err := s.Validate()
	require.ErrorContains(t, err, `held[0] is "v0000" with -1 ns`)
	require.ErrorContains(t, err, `held[1] is "v0000"`)
	s.Held = append(s.Held, s.Held...)
	require.ErrorContains(t, s.Validate(), "2000 variants: must be at most 1000")
}
