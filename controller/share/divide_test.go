package share_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/share"
)

func needs(units ...int) []share.Need {
	out := make([]share.Need, len(units))
	for i, n := range units {
		out[i].Units, out[i].Weight = n, 1
	}
	return out
}

func TestDivide(t *testing.T) {
	leaving := func(n int) share.Need { return share.Need{Units: n, Weight: 1, Leaving: true} }
	for _, tt := range []struct {
		name  string
		whole int
		needs []share.Need
		want  []int
	}{
		{"no gateway", 16, nil, nil},
		{"alone at rest", 16, needs(0), []int{16}},
		{"alone with more than the whole", 16, needs(40), []int{16}},
		{"all at rest", 16, needs(0, 0, 0), []int{6, 5, 5}},
		{"the rest is divided evenly", 16, needs(6, 0), []int{11, 5}},
		{"a single unit that remains goes to a gateway that has none", 4, needs(3, 0), []int{3, 1}},
		{"single units go to all gateways that have none", 6, needs(4, 0, 0), []int{4, 1, 1}},
		{"too few single units for all gateways that have none", 4, needs(2, 0, 0, 0), []int{2, 1, 1, 0}},
		{"the rest of the single units", 5, needs(2, 0, 1), []int{3, 1, 1}},
		{"a gateway that leaves gets no single unit", 3, []share.Need{leaving(0), {Units: 2, Weight: 1}, {Weight: 1}}, []int{0, 2, 1}},
		{"needs are the whole", 16, needs(10, 6), []int{10, 6}},
		{"a small need is met", 16, needs(3, 40), []int{3, 13}},
		{"equal needs", 16, needs(40, 16), []int{8, 8}},
		{"single units go to the first", 16, needs(0, 9, 9, 9), []int{0, 6, 5, 5}},
		{"several levels", 100, needs(1, 10, 30, 90, 90), []int{1, 10, 30, 30, 29}},
		{"fewer units than gateways", 2, needs(5, 0, 5, 5), []int{1, 0, 1, 0}},
		{"no units", 0, needs(5, 0), []int{0, 0}},
		{"a gateway that leaves gets what it needs", 16, []share.Need{leaving(3), {Weight: 1}}, []int{3, 13}},
		{"a gateway that leaves lacks as others do", 16, []share.Need{leaving(20), {Units: 20, Weight: 1}}, []int{8, 8}},
		{"all leave", 16, []share.Need{leaving(3), leaving(4)}, []int{3, 4}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, share.Divide(nil, tt.whole, tt.needs)) })
	}
	require.Equal(t, []int{7, 8, 8}, share.Divide([]int{7}, 16, needs(0, 0)), "it appends")
}

// TestDivideIsMaxMinFair checks the definition of max-min fairness.
func TestDivideIsMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.IntRange(0, 1000).Draw(t, "whole")
		ns := needs(rapid.SliceOfN(rapid.IntRange(0, rapid.SampledFrom([]int{1, 20, 2000}).Draw(t, "most")), 1, 20).Draw(t, "needs")...)
		got := share.Divide(nil, whole, ns)
		sum := 0
		for _, n := range got {
			sum += n
		}
		require.Equal(t, whole, sum)
		most := slices.Max(got)
		for i, n := range got {
			require.GreaterOrEqual(t, n, 0)
			if n >= ns[i].Units {
				continue
			}
			require.GreaterOrEqual(t, n, most-1, "it lacks, so that no other one has more")
			for k, o := range got {
				require.LessOrEqual(t, o, ns[k].Units, "%d lacks, so that none has more than it needs", i)
			}
		}
	})
}
