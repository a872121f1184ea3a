package capacity_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// bytesOf hands out a fuzzer's bytes, zeros once they are used up.
type bytesOf []byte

func (b *bytesOf) next() byte {
	if len(*b) == 0 {
		return 0
	}
	x := (*b)[0]
	*b = (*b)[1:]
	return x
}

// number is any float64 that there is, and often one of those that metrics must not be.
func (b *bytesOf) number() enginemetrics.Value {
	switch x := b.next(); x % 8 {
	case 0:
		return enginemetrics.Value{}
	case 1:
		return enginemetrics.Of(math.NaN())
	case 2:
		return enginemetrics.Of(math.Inf(1 - int(x&8)))
	case 3:
		return enginemetrics.Of(-float64(x))
	case 4: // a percentage
		return enginemetrics.Of(float64(x % 101))
	case 5:
		var bits [8]byte
		for i := range bits {
			bits[i] = b.next()
		}
		return enginemetrics.Of(math.Float64frombits(binary.LittleEndian.Uint64(bits[:])))
	default:
		return enginemetrics.Of(float64(b.next()) / 255)
	}
}

// input makes a model of up to 4 variants and 16 replicas of the bytes.
func (b *bytesOf) input() capacity.Input {
	in := capacity.Input{Model: "m", Config: capacity.DefaultConfig()}
	names := []string{"a", "b", "c", "d"}
	for _, name := range names[:1+b.next()%4] {
		flags := b.next()
		v := capacity.Variant{Variant: name, Current: int(b.next() % 8), Unplaceable: flags&1 != 0, Draining: int(flags >> 6)}
		if flags&2 != 0 {
			v.Desired = int(b.next() % 8)
		}
		if flags&4 != 0 {
			v.Pending = new(int(b.next() % 4))
		}
		if flags&8 != 0 {
			v.Min = new(int(b.next() % 4))
			v.Max = new(*v.Min + int(b.next()%6))
		}
		if flags&16 != 0 {
			v.Cost = enginemetrics.Of(float64(b.next() % 40))
		}
		in.Variants = append(in.Variants, v)
		if flags&32 != 0 {
			if in.ModelBasedTargets == nil {
				in.ModelBasedTargets = map[string]int{}
			}
			in.ModelBasedTargets[name] = int(b.next() % 10)
		}
	}
	for range b.next() % 17 {
		which := b.next()
		r := capacity.Replica{Variant: names[which%4], Replica: names[which%4] + "-" + string(rune('0'+which/4%8)), Draining: which > 240,
			KVCacheUsage: b.number(), QueueLength: b.number()}
		if age := b.next(); age > 200 {
			r.AgeSeconds = float64(int(age)-228) * 10 // behind and ahead of the clock
		}
		in.Replicas = append(in.Replicas, r)
	}
	return in
}

// FuzzAnalyze: whatever is measured, both rules answer, the order does not matter, and Safe
// removes nothing while a load is unknown, averages nothing that cannot be and keeps bounds.
func FuzzAnalyze(f *testing.F) {
	f.Add([]byte{1, 8, 3, 1, 4, 16, 2, 9, 3, 0, 6, 200, 6, 0, 0, 4, 1, 6, 10, 0, 8, 3, 7, 255, 230})
	f.Add([]byte{0, 32, 4, 2, 4, 0, 12, 75, 6, 1, 0, 4, 6, 90, 6, 0, 255, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 2, 10})
	f.Fuzz(func(t *testing.T, text []byte) {
		b := bytesOf(text)
		in := b.input()
		turned := in
		turned.Replicas, turned.Variants = slices.Clone(in.Replicas), slices.Clone(in.Variants)
		slices.Reverse(turned.Replicas)
		slices.Reverse(turned.Variants)
		for _, rules := range both {
			require.Equal(t, marshal(t, explain(t, rules, in)), marshal(t, explain(t, rules, turned)), rules)
		}
		a := explain(t, capacity.Safe, in)
		if kv, flaw := a.AvgSpareKV.Get(); flaw != enginemetrics.Absent {
			require.True(t, flaw == enginemetrics.None && kv <= 1, "%v: %s", kv, flaw)
		}
		if _, flaw := a.AvgSpareQueue.Get(); flaw != enginemetrics.Absent {
			require.Equal(t, enginemetrics.None, flaw)
		}
		for _, v := range in.Variants {
			d := a.Decisions[v.Variant]
			require.NotEmpty(t, d.Reason)
			require.GreaterOrEqual(t, d.Target, 0)
			if a.UnknownReplicas > 0 {
				require.GreaterOrEqual(t, d.Target, v.Current, "removed in the dark")
			}
			if v.Unplaceable {
				require.LessOrEqual(t, d.Target, v.Current, "it has no place")
			}
			if v.Max != nil {
				require.LessOrEqual(t, d.Target, max(*v.Max, v.Current))
			}
		}
	})
}
