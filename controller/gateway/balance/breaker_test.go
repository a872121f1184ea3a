package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// fail sends one request and lets it fail. It returns whether that was news.
func fail(t require.TestingT, table *balance.Table, now time.Time, fault balance.Fault) bool {
	p := take(t, table, now)
	news := table.Failed(now, p, fault)
	table.Release(now, p)
	return news
}

// serve sends one request and lets it be served well.
func serve(t require.TestingT, table *balance.Table, now time.Time) string {
	p := take(t, table, now)
	table.Answered(now, p)
	table.Release(now, p)
	return p.ServiceID
}

// next is how long it is until the next probe.
func next(t require.TestingT, table *balance.Table, now time.Time) time.Duration {
	at, ok := table.NextProbe(now, "m")
	require.True(t, ok, "want a probe to be due later")
	return at.Sub(now)
}

func open(table *balance.Table, now time.Time) int { return table.Loads(now)[0].Open }

func TestFaultNames(t *testing.T) {
	var names []string
	for f := balance.Dial; f <= balance.Cut; f++ {
		names = append(names, f.String())
	}
	require.Equal(t, []string{"dial", "reset", "timeout", "protocol", "content", "status", "cut"}, names)
	require.Equal(t, "fault 99", balance.Fault(99).String())
}

func TestBreakerOpensAtOnce(t *testing.T) {
	for _, fault := range []balance.Fault{balance.Dial, balance.Reset, balance.Timeout, balance.Protocol, balance.Content} {
		t.Run(fault.String(), func(t *testing.T) {
			table := newTable(t)
			table.Update(t0, []replica.Engine{eng("a", slots(4)), eng("b", slots(4))}, false)
			require.True(t, fail(t, table, t0, fault))
			require.Equal(t, 1, open(table, t0))
			for range 4 {
				require.Equal(t, engineB, take(t, table, t0.Add(2*time.Second-1)).ServiceID, "even when it is the busier one")
			}
			busy(t, table, t0.Add(2*time.Second-1))
			require.Equal(t, 2*time.Second, next(t, table, t0))
			require.Equal(t, engineA, take(t, table, t0.Add(2*time.Second)).ServiceID)
		})
	}
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	for _, fault := range []balance.Fault{balance.Status, balance.Cut} {
		t.Run(fault.String(), func(t *testing.T) {
			table := newTable(t)
			table.Update(t0, []replica.Engine{eng("a")}, false)
			for range 3 { // a success ends the row
				for range 4 {
					require.False(t, fail(t, table, t0, fault))
				}
				for range 12 { // too few to be an outlier
					serve(t, table, t0)
				}
			}
			for range 4 {
				require.False(t, fail(t, table, t0, fault))
			}
			require.Zero(t, open(table, t0))
			require.True(t, fail(t, table, t0, fault), "the fifth")
			require.Equal(t, 1, open(table, t0))
			busy(t, table, t0)
		})
	}
}

func TestBreakerEjectsOutliers(t *testing.T) {
	// run sends requests of which "x" fail and "." do not, and returns after how many the
	// breaker opened, 0 for never.
	run := func(t *testing.T, outcomes string) int {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		for i, o := range outcomes {
			if o == '.' {
				serve(t, table, t0)
			} else if fail(t, table, t0, balance.Status) {
				return i + 1
			}
		}
		return 0
	}
	for outcomes, want := range map[string]int{
		".x.x.x.x.x.x.x.x.x.x.x.x":          0, // half is not more than half
		"xx.xx.xx.":                         0, // fewer than ten
		"xx.xx.xx.x":                        10,
		"..........xxx.xxx.xxx.xx":          24, // 11 of the last 20
		"....................xxx.xxx.xxx.x": 0,  // 10 of the last 20
		"xxx.xx...............x.xx.xx.":     0,  // the old ones are forgotten
	} {
		require.Equal(t, want, run(t, outcomes), outcomes)
	}
}

