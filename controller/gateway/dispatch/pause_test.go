package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/dispatch"
)

// running has the dispatcher notice for so long that the process runs, and reports if report is set.
func running(d *dispatch.Dispatcher, long time.Duration, report bool) {
	for began := time.Now(); time.Since(began) < long; time.Sleep(dispatch.BeatEvery) {
		d.Beat()
		if report {
			d.Claims(10)
			d.Share(slots(4))
		}
	}
}

// A process that was stopped, by SIGSTOP or with its machine, may have lost its shares meanwhile. It sends nothing
// until it has an answer to a report that it sent afterwards.
func TestPausedGatewayWaitsForItsShares(t *testing.T) {
	const short, long = 400 * time.Millisecond, 600 * time.Millisecond
	held := func(d *dispatch.Dispatcher) int { return d.Claims(10)[0].Held }
	for name, tc := range map[string]struct {
		run  func(d *dispatch.Dispatcher)
		used bool
	}{
		"no pause":    {func(*dispatch.Dispatcher) {}, true},
		"short pause": {func(*dispatch.Dispatcher) { time.Sleep(short) }, true},
		"no answers, but it runs": {func(d *dispatch.Dispatcher) {
			running(d, time.Minute, false)
		}, true},
		"long pause": {func(*dispatch.Dispatcher) { time.Sleep(long) }, false},
		"long pause, before it notices otherwise": {func(d *dispatch.Dispatcher) {
			time.Sleep(long)
			d.Beat()
		}, false},
		"an answer from before": {func(d *dispatch.Dispatcher) {
			d.Claims(10)
			time.Sleep(long)
			d.Share(slots(4))
		}, false},
		"an answer to a later report": {func(d *dispatch.Dispatcher) {
			time.Sleep(long)
			require.Zero(t, held(d), "others may have all")
			d.Share(slots(4))
		}, true},
		"the controller is away": {func(d *dispatch.Dispatcher) {
			time.Sleep(long)
			d.Beat()
			d.Away(true)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := sharing(t)
				running(d, time.Second, true)
				tc.run(d)
				got := acquire(t, d)
				require.Equal(t, tc.used, served(got))
				d.Claims(10)
				d.Share(slots(4))
				require.True(t, served(got), "a request that waits goes on")
			})
		})
	}
}
