package optimizer_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/optimizer"
)

func poisson(perSecond float64) optimizer.Traffic {
	return optimizer.Traffic{PerSecond: perSecond, ArrivalSCV: 1, ServiceSCV: 1}
}

// level is a station of c servers with a mean service of one second.
func level(c int) []optimizer.Group {
	return []optimizer.Group{{Replicas: 1, Slots: c, Curve: optimizer.Curve{BaseSeconds: 1}}}
}

// erlangC sums the series of the textbook in fractions.
func erlangC(c int, load *big.Rat) float64 {
	term, sum := big.NewRat(1, 1), new(big.Rat)
	for j := range c {
		sum.Add(sum, term)
		term = new(big.Rat).Mul(term, new(big.Rat).Quo(load, big.NewRat(int64(j+1), 1)))
	}
	free := new(big.Rat).Quo(new(big.Rat).Sub(big.NewRat(int64(c), 1), load), big.NewRat(int64(c), 1))
	last := new(big.Rat).Quo(term, free)
	f, _ := new(big.Rat).Quo(last, sum.Add(sum, last)).Float64()
	return f
}

func TestQueueIsErlangC(t *testing.T) {
	for name, c := range map[string]struct {
		servers int
		load    float64
		want    float64
	}{
		"one server, half full": {1, 0.5, 0.5},
		"two servers":           {2, 1, 1.0 / 3},
		"three servers":         {3, 2, 4.0 / 9},
		"five servers":          {5, 4, 0.5541},
		"ten servers":           {10, 8, 0.4092},
		"nearly full":           {1, 0.99, 0.99},
		"idle":                  {4, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := optimizer.Queue(poisson(c.load), level(c.servers))
			require.True(t, w.Stable)
			require.InDelta(t, c.want, w.Delayed, 1e-4)
			require.InDelta(t, c.want/(float64(c.servers)-c.load), w.MeanSeconds, 1e-2)
		})
	}
	for _, c := range []int{1, 2, 7, 64, 300} {
		for _, tenths := range []int64{1, 5, 8, 9} {
			load := new(big.Rat).Mul(big.NewRat(int64(c), 1), big.NewRat(tenths, 10))
			f, _ := load.Float64()
			require.InEpsilon(t, erlangC(c, load), optimizer.Queue(poisson(f), level(c)).Delayed, 1e-9, "%d servers, %d0 %%", c, tenths)
		}
	}
}

func TestQueueTail(t *testing.T) {
	w := optimizer.Queue(poisson(1), level(2))
	require.InDelta(t, 2.0/3, w.Within(0), 1e-12)
	require.InDelta(t, 1-math.Exp(-3)/3, w.Within(3), 1e-12)
	require.InDelta(t, 2.0/3, w.Within(-1), 1e-12)

	t.Run("constant service halves the wait", func(t *testing.T) {
		constant := optimizer.Queue(optimizer.Traffic{PerSecond: 1, ArrivalSCV: 1}, level(2))
		require.InDelta(t, w.MeanSeconds/2, constant.MeanSeconds, 1e-12)
	})
	t.Run("no variability at all is not believed", func(t *testing.T) {
		none := optimizer.Queue(optimizer.Traffic{PerSecond: 1}, level(2))
		require.InDelta(t, w.MeanSeconds/2, none.MeanSeconds, 1e-12)
	})
}

func TestQueueThatCannotKeepUp(t *testing.T) {
	for name, w := range map[string]optimizer.Wait{
		"exactly full": optimizer.Queue(poisson(3), level(3)),
		"overfull":     optimizer.Queue(poisson(30), level(3)),
		"no server":    optimizer.Queue(poisson(1), nil),
	} {
		require.False(t, w.Stable, name)
		require.Equal(t, 1.0, w.Delayed, name)
		require.Zero(t, w.Within(1e9), name)
	}
}

// simulate runs requests one by one through replicas that slow down with what they run,
// behind one queue. Service is exponential in work; a free slot of the emptiest replica
// takes the next request. It knows nothing of chains or formulas.
func simulate(rng *rand.Rand, gap func() float64, n int, g optimizer.Group, target float64) (delayed, late float64) {
	var queue []float64
	running := make([]int, g.Replicas)
	total, now, next := 0, 0.0, gap()
	served := 0
	const warm = 2000
	count := func(wait float64) {
		if served++; served > warm && wait > 0 {
			delayed++
			if wait > target {
				late++
			}
		}
	}
	for served < n {
		finish := 0.0
		for _, k := range running {
			if k > 0 {
				finish += float64(k) / g.Curve.Seconds(float64(k))
			}
		}
		step := math.Inf(1)
		if finish > 0 {
			step = rng.ExpFloat64() / finish
		}
		if now+step >= next {
			now = next
			next += gap()
			if total == g.Replicas*g.Slots {
				queue = append(queue, now)
				continue
			}
			least := 0
			for i, k := range running {
				if k < running[least] {
					least = i
				}
			}
			running[least]++
			total++
			count(0)
			continue
		}
		now += step
		pick := rng.Float64() * finish
		for i, k := range running {
			if k == 0 {
				continue
			}
			if pick -= float64(k) / g.Curve.Seconds(float64(k)); pick <= 0 || i == len(running)-1 {
				if len(queue) > 0 {
					count(now - queue[0])
					queue = queue[1:]
				} else {
					running[i]--
					total--
				}
				break
			}
		}
	}
	m := float64(n - warm)
	return delayed / m, late / m
}

