package gatewayreport_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

// claims is a report of a gateway with a need of one replica's 16 slots.
func claims(gateway string, sequence uint64, held, used, need int) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Sequence: sequence,
		Shares: []api.ShareClaim{{Kind: api.ShareSlots, Name: r1, Of: 16, Held: held, Used: used, Need: need}}}
}

// slots returns the units of the only share in an answer, 0 if it has none.
func slots(t require.TestingT, orders api.GatewayOrders) int {
	if len(orders.Shares) == 0 {
		return 0
	}
	require.Len(t, orders.Shares, 1)
	require.Equal(t, api.GatewayShare{Kind: api.ShareSlots, Name: r1, Units: orders.Shares[0].Units}, orders.Shares[0])
	return orders.Shares[0].Units
}

func TestSharesAreInTheAnswer(t *testing.T) {
	s, c := listening()
	require.Equal(t, 16, slots(t, answer(s, claims("a", 1, 0, 0, 1))), "it is alone")
	require.Equal(t, 0, slots(t, answer(s, claims("b", 1, 0, 0, 1))))
	require.Equal(t, 8, slots(t, answer(s, claims("a", 2, 16, 1, 1))))
	require.Equal(t, 8, slots(t, answer(s, claims("a", 1, 16, 16, 16))), "it comes late: the answer is that to the last one")
	require.Equal(t, 0, slots(t, answer(s, claims("b", 2, 0, 0, 1))))
	require.Equal(t, 8, slots(t, answer(s, claims("a", 3, 8, 1, 1))))
	require.Equal(t, 8, slots(t, answer(s, claims("b", 3, 0, 0, 1))))
	c.advance(shareTTL - 1)
	require.Equal(t, 8, slots(t, answer(s, claims("b", 4, 8, 0, 1))))
	c.advance(1)
	require.Equal(t, 16, slots(t, answer(s, claims("b", 5, 8, 0, 1))), "a is silent for one time to live")
	r := claims("b", 6, 16, 0, 0)
	r.Shares = nil
	require.Empty(t, answer(s, r).Shares)
}

func TestSharesDoNotGrowInTheFirstTimeToLiveOfATerm(t *testing.T) {
	s, c := listening()
	require.Equal(t, 16, slots(t, answer(s, claims("a", 1, 0, 0, 1))))
	s.Begin(1)
	require.Equal(t, 12, slots(t, answer(s, claims("a", 2, 12, 0, 99))), "another gateway may hold the rest")
	c.advance(shareTTL - 1)
	require.Equal(t, 12, slots(t, answer(s, claims("a", 3, 12, 0, 99))))
	c.advance(1)
	require.Equal(t, 16, slots(t, answer(s, claims("a", 4, 12, 0, 99))))
}

// A gateway keeps a share of 0 while the controller is away, so that is not given before the leader knows that
// others have the slots.
func TestNoSharesOfSlotsAreNotGivenInTheFirstTimeToLiveOfATerm(t *testing.T) {
	s, c := listening()
	s.Begin(1)
	r := claims("a", 1, 0, 0, 1)
	r.Shares = append(r.Shares, api.ShareClaim{Kind: api.ShareQueue, Name: "m", Of: 4})
	queue := api.GatewayShare{Kind: api.ShareQueue, Name: "m"}
	require.Equal(t, []api.GatewayShare{queue}, answer(s, r).Shares)
	c.advance(shareTTL)
	require.Equal(t, 16, slots(t, answer(s, claims("b", 1, 16, 0, 99))))
	require.Equal(t, []api.GatewayShare{{Kind: api.ShareSlots, Name: r1}}, answer(s, claims("a", 2, 0, 0, 1)).Shares)
}

func TestSharesAreNoNews(t *testing.T) {
	s, _ := listening()
	require.NoError(t, s.Put(claims("a", 1, 0, 0, 1)))
	ch := s.Changed()
	require.NoError(t, s.Put(claims("a", 2, 16, 16, 99)))
	select {
	case <-ch:
		t.Fatal("the reconciler does not look at shares")
	default:
	}
}

