package state

import "slices"

// Displaced are replicas of a model that were asked for and are not to run for now, because the
// planner or an operator took them away. What should run is still Model.Desired: they come back.
// Whoever scales the model, or a part of it, ends that.
//
// They are numbers of the model and not marks of its replicas, because a replica that was
// displaced can end as COLD, be merged with another one on its node, and go with it.
type Displaced struct {
	// UntilRoom were evicted for other models. They come back when there is room for them
	// without evicting anything, or clients wait.
	UntilRoom Shares `json:",omitempty"`
	// UntilAsked were idle, or an operator evicted them. They come back when clients wait.
	UntilAsked Shares `json:",omitempty"`
}

// Total returns how many replicas are displaced.
func (d Displaced) Total() int { return d.UntilRoom.Total() + d.UntilAsked.Total() }

// IsZero reports whether no replica is displaced.
func (d Displaced) IsZero() bool { return len(d.UntilRoom) == 0 && len(d.UntilAsked) == 0 }

func (d Displaced) equal(o Displaced) bool {
	return slices.Equal(d.UntilRoom, o.UntilRoom) && slices.Equal(d.UntilAsked, o.UntilAsked)
}

// Until is the event after which displaced replicas come back.
type Until int

// The ways back.
const (
	UntilRoom Until = iota
	UntilAsked
)

// Of returns those that come back for one reason.
func (d *Displaced) Of(u Until) *Shares {
	if u == UntilRoom {
		return &d.UntilRoom
	}
	return &d.UntilAsked
}

// Active returns the part of Desired that is to run now: what is not displaced.
func (m *Model) Active() Shares {
	if m.Displaced.IsZero() {
		return m.Desired
	}
	of := m.Desired.cells()
	for _, shares := range []Shares{m.Displaced.UntilRoom, m.Displaced.UntilAsked} {
		for c, n := range shares.cells() {
			take(of, n, []string{c.pool}, []string{c.variant})
		}
	}
	return m.shares(of)
}

// Displace returns Displaced with n more replicas, as far as so many are active: those of the
// variant first and then others; what is in external pools goes last.
func (m *Model) Displace(n int, variant string, until Until) Displaced {
	active := m.Active()
	left := active.cells()
	if _, own := active.Of(variant); !own {
		variant = ""
	}
	more := take(left, n, active.ownFirst(), []string{variant})
	take(left, more, active.ownFirst(), m.anyFirst())
	return m.displacedBeyond(active.cells(), left, until)
}

// displacedBeyond returns Displaced with what the numbers of cells lose from one to the other.
func (m *Model) displacedBeyond(from, to map[cell]int, until Until) Displaced {
	d := m.Displaced
	of := d.Of(until).cells()
	for c, n := range from {
		of[c] += n - to[c]
	}
	*d.Of(until) = positive(of)
	return d
}

// Recall returns Displaced with n fewer replicas, as far as there are so many: those that come
// back for the first reason first, and of those the variant's.
func (m *Model) Recall(n int, variant string, order ...Until) Displaced {
	d := m.Displaced
	if _, own := m.Desired.Of(variant); !own {
		variant = ""
	}
	for _, until := range order {
		shares := d.Of(until)
		of := shares.cells()
		pools := append(shares.External(), "")
		n = take(of, n, pools, []string{variant})
		n = take(of, n, pools, m.anyFirst())
		*shares = positive(of)
	}
	return d
}

// AllUntilAsked returns d with all replicas displaced until clients wait.
func (d Displaced) AllUntilAsked() Displaced {
	of := d.UntilAsked.cells()
	for c, n := range d.UntilRoom.cells() {
		of[c] += n
	}
	return Displaced{UntilAsked: positive(of)}
}

// positive returns the shares of cells that are more than 0, sorted.
func positive(of map[cell]int) Shares {
	var out Shares
	for c, n := range of {
		if n > 0 {
			out = append(out, Share{Pool: c.pool, Variant: c.variant, Replicas: n})
		}
	}
	sortShares(out)
	return out
}

// within returns d as far as it is a part of those shares.
func (d Displaced) within(s Shares) Displaced {
	left := s.cells()
	for _, until := range []Until{UntilRoom, UntilAsked} {
		of := d.Of(until).cells()
		for c, n := range of {
			of[c] = min(n, left[c])
			left[c] -= of[c]
		}
		*d.Of(until) = positive(of)
	}
	return d
}

// without returns d without those of some variants, and those in some pools.
func (d Displaced) without(gone func(Share) bool) Displaced {
	for _, until := range []Until{UntilRoom, UntilAsked} {
		of := d.Of(until)
		*of = slices.DeleteFunc(slices.Clone(*of), gone)
	}
	return d
}