// TestCutAfterAnAnswerIsAFailure: a request counts once, by its end.
func TestCutAfterAnAnswerIsAFailure(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a")}, false)
	for i := range 5 {
		p := take(t, table, t0)
		table.Answered(t0, p)
		require.Equal(t, i == 4, table.Failed(t0, p, balance.Cut))
		require.False(t, table.Failed(t0, p, balance.Cut), "twice the same")
		table.Release(t0, p)
	}
	require.Equal(t, 1, open(table, t0))

	t.Run("a client that leaves says nothing", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		for range 4 {
			fail(t, table, t0, balance.Status)
		}
		table.Release(t0, take(t, table, t0))
		require.True(t, fail(t, table, t0, balance.Status))
	})
}

func TestHalfOpen(t *testing.T) {
	setup := func(t *testing.T) (*balance.Table, time.Time) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(4)), eng("b", slots(4))}, false)
		fail(t, table, t0, balance.Timeout)
		return table, t0.Add(2 * time.Second)
	}
	t.Run("one probe at a time", func(t *testing.T) {
		table, now := setup(t)
		probe := take(t, table, now)
		require.Equal(t, engineA, probe.ServiceID)
		for range 4 {
			require.Equal(t, engineB, take(t, table, now).ServiceID)
		}
		busy(t, table, now)
		_, ok := table.NextProbe(now, "m")
		require.False(t, ok, "nothing before the probe's end")
		table.Answered(now, probe)
		require.Equal(t, engineA, take(t, table, now).ServiceID, "before the answer is complete")
		require.Zero(t, open(table, now))
	})
	t.Run("a failure opens it for twice as long, up to the most", func(t *testing.T) {
		table, now := setup(t)
		for _, wait := range []time.Duration{4, 8, 16, 30, 30} {
			p := take(t, table, now)
			require.Equal(t, engineA, p.ServiceID)
			require.False(t, table.Failed(now, p, balance.Timeout), "it was not closed")
			table.Release(now, p)
			require.Equal(t, wait*time.Second, next(t, table, now))
			require.Equal(t, engineB, serve(t, table, now.Add(wait*time.Second-1)))
			now = now.Add(wait * time.Second)
		}
		require.Equal(t, engineA, serve(t, table, now))
		p := take(t, table, now, engineB)
		require.True(t, table.Failed(now, p, balance.Timeout))
		require.Equal(t, 2*time.Second, next(t, table, now), "all is forgiven")
	})
	t.Run("a probe without an outcome", func(t *testing.T) {
		table, now := setup(t)
		table.Release(now, take(t, table, now))
		require.Equal(t, 1, open(table, now))
		require.Equal(t, engineA, take(t, table, now).ServiceID, "the next one probes")
	})
	t.Run("a status is enough for a probe", func(t *testing.T) {
		table, now := setup(t)
		p := take(t, table, now)
		table.Failed(now, p, balance.Status)
		table.Release(now, p)
		require.Equal(t, 4*time.Second, next(t, table, now))
	})
	t.Run("a request that failed is not risked", func(t *testing.T) {
		table, now := setup(t)
		table.Update(now, []replica.Engine{eng("a"), eng("b"), eng("c")}, false)
		require.Equal(t, engineB, take(t, table, now, engineC).ServiceID)
		require.Equal(t, engineA, take(t, table, now, engineC).ServiceID, "unless nothing else is free")
		busy(t, table, now, engineC)
	})
	t.Run("an engine that is full of old requests is not probed", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(2))}, false)
		first, second := take(t, table, t0), take(t, table, t0)
		table.Failed(t0, first, balance.Timeout)
		now := t0.Add(time.Hour)
		require.Equal(t, 2*time.Second, next(t, table, t0))
		busy(t, table, now)
		table.Release(now, second)
		require.Equal(t, engineA, take(t, table, now).ServiceID)
	})
}

// TestTrial: an engine that begins answers and breaks them off has to end one well
// before it counts as mended.
func TestTrial(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(4)), eng("b", slots(4))}, false)
	fail(t, table, t0, balance.Content)
	now := t0.Add(2 * time.Second)
	probe := take(t, table, now)
	require.Equal(t, engineA, probe.ServiceID)
	table.Answered(now, probe)
	require.True(t, table.Failed(now, probe, balance.Cut), "one is enough")
	table.Release(now, probe)
	require.Equal(t, 4*time.Second, next(t, table, now))

	now = now.Add(4 * time.Second)
	probe = take(t, table, now)
	table.Answered(now, probe)
	table.Release(now, probe)
	other := take(t, table, now, engineB)
	require.False(t, table.Failed(now, other, balance.Cut), "the trial is over")
}

