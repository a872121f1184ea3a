package share_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/share"
)

// always lets shares grow.
func always(api.ShareKind) bool { return true }

// gateways are gateways with one resource, each of which obeys each answer at once.
type gateways struct {
	t      require.TestingT
	ledger *share.Ledger
	whole  int
	grow   bool
	order  uint64
	claims map[string]*api.ShareClaim
}

func newGateways(t require.TestingT, whole int) *gateways {
	return &gateways{t: t, ledger: share.New(), whole: whole, grow: true, claims: map[string]*api.ShareClaim{}}
}

// need reports a gateway's need, and returns its share. It uses what it can.
func (g *gateways) need(name string, need int) int {
	return g.report(name, need, false)
}

func (g *gateways) report(name string, need int, draining bool) int {
	c := g.claims[name]
	if c == nil {
		c = &api.ShareClaim{Kind: api.ShareSlots, Name: "m:v:1"}
		g.claims[name] = c
	}
	c.Of, c.Need, c.Used = g.whole, need, min(need, c.Held)
	g.order++
	shares, _, newer := g.ledger.Report(share.Report{Gateway: name, Sequence: g.order, Draining: draining, Claims: []api.ShareClaim{*c}}, func(api.ShareKind) bool { return g.grow })
	require.True(g.t, newer)
	require.Len(g.t, shares, 1)
	require.Equal(g.t, api.GatewayShare{Kind: c.Kind, Name: c.Name, Units: shares[0].Units}, shares[0])
	c.Held = shares[0].Units
	return c.Held
}

func TestAGatewayThatIsAloneHasEverything(t *testing.T) {
	g := newGateways(t, 16)
	require.Equal(t, 16, g.need("a", 0))
	require.Equal(t, 16, g.need("a", 99))
	g.ledger.Drop("a")
	require.Equal(t, 16, g.need("b", 0))
	g.whole = 4
	require.Equal(t, 4, g.need("b", 0))
}

func TestAShareMovesWhenAReportShowsThatItIsFree(t *testing.T) {
	g := newGateways(t, 16)
	require.Equal(t, 16, g.need("a", 16))
	require.Equal(t, 0, g.need("b", 16))
	require.Equal(t, 8, g.need("a", 16))
	require.Equal(t, 0, g.need("b", 16), "a may not have got the answer")
	g.claims["a"].Held = 8
	a := *g.claims["a"]
	a.Of, a.Used, a.Need = 16, 12, 16
	g.order++
	shares, _, _ := g.ledger.Report(share.Report{Gateway: "a", Sequence: g.order, Claims: []api.ShareClaim{a}}, always)
	require.Equal(t, 8, shares[0].Units)
	require.Equal(t, 4, g.need("b", 16), "a has 12 in use")
	require.Equal(t, 8, g.need("a", 16))
	require.Equal(t, 8, g.need("b", 16))
}

func TestTheLeastWholeIsDivided(t *testing.T) {
	g := newGateways(t, 16)
	g.need("a", 16)
	g.whole = 8
	require.Equal(t, 0, g.need("b", 16))
	g.whole = 16
	require.Equal(t, 4, g.need("a", 16))
	g.need("a", 16)
	g.whole = 8
	require.Equal(t, 4, g.need("b", 16))
	g.ledger.Drop("b")
	g.whole = 16
	require.Equal(t, 16, g.need("a", 16))
}

func TestAShareThatWasGivenAwayDoesNotGrow(t *testing.T) {
	g := newGateways(t, 16)
	g.need("a", 16)
	g.ledger.Drop("a")
	require.Equal(t, 16, g.need("b", 6))
	require.Equal(t, 10, g.need("a", 16), "it returns and holds 16: it keeps its fair part only")
	require.Equal(t, 10, g.need("a", 16))
	require.Equal(t, 6, g.need("b", 6))
	require.Equal(t, 6, g.need("b", 6))
	require.Equal(t, 10, g.need("a", 16))
}

func TestNoShareGrowsUntilAllHaveReported(t *testing.T) {
	g := newGateways(t, 16)
	g.grow = false
	g.claims["a"] = &api.ShareClaim{Kind: api.ShareSlots, Name: "m:v:1", Held: 5}
	require.Equal(t, 5, g.need("a", 16))
	require.Equal(t, 0, g.need("b", 16))
	g.grow = true
	require.Equal(t, 8, g.need("a", 16))
	require.Equal(t, 8, g.need("b", 16))
}

