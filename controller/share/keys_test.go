package share_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/share"
)

// user is a key with so many requests at gateways, by name.
type user struct {
	weight float64
	needs  map[string]int
}

// fill divides whole by weighted max-min fairness, by halving.
func fill(whole float64, needs, weights []float64) []float64 {
	parts := make([]float64, len(needs))
	at := func(level float64) (sum float64) {
		for i := range needs {
			parts[i] = min(needs[i], level*weights[i])
			sum += parts[i]
		}
		return sum
	}
	low, high := 0.0, 1e6
	for range 50 {
		if at((low+high)/2) < whole {
			low = (low + high) / 2
		} else {
			high = (low + high) / 2
		}
	}
	at(low)
	return parts
}

// office are gateways that obey, and whose queues serve keys by their weights.
type office struct {
	t      require.TestingT
	ledger *share.Ledger
	slots  []int // of each replica
	users  map[string]user
	order  uint64
	held   map[string][]int
	parts  map[string]map[string]float64
}

// report has a gateway report and obey. The needs of a replica are as a gateway tells them: what it has
// there, and all that waits.
func (o *office) report(name string) {
	var keys []api.KeyDemand
	need := 0
	for _, key := range slices.Sorted(maps.Keys(o.users)) {
		if n := o.users[key].needs[name]; n > 0 {
			keys = append(keys, api.KeyDemand{Model: "m", Key: key, Weight: o.users[key].weight, Need: n})
			need += n
		}
	}
	if o.held[name] == nil {
		o.held[name] = make([]int, len(o.slots))
	}
	held, all := o.held[name], 0
	for _, n := range held {
		all += n
	}
	waiting := max(need-all, 0)
	var claims []api.ShareClaim
	for i, slots := range o.slots {
		used := min(held[i], need)
		need -= used
		claims = append(claims, api.ShareClaim{Kind: api.ShareSlots, Name: fmt.Sprint("m:v:", i), Of: slots, Held: held[i], Used: used, Need: used + waiting})
	}
	o.order++
	shares, parts, newer := o.ledger.Report(share.Report{Gateway: name, Sequence: o.order, Claims: claims, Keys: keys}, always)
	if !newer || len(parts) != len(keys) {
		require.Fail(o.t, "no answer", "%v", parts)
	}
	o.parts[name] = map[string]float64{}
	for i, k := range keys {
		if !(parts[i] > 0 && parts[i] <= 1) {
			require.Fail(o.t, "wrong part", "%s of %s at %s: %g", k.Key, k.Model, name, parts[i])
		}
		o.parts[name][k.Key] = parts[i]
	}
	for i := range shares {
		held[i] = shares[i].Units
	}
	for i, slots := range o.slots {
		sum := 0
		for _, held := range o.held {
			sum += held[i]
		}
		if sum > slots {
			require.LessOrEqual(o.t, sum, slots, "never more than the engine has")
		}
	}
}

// served returns how many slots each key has.
func (o *office) served() map[string]float64 {
	out := map[string]float64{}
	for name, held := range o.held {
		var keys []string
		var needs, weights []float64
		whole := 0.0
		for _, n := range held {
			whole += float64(n)
		}
		for key, part := range o.parts[name] {
			keys, needs, weights = append(keys, key), append(needs, float64(o.users[key].needs[name])), append(weights, o.users[key].weight*part)
		}
		for i, n := range fill(whole, needs, weights) {
			out[keys[i]] += n
		}
	}
	return out
}

func newOffice(t require.TestingT, users map[string]user, slots ...int) *office {
	return &office{t: t, ledger: share.New(), slots: slots, users: users, held: map[string][]int{}, parts: map[string]map[string]float64{}}
}

// TestAKeyThatUsesOneGateway has its fair share of all slots, and not of that gateway's.
func TestAKeyThatUsesOneGateway(t *testing.T) {
	one := func(n int, at ...string) map[string]int {
		out := map[string]int{}
		for _, name := range at {
			out[name] = n
		}
		return out
	}
	for name, tc := range map[string]struct {
		users map[string]user
		want  map[string]float64
	}{
		"one beside three":       {map[string]user{"a": {1, one(40, "g1")}, "b": {1, one(40, "g2")}, "c": {1, one(40, "g2")}, "d": {1, one(40, "g2")}}, map[string]float64{"a": 4, "b": 4, "c": 4, "d": 4}},
		"one beside one at both": {map[string]user{"a": {1, one(40, "g1")}, "b": {1, one(40, "g1", "g2")}}, map[string]float64{"a": 8, "b": 8}},
		"weights":                {map[string]user{"a": {3, one(40, "g1")}, "b": {1, one(40, "g1", "g2")}}, map[string]float64{"a": 12, "b": 4}},
		"a small need is met":    {map[string]user{"a": {1, one(2, "g1")}, "b": {1, one(40, "g1", "g2")}}, map[string]float64{"a": 2, "b": 14}},
		"enough for all":         {map[string]user{"a": {1, one(4, "g1")}, "b": {1, one(5, "g1", "g2")}}, map[string]float64{"a": 4, "b": 10}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t, tc.users, 16)
			for range 6 {
				o.report("g1")
				o.report("g2")
			}
			got := o.served()
			for key, want := range tc.want {
				require.InDelta(t, want, got[key], max(0.1*want, 0.5), "%s of %v, shares %v", key, got, o.held)
			}
		})
	}
}

