package utilization

import (
	"cmp"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"remuda/autoscaler-plugin/enginemetrics"
)

// exact turns a float into the fraction that its shortest decimal names: 0.8 becomes
// 4/5 and not the binary fraction nearest to it. What people write and what servers
// print is decimal, and only so do ceilings and deadband ends come out as written.
// f must be finite.
func exact(f float64) *big.Rat {
	r, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
	if !ok {
		return new(big.Rat)
	}
	return r
}

func whole(n int) *big.Rat { return new(big.Rat).SetInt64(int64(n)) }

func times(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }

// over is a/b; b must not be zero.
func over(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }

func larger(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) >= 0 {
		return a
	}
	return b
}

func smaller(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

// ceil is the smallest whole number that is not below r, at most maxCount. r is not
// negative.
func ceil(r *big.Rat) int {
	q, m := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() || q.Int64() > maxCount {
		return maxCount
	}
	return int(q.Int64())
}

// shown is r as a number for people and records: the nearest float.
func shown(r *big.Rat) enginemetrics.Value {
	f, _ := r.Float64()
	return enginemetrics.Of(f)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