func TestValidateNamesEveryErrorOfShares(t *testing.T) {
	require.NoError(t, gatewayreport.Validate(claims("a", 1, 0, 0, 1<<30)))
	require.ErrorContains(t, gatewayreport.Validate(claims("a", 0, 0, 0, 0)), "sequence is 0: must be 1 or more in a report with shares")
	for want, c := range map[string]api.ShareClaim{
		`share of cores "m": kind is "cores": must be one of [slots queue concurrency rate tokens budget]`: {Kind: "cores", Name: "m"},
		`share of queue "": name is empty`:          {Kind: api.ShareQueue},
		`share of rate "k": of is 60: must be 1000`: {Kind: api.ShareRate, Name: "k", Of: 60},
		`share of tokens "k": of is 0: must be 100`: {Kind: api.ShareTokens, Name: "k"},
		`share of queue "m": of is -1, held is 0`:   {Kind: api.ShareQueue, Name: "m", Of: -1},
		`held is -1, used is 0 and need is 0: must`: {Kind: api.ShareQueue, Name: "m", Held: -1},
		`used is -1 and need is 0: must be 0 to 10`: {Kind: api.ShareQueue, Name: "m", Used: -1},
		`need is 1073741825: must be 0 to 10737418`: {Kind: api.ShareQueue, Name: "m", Need: 1<<30 + 1},
		`share of concurrency "k": duplicate`:       {Kind: api.ShareConcurrency, Name: "k"},
	} {
		r := api.GatewayReport{Gateway: "a", Index: 1, Sequence: 1, Shares: []api.ShareClaim{{Kind: api.ShareConcurrency, Name: "k"}, {Kind: api.ShareQueue, Name: "k"}, c}}
		require.ErrorContains(t, gatewayreport.Validate(r), want)
	}
	r := claims("a", 1, 0, 0, 0)
	r.Shares = make([]api.ShareClaim, api.MaxReportShares+1)
	require.ErrorContains(t, gatewayreport.Validate(r), "4001 shares: must be at most 4000")
}

func TestSharesCountAsBytes(t *testing.T) {
	s, _ := listening()
	r := claims("a", 1, 0, 0, 0)
	r.Shares[0].Name = strings.Repeat("x", 65<<20)
	require.ErrorIs(t, s.Put(r), gatewayreport.ErrTooManyBytes)
	r.Shares = make([]api.ShareClaim, 500_000)
	require.ErrorIs(t, s.Put(r), gatewayreport.ErrTooManyBytes)
	require.Equal(t, 16, slots(t, answer(s, claims("b", 1, 0, 0, 1))), "it has not changed anything")
}

// BenchmarkPutShares is one report of 1,000 shares, from 100 gateways with needs that change.
func BenchmarkPutShares(b *testing.B) {
	s, c := listening()
	all := make([]api.GatewayReport, 100)
	for g := range all {
		all[g] = report(fmt.Sprint("gateway-", g), 1)
		for i := range 1000 {
			all[g].Shares = append(all[g].Shares, api.ShareClaim{Kind: api.ShareSlots, Name: fmt.Sprint("model:variant:", i), Of: 256})
		}
	}
	n := 0
	put := func() {
		r := &all[n%len(all)]
		n++
		for i := range r.Shares {
			r.Shares[i].Need = (i*7 + n*13) % 40
		}
		r.Sequence++
		if err := s.Put(*r); err != nil {
			b.Fatal(err)
		}
		for i, one := range s.Orders(r.Gateway).Shares {
			r.Shares[i].Held = one.Units
		}
		c.advance(time.Millisecond)
	}
	for range 1000 {
		put()
	}
	b.ReportAllocs()
	for b.Loop() {
		put()
	}
}

func TestValidateNamesEveryFaultOfKeys(t *testing.T) {
	good := []api.KeyDemand{{Model: "m", Key: "k", Weight: 1, Need: 1}, {Model: "m", Weight: 0.001, Need: 7}, {Model: "n", Key: "k", Weight: 1000, Need: 1}}
	require.NoError(t, gatewayreport.Validate(api.GatewayReport{Gateway: "g", Keys: good}))
	err := gatewayreport.Validate(api.GatewayReport{Gateway: "g", Keys: []api.KeyDemand{
		{Model: "", Key: "k", Weight: 1, Need: 1}, {Model: "m", Key: "a b", Weight: math.NaN(), Need: 0}, {Model: "m", Key: "k", Weight: -1, Need: -1}, good[0],
	}})
	for _, want := range []string{`demand of key "k" for model "": model: name is empty`, `demand of key "a b" for model "m": name is "a b"`, "weight is NaN: must be more than 0",
		"need is 0: must be 1 to", "weight is -1", "need is -1", `demand of key "k" for model "m": duplicate`} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, gatewayreport.Validate(api.GatewayReport{Gateway: "g", Keys: make([]api.KeyDemand, api.MaxReportKeys+1)}), "demand of 257 keys: must be at most 256")
}
