package share

// Need is what one gateway needs of a resource.
type Need struct {
	Units int
	// Leaving: the gateway takes no new requests, and has no use for more than it needs.
	Leaving bool
}

// Divide appends to shares the part of each need in whole, by max-min fairness: no gateway gets
// more than it needs while another one gets less than it needs and less than the first. What is
// left when all needs are met is divided evenly among those that are not leaving, so that a
// gateway at rest has room for a burst. Single units that remain go to the first ones.
func Divide(shares []int, whole int, needs []Need) []int {
	rest, open := whole, 0
	for _, n := range needs {
		rest -= n.Units
		if !n.Leaving {
			open++
		}
	}
	if rest < 0 {
		return divideScarce(shares, whole, needs)
	}
	each, extra := 0, 0
	if open > 0 {
		each, extra = rest/open, rest%open
	}
	for _, n := range needs {
		got := n.Units
		if !n.Leaving {
			got += each
			if extra > 0 {
				got, extra = got+1, extra-1
			}
		}
		shares = append(shares, got)
	}
	return shares
}

// divideScarce is Divide for needs above whole.
func divideScarce(shares []int, whole int, needs []Need) []int {
	// Each step meets the needs up to level and divides the rest among the others, which raises
	// level, until it meets no further need.
	level, extra := -1, 0
	for {
		rest, others := whole, 0
		for _, n := range needs {
			if n.Units <= level {
				rest -= n.Units
			} else {
				others++
			}
		}
		next := rest / others // not 0: the needs up to level are met, and all together are above whole
		extra = rest % others
		if next == level {
			break
		}
		level = next
	}
	for _, n := range needs {
		got := min(n.Units, level)
		if n.Units > level && extra > 0 {
			got, extra = got+1, extra-1
		}
		shares = append(shares, got)
	}
	return shares
}