func TestAGatewayThatLeavesGivesBack(t *testing.T) {
	g := newGateways(t, 16)
	g.need("a", 4)
	g.need("b", 4)
	g.need("a", 4)
	g.need("a", 4)
	require.Equal(t, 8, g.need("b", 4))
	require.Equal(t, 4, g.report("a", 4, true), "no room for a burst")
	require.Equal(t, 4, g.report("a", 4, true))
	require.Equal(t, 12, g.need("b", 4))
	g.report("a", 0, true)
	require.Equal(t, 16, g.need("b", 4), "at once")
	require.Equal(t, 0, g.report("a", 0, true))

	// A claim that is left out has no share.
	require.Equal(t, 0, g.need("a", 4))
	g.need("b", 4)
	g.need("b", 4)
	require.Equal(t, 8, g.need("a", 4))
	g.order++
	shares, _, newer := g.ledger.Report(share.Report{Gateway: "a", Sequence: g.order}, always)
	require.True(t, newer)
	require.Empty(t, shares)
	require.Equal(t, 16, g.need("b", 4))
}

func TestReportsThatComeLateChangeNothing(t *testing.T) {
	g := newGateways(t, 16)
	g.need("a", 16)
	late := share.Report{Gateway: "a", Sequence: g.order, Claims: []api.ShareClaim{{Kind: api.ShareSlots, Name: "m:v:1", Of: 16, Need: 16}}}
	g.need("a", 16)
	for range 2 {
		shares, _, newer := g.ledger.Report(late, always)
		require.False(t, newer)
		require.Nil(t, shares)
		late.Sequence++ // the last one, once more
	}
	require.Equal(t, 0, g.need("b", 16), "a still holds everything")
}

func TestResourcesAreApart(t *testing.T) {
	l := share.New()
	claim := func(kind, name string) api.ShareClaim {
		return api.ShareClaim{Kind: kind, Name: name, Of: 10, Need: 10}
	}
	put := func(gateway string, sequence uint64, claims ...api.ShareClaim) (units []int) {
		shares, _, _ := l.Report(share.Report{Gateway: gateway, Sequence: sequence, Claims: claims}, always)
		for i, s := range shares {
			require.Equal(t, claims[i].Kind, s.Kind)
			require.Equal(t, claims[i].Name, s.Name)
			units = append(units, s.Units)
		}
		return units
	}
	require.Equal(t, []int{10, 10}, put("a", 1, claim(api.ShareSlots, "x"), claim(api.ShareQueue, "x")))
	require.Equal(t, []int{0, 10}, put("b", 1, claim(api.ShareQueue, "x"), claim(api.ShareQueue, "y")))
	require.Equal(t, []int{10}, put("a", 2, claim(api.ShareSlots, "y")), "others, one less")
	require.Equal(t, []int{10, 10, 0}, put("b", 2, claim(api.ShareQueue, "x"), claim(api.ShareSlots, "x"), claim(api.ShareSlots, "y")))
}

// TestNeedsThatBarelyDifferMoveNothing: shares that differ a little from the ideal ones stay.
func TestNeedsThatBarelyDifferMoveNothing(t *testing.T) {
	for _, whole := range []int{9, 15, 1000} {
		for _, base := range []int{0, 2, whole} {
			g := newGateways(t, whole)
			moves := 0
			last := map[string]int{}
			for round := range 40 {
				for i, name := range []string{"a", "b", "c"} {
					n := g.need(name, base+(round+i)%2)
					if round > 5 && n != last[name] {
						moves++
					}
					last[name] = n
				}
			}
			require.Zero(t, moves, "whole %d, needs of about %d", whole, base)
			require.Equal(t, whole, last["a"]+last["b"]+last["c"])
		}
	}
}

// TestMetNeedsMoveLittle: needs that are met move a share only if it is far from the ideal one.
func TestMetNeedsMoveLittle(t *testing.T) {
	g := newGateways(t, 160)
	random := rand.New(rand.NewPCG(1, 2))
	last := map[string]int{}
	for round := range 200 {
		for _, name := range []string{"a", "b"} {
			n := g.need(name, 30+random.IntN(20))
			if round > 5 {
				require.Equal(t, last[name], n)
			}
			last[name] = n
		}
	}
	settle := func(a, b int) (int, int) {
		for range 4 {
			g.need("b", b)
			g.need("a", a)
		}
		return g.need("a", a), g.need("b", b)
	}
	a, b := settle(100, 30)
	require.GreaterOrEqual(t, a, 100, "it lacks nothing")
	require.Equal(t, 160, a+b)
	a, b = settle(10, 10)
	require.InDelta(t, 80, a, 20, "about even")
	require.Equal(t, 160, a+b)
}

