package capacity_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// named are idle replicas of v with these names; a name after a "/" is of the variant before it.
func named(names ...string) []capacity.Replica {
	all := make([]capacity.Replica, len(names))
	for i, name := range names {
		variant := "v"
		if before, after, cut := strings.Cut(name, "/"); cut {
			variant, name = before, after
		}
		all[i] = rep(variant, i, 10, 0.1, 0)
		all[i].Replica = name
	}
	return all
}

// numbered are n names that increase, with the same end.
func numbered(n int, end string) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("replica-%04d%s", i, end)
	}
	return names
}

// classes are what an Analyzer of Safe takes replicas for, a second time as the first time.
func classes(t require.TestingT, all []capacity.Replica) []capacity.Class {
	var a capacity.Analyzer
	in := capacity.Input{Replicas: all, Variants: variants{{Variant: "v", Current: len(all)}, {Variant: "w"}}}
	var first, second capacity.Result
	require.NoError(t, a.Analyze(capacity.Safe, &in, &first))
	require.NoError(t, a.Analyze(capacity.Safe, &in, &second))
	require.Equal(t, first, second)
	return second.Classes
}

// TestDuplicates: an entry is a duplicate where one of the same variant and name is before
// it, however the names are arranged.
func TestDuplicates(t *testing.T) {
	const long = "llama:v:0123456789abcde"
	twice := func(names []string, i, at int) []string {
		return slices.Insert(slices.Clone(names), at, names[i])
	}
	reversed := func(names []string) []string {
		slices.Reverse(names)
		return names
	}
	for name, tc := range map[string]struct {
		names []string
		want  []int // the duplicates
	}{
		"none":                                  {names: nil},
		"one":                                   {names: []string{"a"}},
		"sorted":                                {names: []string{long + "0", long + "1", long + "2"}},
		"sorted, short":                         {names: []string{"a", "b", "c"}},
		"sorted, the same end":                  {names: numbered(5, "-the-same-end")},
		"sorted, with a duplicate":              {names: []string{long + "0", long + "1", long + "1", long + "2"}, want: []int{2}},
		"sorted, short, with a duplicate":       {names: []string{"a", "b", "b", "b"}, want: []int{2, 3}},
		"unsorted":                              {names: []string{long + "2", long + "0", long + "1"}},
		"unsorted, short":                       {names: []string{"c", "a", "b"}},
		"unsorted, the same end":                {names: reversed(numbered(5, "-the-same-end"))},
		"unsorted, with a duplicate":            {names: []string{long + "2", long + "0", long + "1", long + "0"}, want: []int{3}},
		"unsorted, short, with a duplicate":     {names: []string{"c", "a", "b", "c"}, want: []int{3}},
		"unsorted, same end, with a duplicate":  {names: twice(reversed(numbered(5, "-the-same-end")), 0, 5), want: []int{5}},
		"first and last are the same":           {names: []string{"z-a-long-name", "a-long-name", "z-a-long-name"}, want: []int{2}},
		"all the same":                          {names: []string{long, long, long}, want: []int{1, 2}},
		"one is another's beginning":            {names: []string{long + "0", long, long[:9]}},
		"one is another's end":                  {names: []string{long, long[len(long)-8:], long[len(long)-7:]}},
		"the same name in two variants":         {names: []string{"v/" + long, "w/" + long, "v/" + long}, want: []int{2}},
		"a hundred, sorted":                     {names: numbered(100, "")},
		"a hundred, unsorted":                   {names: reversed(numbered(100, ""))},
		"a hundred, sorted, with a duplicate":   {names: twice(numbered(100, ""), 40, 41), want: []int{41}},
		"a hundred, unsorted, with a duplicate": {names: twice(reversed(numbered(100, "")), 3, 90), want: []int{90}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for i, class := range classes(t, named(tc.names...)) {
				if class == capacity.Duplicate {
					got = append(got, i)
				}
			}
			require.Equal(t, tc.want, got)
		})
	}
}

// TestDuplicatesAreFoundHoweverNamesCome: in any order, with names that are alike.
func TestDuplicatesAreFoundHoweverNamesCome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few letters, so that beginnings, ends and whole names are often alike.
		part := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 3, -1)
		middle := rapid.SampledFrom([]string{"", "-", "-a-long-middle-"})
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) capacity.Replica {
			name := "x" + part.Draw(t, "begin") + middle.Draw(t, "middle") + part.Draw(t, "end")
			r := rep(rapid.SampledFrom([]string{"v", "v", "w"}).Draw(t, "variant"), 0, 10, 0, 0)
			r.Replica, r.KVCacheUsage, r.QueueLength = name, drawMetric(t, 1, false), drawMetric(t, 6, false)
			r.Draining = rapid.IntRange(0, 9).Draw(t, "drains") == 0
			if rapid.Bool().Draw(t, "sized") {
				r.KVCapacity = enginemetrics.Of(float64(rapid.IntRange(1, 9).Draw(t, "size")))
			}
			return r
		}), 0, 80).Draw(t, "replicas")
		byNameOf := func(x, y capacity.Replica) int { return strings.Compare(x.Replica, y.Replica) }
		switch rapid.IntRange(0, 2).Draw(t, "arranged") {
		case 0: // as they are
		case 1:
			slices.SortStableFunc(all, byNameOf)
		default: // increasing: each name once
			slices.SortStableFunc(all, byNameOf)
			all = slices.CompactFunc(all, func(x, y capacity.Replica) bool { return x.Replica == y.Replica })
		}
		seen := map[[2]string]bool{}
		for i, class := range classes(t, all) {
			key := [2]string{all[i].Variant, all[i].Replica}
			require.Equal(t, seen[key], class == capacity.Duplicate, "%d: %v", i, key)
			seen[key] = true
		}
	})
}
