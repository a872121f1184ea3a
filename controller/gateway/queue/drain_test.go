package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/queue"
)

func TestDrain(t *testing.T) {
	const window = 16 * time.Second
	every := func(from, to, step time.Duration) (out []time.Duration) {
		for d := from; d <= to; d += step {
			out = append(out, d)
		}
		return out
	}
	for _, c := range []struct {
		name      string
		done      []time.Duration
		now       time.Duration
		perSecond float64
		wait      time.Duration // for 10
		unknown   bool
	}{
		{name: "nothing yet", unknown: true},
		{name: "one tells nothing", done: every(0, 0, 1), now: time.Second, unknown: true},
		{name: "two are one gap", done: every(0, 2*time.Second, 2*time.Second), now: 2 * time.Second, perSecond: 0.5, wait: 20 * time.Second},
		{name: "steady, less than a window", done: every(0, 8*time.Second, time.Second/4), now: 8 * time.Second, perSecond: 4, wait: 2500 * time.Millisecond},
		{name: "steady, for long", done: every(0, time.Minute, time.Second/4), now: time.Minute, perSecond: 61.0 / 15, wait: time.Second * 150 / 61},
		{name: "slow ones", done: every(0, time.Minute, 6*time.Second), now: time.Minute, perSecond: 3.0 / 15, wait: 50 * time.Second},
		{name: "all at once say little", done: []time.Duration{0, 1, 2, 3, 4}, now: 5, perSecond: 4, wait: 2500 * time.Millisecond},
		{name: "faster of late", done: append(every(0, 57*time.Second, time.Second), every(57*time.Second+time.Second/10, time.Minute-1, time.Second/10)...),
			now: time.Minute, perSecond: 42.0 / 15, wait: time.Second * 30 / 29},
		{name: "stopped", done: every(0, 10*time.Second, time.Second), now: 26 * time.Second, unknown: true},
		{name: "slows down as nothing ends", done: every(0, 16*time.Second, time.Second), now: 24 * time.Second, perSecond: 8.0 / 15, wait: 18750 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := queue.NewDrain(window)
			for _, at := range c.done {
				d.Done(t0.Add(at))
			}
			require.InDelta(t, c.perSecond, d.PerSecond(at(c.now)), 1e-6)
			wait, known := d.Wait(at(c.now), 10)
			require.Equal(t, !c.unknown, known)
			require.InDelta(t, c.wait, wait, float64(time.Microsecond))
			wait, known = d.Wait(at(c.now), 0)
			require.True(t, known, "for nothing there is no wait")
			require.Zero(t, wait)
		})
	}
}

func TestDrainStartsAnewAfterAPause(t *testing.T) {
	d := queue.NewDrain(16 * time.Second)
	for i := range 100 {
		d.Done(at(time.Duration(i) * time.Second))
	}
	d.Done(at(time.Hour))
	require.Zero(t, d.PerSecond(at(time.Hour+time.Second)), "the first one after a pause counts for nothing")
	d.Done(at(time.Hour + 2*time.Second))
	require.InDelta(t, 0.5, d.PerSecond(at(time.Hour+2*time.Second)), 1e-9)
}

func TestDrainOfAnyWindow(t *testing.T) {
	d := queue.NewDrain(-1)
	d.Done(t0)
	d.Done(at(time.Millisecond))
	require.InDelta(t, 1000, d.PerSecond(at(time.Millisecond)), 1e-6)
	wait, known := d.Wait(at(time.Millisecond), 1<<62)
	require.True(t, known)
	require.Positive(t, wait)
}

// The rate of a steady stream is found, whatever its rate and wherever the
// slices begin, within what one slice and one request make.
func TestDrainFindsASteadyRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 16 * time.Second
		gap := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(2*time.Second)).Draw(t, "gap"))
		total := time.Duration(rapid.Int64Range(int64(3*gap), int64(3*gap+3*window)).Draw(t, "total"))
		d := queue.NewDrain(window)
		now := time.Duration(0)
		for ; now <= total; now += gap {
			d.Done(at(now))
		}
		now -= gap
		got := d.PerSecond(at(now))
		want := 1 / gap.Seconds()
		// At most one gap too many or too few in the time that is covered.
		covered := min(now, window-window/16)
		covered = max(covered, window/16)
		slack := 1 / covered.Seconds()
		if now < window/16 {
			slack = want // less than a slice counts as one
		}
		require.InDelta(t, want, got, slack+1e-6)
	})
}
