package hpa_test

import (
	"encoding/json"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/hpa"
)

// reference is a direct implementation of rules 4 to 6: it keeps everything for ever and
// computes with rationals.
type reference struct {
	behavior hpa.Behavior
	seen     bool
	last     time.Duration // the caller's clock
	clock    *big.Int      // time that passed, in nanoseconds
	raw      []moment
	changes  []moment
	zeroed   bool
}

type moment struct {
	at *big.Int
	n  int
}

func newReference(b hpa.Behavior) *reference {
	return &reference{behavior: b, clock: new(big.Int)}
}

func (r *reference) pass(now time.Duration) {
	if !r.seen {
		r.last = now
	}
	elapsed := new(big.Int).Sub(big.NewInt(int64(now)), big.NewInt(int64(r.last)))
	if elapsed.Sign() < 0 {
		elapsed.SetInt64(0)
	}
	if gap := big.NewInt(int64(r.behavior.MaxGapSeconds) * 1e9); gap.Sign() > 0 && elapsed.Cmp(gap) > 0 {
		elapsed = gap
	}
	r.last = now
	r.clock = new(big.Int).Add(r.clock, elapsed)
}

// younger tells whether a moment lies less than so many seconds back.
func (r *reference) younger(m moment, seconds int) bool {
	age := new(big.Int).Sub(r.clock, m.at)
	return age.Cmp(new(big.Int).Mul(big.NewInt(int64(seconds)), big.NewInt(1e9))) < 0
}

// stabilized is rule 4.
func (r *reference) stabilized(current, desired int) int {
	u, d := desired, desired
	for _, m := range r.raw {
		if r.younger(m, r.behavior.ScaleUp.StabilizationWindowSeconds) && m.n < u {
			u = m.n
		}
		if r.younger(m, r.behavior.ScaleDown.StabilizationWindowSeconds) && m.n > d {
			d = m.n
		}
	}
	r.raw = append(r.raw, moment{r.clock, desired})
	n := current
	if n < u {
		n = u
	}
	if n > d {
		n = d
	}
	return n
}

// rated is rule 5.
func (r *reference) rated(current, desired int) int {
	rules, up := r.behavior.ScaleDown, desired > current
	if up {
		rules = r.behavior.ScaleUp
	}
	if desired == current || rules.SelectPolicy == "Disabled" {
		return current
	}
	var proposed []int
	for _, p := range rules.Policies {
		start := current
		for _, m := range r.changes {
			if r.younger(m, p.PeriodSeconds) {
				start -= m.n
			}
		}
		share := big.NewRat(int64(p.Value), 100)
		whole := big.NewRat(int64(start), 1)
		switch {
		case p.Type == "Pods" && up:
			proposed = append(proposed, start+p.Value)
		case p.Type == "Pods":
			proposed = append(proposed, start-p.Value)
		case up:
			proposed = append(proposed, ratCeil(whole.Add(whole, share.Mul(share, whole))))
		default:
			// Down: truncated, which is the same as the ceiling's mirror image above 0.
			rest := new(big.Rat).Sub(whole, share.Mul(share, whole))
			proposed = append(proposed, int(new(big.Int).Quo(rest.Num(), rest.Denom()).Int64()))
		}
	}
	slices.Sort(proposed)
	smallest, largest := proposed[0], proposed[len(proposed)-1]
	least := rules.SelectPolicy == "Min"
	if up {
		limit := largest
		if least {
			limit = smallest
		}
		return min(desired, max(limit, current))
	}
	limit := smallest
	if least {
		limit = largest
	}
	return max(desired, min(limit, current))
}

func ratCeil(r *big.Rat) int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() || q.Int64() > hpa.MaxCount {
		return hpa.MaxCount
	}
	return int(q.Int64())
}

// next is rule 6 around the others.
func (r *reference) next(now time.Duration, current, desired, low, high int) int {
	r.pass(now)
	if !r.seen {
		r.seen = true
		r.raw = append(r.raw, moment{r.clock, current})
	}
	var n int
	switch {
	case low > high:
		n = current
	case current == 0 && !r.zeroed && !r.behavior.FromZero:
		n = 0
	case current > high:
		n = high
	case current < low:
		n = low
	default:
		n = min(max(r.rated(current, r.stabilized(current, desired)), low), high)
	}
	if n != current {
		r.changes = append(r.changes, moment{r.clock, n - current})
	}
	if current > 0 {
		r.zeroed = n == 0
	}
	return n
}