func TestANeedThatIsOverFreesItsShareAtOnce(t *testing.T) {
	g := newGateways(t, 16)
	g.need("a", 16)
	require.Equal(t, 0, g.need("b", 16))
	require.Equal(t, 0, g.need("a", 0), "b needs all")
	require.Equal(t, 0, g.need("a", 0))
	require.Equal(t, 16, g.need("b", 16))
}

// TestGatewaysTakeTurns: with fewer units than gateways that need one, each gets one.
func TestGatewaysTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.IntRange(1, 4).Draw(t, "whole")
		n := whole + rapid.IntRange(1, 4).Draw(t, "more")
		g := newGateways(t, whole)
		waits := map[string]int{}
		moves := 0
		last := map[string]int{}
		const rounds = 300
		for range rounds {
			sum := 0
			for i := range n {
				name := fmt.Sprint(i)
				need := rapid.IntRange(1, 5).Draw(t, "need")
				units := g.need(name, need)
				require.LessOrEqual(t, units, whole)
				sum += units
				if units != last[name] {
					moves++
				}
				last[name] = units
				if waits[name]++; units > 0 {
					waits[name] = 0
				}
				require.Less(t, waits[name], 24*n, "gateway %s waits", name)
			}
			require.LessOrEqual(t, sum, whole)
		}
		require.LessOrEqual(t, moves, 2*whole*rounds/16+2*n, "a unit stays for a turn")
	})
}

// takesTurns reports whether whole units differ much from the parts of gateways.
func takesTurns(exact []share.Need, units []int) bool {
	for i, n := range units {
		if math.Abs(exact[i].Part-float64(n)) > exact[i].Part/16 {
			return true
		}
	}
	return false
}

// TestSharesSettle: for constant needs, each gateway has its final share after three reports, once
// all needs are known, and keeps it, unless gateways take turns with single units.
func TestSharesSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "gateways")
		g := newGateways(t, rapid.IntRange(n, 50).Draw(t, "whole"))
		var of []int
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			of = rapid.SliceOfN(rapid.IntRange(0, 30), n, n).Draw(t, "needs")
			round := func() {
				for _, i := range random.Perm(n) {
					g.need(fmt.Sprint(i), of[i])
				}
			}
			round()
			round() // a need that shrank a little counts now
			for range 3 {
				round()
			}
			final := make([]int, n)
			sum := 0
			for i := range n {
				final[i] = g.claims[fmt.Sprint(i)].Held
				sum += final[i]
			}
			exact := needs(of...)
			ideal := share.Divide(nil, g.whole, exact)
			if takesTurns(exact, ideal) {
				continue
			}
			require.Equal(t, g.whole, sum, "needs %v, shares %v", of, final)
			for i := range n {
				require.GreaterOrEqual(t, final[i], min(of[i], int(exact[i].Part)), "needs %v, ideal %v, shares %v", of, ideal, final)
				require.InDelta(t, ideal[i], final[i], float64(max(1, g.whole/8)), "needs %v, ideal %v, shares %v", of, ideal, final)
			}
			for range 5 {
				round()
				for i := range n {
					require.Equal(t, final[i], g.claims[fmt.Sprint(i)].Held)
				}
			}
		}
	})
}

// BenchmarkReport is one report of 1,000 claims, of 100 gateways.
func BenchmarkReport(b *testing.B) {
	for name, need := range map[string]func(i, report int) int{
		"at rest":     func(i, _ int) int { return i % 2 },
		"needs move":  func(i, report int) int { return (i*7 + report*13) % 40 },
		"tenth moves": func(i, report int) int { return i%5 + max(0, 1-i%10)*(report%40) },
	} {
		for _, whole := range []int{16, 1000} {
			b.Run(fmt.Sprintf("%s, %d units", name, whole), func(b *testing.B) {
				l := share.New()
				all := make([][]api.ShareClaim, 100)
				for g := range all {
					for i := range 1000 {
						all[g] = append(all[g], api.ShareClaim{Kind: api.ShareSlots, Name: fmt.Sprint("model:variant:", i), Of: whole})
					}
				}
				report := 0
				put := func() {
					g := report % len(all)
					for i := range all[g] {
						all[g][i].Need = need(i+g, report)
					}
					report++
					shares, _, _ := l.Report(share.Report{Gateway: fmt.Sprint("gateway-", g), Sequence: uint64(report), Claims: all[g]}, always)
					for i, s := range shares {
						all[g][i].Held = s.Units
					}
				}
				for range 1000 {
					put()
				}
				b.ReportAllocs()
				for b.Loop() {
					put()
				}
			})
		}
	}
}