// TestOldRequestsAreOldNews: requests that were lost with one process are one failure.
func TestOldRequestsAreOldNews(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(8))}, false)
	var held []balance.Pick
	for range 7 {
		held = append(held, take(t, table, t0))
	}
	require.True(t, table.Failed(t0, held[0], balance.Timeout))
	for _, p := range held[1:6] {
		require.False(t, table.Failed(t0, p, balance.Timeout))
	}
	require.Equal(t, 2*time.Second, next(t, table, t0), "not doubled")
	table.Answered(t0, held[6])
	require.Equal(t, 1, open(table, t0), "nor does an old answer close it")

	now := t0.Add(2 * time.Second)
	probe := take(t, table, now)
	require.False(t, table.Failed(now, held[6], balance.Timeout))
	table.Answered(now, probe)
	require.Zero(t, open(table, now))
	for _, p := range held {
		table.Release(now, p)
	}
	require.True(t, table.Failed(now, probe, balance.Cut), "old requests do not end the trial")
}

func TestSoleEngineIsProbedSoon(t *testing.T) {
	ms := time.Millisecond
	for _, fault := range []balance.Fault{balance.Dial, balance.Reset} {
		t.Run(fault.String(), func(t *testing.T) {
			table := newTable(t)
			table.Update(t0, []replica.Engine{eng("a"), eng("b", critical)}, false)
			now := t0
			for _, wait := range []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2000 * ms, 2000 * ms} {
				fail(t, table, now, fault)
				busy(t, table, now.Add(wait-1))
				require.Equal(t, wait, next(t, table, now))
				now = now.Add(wait)
			}
			require.Equal(t, engineA, serve(t, table, now))
			fail(t, table, now, fault)
			require.Equal(t, 100*ms, next(t, table, now))
		})
	}
	t.Run("not one that hangs", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		fail(t, table, t0, balance.Timeout)
		require.Equal(t, 2*time.Second, next(t, table, t0))
	})
	t.Run("all are down", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		fail(t, table, t0, balance.Dial)
		require.Equal(t, 2*time.Second, next(t, table, t0), "the other one is there")
		fail(t, table, t0.Add(ms), balance.Dial)
		require.Equal(t, 99*ms, next(t, table, t0.Add(ms)))
		now := t0.Add(100 * ms)
		require.Equal(t, engineA, take(t, table, now).ServiceID)
		busy(t, table, now)
		require.Equal(t, ms, next(t, table, now))
		p := take(t, table, now.Add(ms))
		require.Equal(t, engineB, p.ServiceID)
		table.Answered(now.Add(ms), p)
		require.Equal(t, 1, open(table, now.Add(ms)))
	})
	t.Run("the other one drains", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		table.Direct(t0, draining("m:v:b"))
		fail(t, table, t0, balance.Dial)
		require.Equal(t, 100*ms, next(t, table, t0))
	})
	t.Run("as it was set", func(t *testing.T) {
		table, err := balance.New(balance.Config{Breaker: balance.BreakerConfig{Base: 50 * ms, Max: 70 * ms}})
		require.NoError(t, err)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		fail(t, table, t0, balance.Dial)
		require.Equal(t, 50*ms, next(t, table, t0), "never more than Base")
		fail(t, table, t0.Add(time.Second), balance.Content)
		require.Equal(t, 50*ms, next(t, table, t0.Add(time.Second)), "nobody else can serve")
		table.Update(t0.Add(time.Second), []replica.Engine{eng("a"), eng("b")}, false)
		require.Equal(t, engineB, take(t, table, t0.Add(time.Second+60*ms)).ServiceID, "somebody else can")
		require.Equal(t, engineA, take(t, table, t0.Add(time.Second+70*ms)).ServiceID)
	})
}

