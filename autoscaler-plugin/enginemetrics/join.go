package enginemetrics

import (
	"cmp"
	"slices"
	"strings"
)

// series is one series of a quantity, as far as joining needs it.
type series struct {
	// rank is the data-parallel rank, part what else tells series apart that add
	// up, shard what tells series apart that say the same.
	rank, part, shard string
	// detail marks a piece of a total.
	detail bool
	value  float64
}

func compareSeries(a, b series) int {
	return cmp.Or(strings.Compare(a.rank, b.rank), strings.Compare(a.part, b.part), strings.Compare(a.shard, b.shard))
}

// joined is what the series of one quantity come to.
type joined struct {
	value Value
	// ranks are the data-parallel ranks seen, sorted; "" for a series without one.
	ranks []string
	// duplicate: the same series came more than once with different values.
	duplicate bool
}

// labels is how the label pairs of a series are walked through.
type labels func(yield func(name, value string) bool)

// classify sorts the labels of a series into what joining needs. An empty label
// is the same as none, as in Prometheus. With onlyKnown, labels that the dialect
// does not name do not tell series apart: a Prometheus server adds its own.
func (d *Dialect) classify(l labels, onlyKnown bool) (s series, modelName string) {
	var rank, part, shard []string
	for name, value := range l {
		switch {
		case value == "" || name == "__name__":
		case name == d.ModelLabel:
			modelName = value
		case slices.Contains(d.RankLabels, name):
			if len(d.RankLabels) == 1 {
				s.rank = value
				continue
			}
			rank = append(rank, name+"="+value)
		case slices.Contains(d.ShardLabels, name):
			shard = append(shard, name+"="+value)
		case slices.Contains(d.DetailLabels, name):
			s.detail = true
			part = append(part, name+"="+value)
		case !onlyKnown:
			part = append(part, name+"="+value)
		}
	}
	if len(rank) > 0 {
		s.rank = key(rank)
	}
	s.part, s.shard = key(part), key(shard)
	return s, modelName
}

// key makes one string of labels, whatever their order.
func key(labels []string) string {
	slices.Sort(labels)
	return strings.Join(labels, "\xff")
}

// join makes one value of the series of one quantity: the highest of a usage or
// a size, the sum of everything else. One bad series makes the whole bad: what
// is left would be too low. The list is sorted in place, so that neither the
// order of a page nor rounding decides.
//
// With scraped, the same series seen with different values is a duplicate and
// the highest counts; otherwise it is a contradiction.
func join(q Quantity, list []series, percent, scraped bool) joined {
	if len(list) > 1 {
		slices.SortFunc(list, compareSeries)
		list = totals(list)
	}
	var out joined
	var sum float64
	var bad Value
	for i := 0; i < len(list); {
		// One group is one rank and part; its shards say the same.
		var group Value
		j := i
		for ; j < len(list) && list[j].rank == list[i].rank && list[j].part == list[i].part; j++ {
			v := believe(q, list[j].value, percent)
			if j > i && list[j].shard == list[j-1].shard && list[j].value != list[j-1].value {
				out.duplicate = true
			}
			if v.flawed() {
				bad = worse(bad, v)
				continue
			}
			group = higher(group, v)
		}
		if n := len(out.ranks); n == 0 || out.ranks[n-1] != list[i].rank {
			out.ranks = append(out.ranks, list[i].rank)
		}
		switch q {
		case KVUsage, BlockSize:
			out.value = higher(out.value, group)
		default:
			sum += group.number()
		}
		i = j
	}
	if out.duplicate && !scraped {
		bad = worse(bad, Flawed(Contradictory))
	}
	switch {
	case bad.flawed():
		out.value = bad
	case len(list) > 0 && q != KVUsage && q != BlockSize:
		out.value = believe(q, sum, percent)
	}
	return out
}

// totals leaves out the pieces of a rank that shows its total as well. The list
// is sorted by rank.
func totals(list []series) []series {
	if !slices.ContainsFunc(list, func(s series) bool { return s.detail }) {
		return list
	}
	kept := list[:0]
	for i := 0; i < len(list); {
		j, whole := i, false
		for ; j < len(list) && list[j].rank == list[i].rank; j++ {
			whole = whole || !list[j].detail
		}
		for _, s := range list[i:j] {
			if !whole || !s.detail {
				kept = append(kept, s)
			}
		}
		i = j
	}
	return kept
}

// believe classifies a number by what its quantity may be.
func believe(q Quantity, v float64, percent bool) Value {
	switch {
	case q == KVUsage:
		return usage(v, percent)
	case q >= Finished || q == KVTokens:
		return check(v, maxCounter)
	}
	return check(v, maxGauge)
}

// completeRanks makes a core value bad that not every rank shows, and counts
// the ranks. A value without rank labels speaks for the whole engine.
func completeRanks(list []*joined) int {
	var all []string
	for _, j := range list {
		all = append(all, j.ranks...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, j := range list {
		whole := slices.Contains(j.ranks, "")
		if j.value.present() && !whole && !slices.Equal(named(j.ranks), named(all)) {
			j.value = Flawed(RankMissing)
		}
	}
	if n := len(named(all)); n > 0 {
		return n
	}
	return len(all)
}

// named leaves out the empty rank, which sorts first.
func named(ranks []string) []string {
	if len(ranks) > 0 && ranks[0] == "" {
		return ranks[1:]
	}
	return ranks
}
