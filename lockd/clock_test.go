package lockd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"remuda/lockd/lock"
)

// jump is t on a machine whose wall clock was moved: the wall reading differs, the
// monotonic reading is the same. Package time has no such function, so this
// writes the seconds of a time.Time with a monotonic reading where package time
// keeps them: from bit 30 of its first word.
func jump(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(int64(by/time.Second)) << 30
	return t
}

// TestWallClockJumps is a simulation: the machine's clock cannot be moved by a
// test. lockd takes every time from time.Now, whose monotonic reading all
// comparisons and differences of package time use; so do its timers and deadlines
// of connections. Here a story runs on two machines, one of which sees the wall
// clock jump an hour either way at every event: both must do the same at the same
// moments.
func TestWallClockJumps(t *testing.T) {
	t.Parallel()
	base := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		moved := jump(base, by)
		require.Zero(t, moved.Sub(base), "the monotonic reading stays")
		require.Equal(t, by, moved.Round(0).Sub(base.Round(0)), "the wall reading moves")
	}

	times := lock.DefaultTimes()
	local := func(pid int) lock.Peer {
		return lock.Peer{Process: &lock.Process{PID: pid, Start: 1, Boot: "boot"}}
	}
	remote := func(pid int) lock.Peer { return lock.Peer{Identity: fmt.Sprint("node-", pid)} }
	for seed := range uint64(200) {
		// What was on disk is of another clock in any case.
		records := lock.Records{Token: 7, Groups: map[string]lock.Record{
			"local":  {Token: 5, Holder: "a", Since: base.Add(100 * time.Hour), Peer: local(900)},
			"remote": {Token: 7, Holder: "a", Since: base.Add(-100 * time.Hour), Peer: remote(900)},
		}}
		steady, jumpy := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
		tell := func(now time.Time) time.Time {
			return jump(now, []time.Duration{-time.Hour, 0, time.Hour}[jumpy.IntN(3)])
		}
		m, want := lock.New(base, times, "boot", records)
		j, got := lock.New(tell(base), times, "boot", records)
		require.Equal(t, shown(want, base), shown(got, base))
		version := uint64(0)
		for step := range 60 {
			now := base.Add(time.Duration(step) * time.Second)
			conn := lock.ConnID(1 + steady.IntN(8))
			group, peer := "local", local(int(conn))
			if conn%2 == 0 {
				group, peer = "remote", remote(int(conn))
			}
			token := 5 + uint64(steady.IntN(6))
			var event func(m *lock.Machine, now time.Time) []lock.Effect
			switch steady.IntN(8) {
			case 0, 1:
				conn += lock.ConnID(8 * step) // a connection asks once
				event = func(m *lock.Machine, now time.Time) []lock.Effect {
					return m.Acquire(now, conn, group, fmt.Sprint("h", conn), 0, peer)
				}
			case 2:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Ping(now, conn) }
			case 3:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Closed(now, conn) }
			case 4:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Died(now, "local", token) }
			case 5:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Gone(now, "local", token) }
			case 6:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Persisted(now, version, nil) }
			default:
				event = func(m *lock.Machine, now time.Time) []lock.Effect { return m.Tick(now) }
			}
			want, got := event(m, now), event(j, tell(now))
			for _, e := range want {
				if p, ok := e.(lock.Persist); ok {
					version = p.Version
				}
			}
			require.Equal(t, shown(want, base), shown(got, base), "seed %d, step %d", seed, step)
			require.Equal(t, states(m), states(j), "seed %d, step %d", seed, step)
		}
	}
}

// shown renders effects with the moments of their wakes. When a grant was made is
// for people and is of the wall clock.
func shown(effects []lock.Effect, base time.Time) []string {
	var out []string
	for _, e := range effects {
		switch e := e.(type) {
		case lock.Wake:
			out = append(out, fmt.Sprint("wake ", e.At.Sub(base)))
		case lock.Persist:
			line := fmt.Sprint("persist ", e.Version)
			for _, group := range []string{"local", "remote"} {
				r := e.Records.Groups[group]
				r.Since = time.Time{}
				line += fmt.Sprintf(" %+v", r.Holder) + fmt.Sprint(" ", r.Token)
			}
			out = append(out, line)
		case lock.Watch:
			out = append(out, fmt.Sprint("watch ", e.Group, e.Token, e.Peer.Process.PID))
		case lock.Fence:
			out = append(out, fmt.Sprint("fence ", e.Group, e.Token, e.Peer.Process.PID))
		default:
			out = append(out, fmt.Sprintf("%#v", e))
		}
	}
	return out
}

func states(m *lock.Machine) []lock.Status {
	all := m.Status()
	for i := range all {
		all[i].Since = time.Time{}
	}
	return all
}