func TestNextProbeOfNothing(t *testing.T) {
	table := newTable(t)
	_, ok := table.NextProbe(t0, "m")
	require.False(t, ok)
	table.Update(t0, []replica.Engine{eng("a")}, false)
	_, ok = table.NextProbe(t0, "m")
	require.False(t, ok, "closed")
	fail(t, table, t0, balance.Dial)
	next(t, table, t0)
	table.Update(t0, []replica.Engine{eng("a", critical)}, false)
	_, ok = table.NextProbe(t0, "m")
	require.False(t, ok, "it may not serve at all")
}

func TestAnotherProcessStartsClosed(t *testing.T) {
	for name, change := range map[string]func(*replica.Engine){"token": token(9), "address": port(9)} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			table.Update(t0, []replica.Engine{eng("a", token(8))}, false)
			fail(t, table, t0, balance.Reset)
			table.Update(t0, []replica.Engine{eng("a", token(8))}, false)
			busy(t, table, t0)
			table.Update(t0, []replica.Engine{eng("a", token(8), change)}, false)
			require.Equal(t, engineA, take(t, table, t0).ServiceID)
		})
	}
	t.Run("listed anew", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		fail(t, table, t0, balance.Reset)
		table.Update(t0, nil, false)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		require.Equal(t, engineA, take(t, table, t0).ServiceID)
	})
	t.Run("a request of the old one", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		old := take(t, table, t0)
		table.Update(t0, []replica.Engine{eng("a", token(1))}, false)
		table.Failed(t0, old, balance.Reset)
		table.Release(t0, old)
		require.Zero(t, open(table, t0))
		require.Equal(t, engineA, take(t, table, t0).ServiceID)
	})
}

// TestGivenUp: clients that wait for less than an engine may take cannot open its breaker,
// unless it answers nobody for that long.
func TestGivenUp(t *testing.T) {
	const patience = time.Minute
	giveUp := func(table *balance.Table, at time.Time) bool {
		p := take(t, table, at)
		defer table.Release(at.Add(time.Second), p)
		return table.GivenUp(at.Add(time.Second), p, patience)
	}
	fresh := func() *balance.Table {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(4))}, false)
		return table
	}
	t.Run("many in a short time are no news", func(t *testing.T) {
		table := fresh()
		for range 1000 {
			require.False(t, giveUp(table, t0))
		}
		require.Zero(t, open(table, t0.Add(time.Second)))
	})
	t.Run("few in a long time are no news", func(t *testing.T) {
		table := fresh()
		for i := range 4 {
			require.False(t, giveUp(table, t0.Add(time.Duration(i)*time.Hour)))
		}
		require.True(t, giveUp(table, t0.Add(4*time.Hour)), "the fifth in a row is")
	})
	t.Run("silence for as long as an engine may take", func(t *testing.T) {
		table := fresh()
		for i := range 59 {
			require.False(t, giveUp(table, t0.Add(time.Duration(i)*time.Second)), i)
		}
		require.True(t, giveUp(table, t0.Add(59*time.Second)), "a minute after the first was sent")
		require.Equal(t, 1, open(table, t0.Add(time.Minute)))
	})
	t.Run("one answer starts it anew", func(t *testing.T) {
		table := fresh()
		for i := range 59 {
			require.False(t, giveUp(table, t0.Add(time.Duration(i)*time.Second)), i)
		}
		serve(t, table, t0.Add(59*time.Second))
		for i := range 59 {
			require.False(t, giveUp(table, t0.Add(time.Duration(60+i)*time.Second)), i)
		}
		require.True(t, giveUp(table, t0.Add(119*time.Second)))
	})
	t.Run("the engine that is tried again", func(t *testing.T) {
		table := fresh()
		require.True(t, fail(t, table, t0, balance.Timeout))
		for i := range 5 {
			require.False(t, giveUp(table, t0.Add(time.Duration(2+20*i)*time.Second)), "it was open before")
		}
		_, err := table.Pick(t0.Add(83*time.Second), balance.Request{Model: "m"})
		require.ErrorIs(t, err, balance.ErrBusy, "the last one that was given up put the next probe off")
	})
	t.Run("an answer that came counts for the engine", func(t *testing.T) {
		table := fresh()
		for i := range 10 {
			at := t0.Add(time.Duration(i) * time.Hour)
			p := take(t, table, at)
			table.Answered(at, p)
			require.False(t, table.GivenUp(at, p, patience))
			table.Release(at, p)
		}
	})
}