func drawRules(t *rapid.T, name string) hpa.Rules {
	r := hpa.Rules{
		StabilizationWindowSeconds: rapid.IntRange(0, 40).Draw(t, name+" window"),
		SelectPolicy:               rapid.SampledFrom([]string{"Max", "Max", "Min", "Disabled", ""}).Draw(t, name+" select"),
	}
	for range rapid.IntRange(1, 3).Draw(t, name+" policies") {
		r.Policies = append(r.Policies, hpa.Policy{
			Type:          rapid.SampledFrom([]string{"Pods", "Percent"}).Draw(t, "type"),
			Value:         rapid.OneOf(rapid.IntRange(1, 8), rapid.IntRange(1, 250)).Draw(t, "value"),
			PeriodSeconds: rapid.IntRange(1, 45).Draw(t, "period"),
		})
	}
	return r
}

func drawBehavior(t *rapid.T) hpa.Behavior {
	b := hpa.Behavior{
		ScaleUp:       drawRules(t, "up"),
		ScaleDown:     drawRules(t, "down"),
		MaxGapSeconds: rapid.SampledFrom([]int{0, 0, 7, 20}).Draw(t, "max gap"),
		FromZero:      rapid.Bool().Draw(t, "from zero"),
	}
	require.NoError(t, b.Validate())
	return b
}

// drawStep is how far the clock moves: mostly whole seconds, so that ages meet the ends of
// windows and periods exactly; now and then a jump.
func drawStep(t *rapid.T) time.Duration {
	return rapid.OneOf(
		rapid.Map(rapid.IntRange(0, 8), func(s int) time.Duration { return time.Duration(s) * time.Second }),
		rapid.Map(rapid.IntRange(0, 8), func(s int) time.Duration { return time.Duration(s) * time.Second }),
		rapid.Map(rapid.Int64Range(0, 5e9), func(ns int64) time.Duration { return time.Duration(ns) }),
		rapid.SampledFrom([]time.Duration{-time.Nanosecond, -time.Hour, time.Hour, 30 * time.Second, -1 << 62, 1 << 62}),
	).Draw(t, "clock moves")
}

// throughJSON is what a restart does to a State.
func throughJSON(t require.TestingT, s hpa.State) hpa.State {
	raw, err := json.Marshal(s)
	require.NoError(t, err)
	var back hpa.State
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, s, back)
	return back
}

// TestNextIsTheRules compares long random histories with the reference: clock jumps, manual
// scaling, changing bounds, answers that could not be carried out, and restarts included.
func TestNextIsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBehavior(t)
		ref := newReference(b)
		var s hpa.State
		current := rapid.IntRange(0, 12).Draw(t, "initial")
		low, high := 1, 30
		now := time.Duration(rapid.Int64Range(-1e18, 1e18).Draw(t, "epoch"))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += drawStep(t)
			if rapid.IntRange(0, 9).Draw(t, "bounds change") == 0 {
				low, high = rapid.IntRange(0, 6).Draw(t, "min"), rapid.IntRange(0, 40).Draw(t, "max")
			}
			if rapid.IntRange(0, 14).Draw(t, "manual") == 0 {
				current = rapid.IntRange(0, 45).Draw(t, "current")
			}
			desired := rapid.IntRange(0, 50).Draw(t, "desired")
			want := ref.next(now, current, desired, low, high)

			after := throughJSON(t, s)
			again := b.Next(&after, now, current, desired, low, high)
			got := b.Next(&s, now, current, desired, low, high)
			require.Equal(t, want, got.Replicas, "%+v", got)
			require.Equal(t, got, again, "a recorded call is replayed")
			require.Equal(t, s, after)
			require.NoError(t, s.Validate())
			require.NotEmpty(t, got.Reason)
			require.Equal(t, current, got.Current)
			require.Equal(t, desired, got.Desired)
			if got.LimitedBy == hpa.LimitNone {
				require.Equal(t, desired, got.Replicas, "what is not limited is followed")
			}
			if rapid.IntRange(0, 14).Draw(t, "fails") == 0 {
				s.Done(s.From)
				if got.Replicas != current {
					ref.changes = ref.changes[:len(ref.changes)-1]
				}
				if current > 0 {
					ref.zeroed = false
				}
				continue
			}
			current = got.Replicas
		}
	})
}

// TestStateStaysSmall: a window keeps no more recommendations than there are counts, and a
// period no more events than happened in it.
func TestStateStaysSmall(t *testing.T) {
	b := hpa.DefaultBehavior()
	b.ScaleUp.StabilizationWindowSeconds = hpa.MaxSeconds
	b.ScaleDown.StabilizationWindowSeconds = hpa.MaxSeconds
	var s hpa.State
	current := 5
	for i := range 5_000 {
		current = b.Next(&s, time.Duration(i)*time.Second, current, 1+i*7919%20, 1, 20).Replicas
		require.LessOrEqual(t, len(s.Recommendations), 2*20)
		require.LessOrEqual(t, len(s.Events), 15)
	}
}