func TestQueueAgainstSimulation(t *testing.T) {
	for name, c := range map[string]struct {
		group     optimizer.Group
		perSecond float64
		target    float64
	}{
		"level":           {optimizer.Group{Replicas: 2, Slots: 4, Curve: optimizer.Curve{BaseSeconds: 1}}, 6.8, 0.5},
		"one slows down":  {optimizer.Group{Replicas: 1, Slots: 8, Curve: optimizer.Curve{BaseSeconds: 1, SecondsPerRunning: 0.1}}, 3.8, 0.5},
		"many slow down":  {optimizer.Group{Replicas: 4, Slots: 8, Curve: optimizer.Curve{BaseSeconds: 1, SecondsPerRunning: 0.25}}, 9.8, 0.5},
		"lightly loaded":  {optimizer.Group{Replicas: 3, Slots: 2, Curve: optimizer.Curve{BaseSeconds: 0.5, SecondsPerRunning: 0.5}}, 2.2, 1},
		"all in sequence": {optimizer.Group{Replicas: 2, Slots: 3, Curve: optimizer.Curve{SecondsPerRunning: 1}}, 1.5, 1},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			delayed, late := simulate(rng, func() float64 { return rng.ExpFloat64() / c.perSecond }, 120_000, c.group, c.target)
			w := optimizer.Queue(poisson(c.perSecond), []optimizer.Group{c.group})
			require.InDelta(t, delayed, w.Delayed, 0.1*delayed+0.01)
			require.InDelta(t, late, 1-w.Within(c.target), 0.15*late+0.01)
		})
	}
}

// Bursts: gaps of two kinds (hyperexponential, squared variation 4). The approximation
// must see them, and must not be far too hopeful.
func TestQueueWithBurstsAgainstSimulation(t *testing.T) {
	const scv, perSecond = 4.0, 24.0
	rng := rand.New(rand.NewPCG(3, 4))
	p := (1 + math.Sqrt((scv-1)/(scv+1))) / 2
	gap := func() float64 {
		if rng.Float64() < p {
			return rng.ExpFloat64() / (2 * p * perSecond)
		}
		return rng.ExpFloat64() / (2 * (1 - p) * perSecond)
	}
	g := optimizer.Group{Replicas: 4, Slots: 8, Curve: optimizer.Curve{BaseSeconds: 1}}
	delayed, late := simulate(rng, gap, 200_000, g, 0.5)
	burst := optimizer.Queue(optimizer.Traffic{PerSecond: perSecond, ArrivalSCV: scv, ServiceSCV: 1}, []optimizer.Group{g})
	smooth := optimizer.Queue(poisson(perSecond), []optimizer.Group{g})
	require.Greater(t, burst.Delayed, smooth.Delayed)
	require.InDelta(t, delayed, burst.Delayed, 0.3*delayed)
	require.Greater(t, 1-burst.Within(0.5), 0.9*late)
	require.Less(t, 1-burst.Within(0.5), 2*late)
}

func anyGroup(t *rapid.T, name string) optimizer.Group {
	return optimizer.Group{
		Replicas: rapid.IntRange(0, 6).Draw(t, name+" replicas"),
		Slots:    rapid.IntRange(1, 40).Draw(t, name+" slots"),
		Curve: optimizer.Curve{
			BaseSeconds:       rapid.Float64Range(0.01, 10).Draw(t, name+" base"),
			SecondsPerRunning: rapid.Float64Range(0, 1).Draw(t, name+" slope"),
		},
	}
}

func TestPropertyQueueIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := anyGroup(t, "a")
		g.Replicas++
		tr := poisson(rapid.Float64Range(0, 60).Draw(t, "arrivals"))
		tr.ArrivalSCV = rapid.Float64Range(0, 8).Draw(t, "arrival scv")
		tr.ServiceSCV = rapid.Float64Range(0, 8).Draw(t, "service scv")
		at := rapid.Float64Range(0, 10).Draw(t, "wait")
		p := optimizer.Queue(tr, []optimizer.Group{g}).Within(at)
		require.True(t, p >= 0 && p <= 1)

		more := tr
		more.PerSecond *= 1.01
		require.LessOrEqual(t, optimizer.Queue(more, []optimizer.Group{g}).Within(at), p+1e-12, "more arrivals")
		more = tr
		more.ServiceSCV++
		require.LessOrEqual(t, optimizer.Queue(more, []optimizer.Group{g}).Within(at), p+1e-12, "more variable service")
		slow := g
		slow.Curve.BaseSeconds *= 1.1
		require.LessOrEqual(t, optimizer.Queue(tr, []optimizer.Group{slow}).Within(at), p+1e-12, "slower service")
		if tr.ArrivalSCV <= 1 {
			wide := g
			wide.Replicas++
			require.GreaterOrEqual(t, optimizer.Queue(tr, []optimizer.Group{wide}).Within(at), p-1e-12, "one more replica")
		}
	})
}