// TestKeysHaveTheirFairShare: whichever gateways keys use, each has its fair share of the slots within a
// tenth, or within two slots: slots cannot be divided, and shares stay while needs barely
// change. Nothing is idle that a request waits for, but for a slot
// of another replica: a gateway that lacks one claims it at each.
func TestKeysHaveTheirFairShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gateways := []string{"g1", "g2", "g3", "g4"}[:rapid.IntRange(1, 4).Draw(t, "gateways")]
		slots := rapid.SliceOfN(rapid.IntRange(64, 256), 1, 3).Draw(t, "slots")
		users := map[string]user{}
		for i := range rapid.IntRange(1, 12).Draw(t, "keys") {
			u := user{weight: rapid.SampledFrom([]float64{0.5, 1, 1, 1, 2, 10}).Draw(t, "weight"), needs: map[string]int{}}
			for _, g := range gateways {
				u.needs[g] = rapid.SampledFrom([]int{0, 0, 1, 10, 100, 1000}).Draw(t, "need")
			}
			users[fmt.Sprint("k", i)] = u
		}
		o := newOffice(t, users, slots...)
		for range 12 {
			for _, g := range gateways {
				o.report(g)
			}
		}
		whole, need := 0, 0
		for _, n := range slots {
			whole += n
		}
		names := slices.Sorted(maps.Keys(users))
		var needs, weights []float64
		for _, name := range names {
			n := 0
			for _, g := range gateways {
				n += users[name].needs[g]
			}
			need += n
			needs, weights = append(needs, float64(n)), append(weights, users[name].weight)
		}
		loose := float64(len(slots) - 1)
		got, sum := o.served(), 0.0
		for _, n := range got {
			sum += n
		}
		require.InDelta(t, math.Min(float64(whole), float64(need)), sum, 0.01+loose, "work conserving")
		for i, fair := range fill(float64(whole), needs, weights) {
			require.InDelta(t, fair, got[names[i]], max(0.1*fair, 2)+loose, "%s of %v", names[i], users)
		}
	})
}

// TestKeysHaveTheirFairShareOverTime: keys that have much to do have their fair shares of few slots, too, which
// gateways can divide only by taking turns. What each has on average is within a tenth of its fair share, or a
// tenth of a slot.
func TestKeysHaveTheirFairShareOverTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gateways := []string{"g1", "g2", "g3", "g4"}[:rapid.IntRange(1, 4).Draw(t, "gateways")]
		slots := rapid.IntRange(8, 32).Draw(t, "slots")
		users := map[string]user{}
		for i := range rapid.IntRange(2, 8).Draw(t, "keys") {
			u := user{weight: rapid.SampledFrom([]float64{0.5, 1, 1, 1, 2, 3}).Draw(t, "weight"), needs: map[string]int{}}
			for _, g := range gateways {
				u.needs[g] = rapid.SampledFrom([]int{0, 0, 20, 100}).Draw(t, "need")
			}
			users[fmt.Sprint("k", i)] = u
		}
		o := newOffice(t, users, slots)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		round := func() {
			for _, i := range random.Perm(len(gateways)) {
				o.report(gateways[i])
			}
		}
		for range 20 {
			round()
		}
		sum, all := map[string]float64{}, 0.0
		const rounds = 400
		for range rounds {
			round()
			for key, n := range o.served() {
				sum[key] += n / rounds
				all += n / rounds
			}
		}
		names := slices.Sorted(maps.Keys(users))
		var needs, weights []float64
		need := 0.0
		for _, name := range names {
			n := 0.0
			for _, g := range gateways {
				n += float64(users[name].needs[g])
			}
			need += n
			needs, weights = append(needs, n), append(weights, users[name].weight)
		}
		whole := min(float64(slots), need)
		require.GreaterOrEqual(t, all, 0.9*whole)
		for i, fair := range fill(all, needs, weights) {
			require.InDelta(t, fair, sum[names[i]], 0.1*max(fair, 1), "%s of %v, shares %v", names[i], users, o.held)
		}
	})
}

// TestDemandsAreForgotten with their gateway, and replaced by its next report.
func TestDemandsAreForgotten(t *testing.T) {
	users := map[string]user{"a": {1, map[string]int{"g1": 30, "g2": 10}}}
	o := newOffice(t, users, 16)
	o.report("g1")
	o.report("g2")
	o.report("g1")
	require.InDelta(t, 0.75, o.parts["g1"]["a"], 1e-9)
	o.ledger.Drop("g2")
	delete(o.held, "g2")
	o.report("g1")
	require.InDelta(t, 1.0, o.parts["g1"]["a"], 1e-9)
}
