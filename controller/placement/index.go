package placement

import (
	"cmp"
	"slices"
)

// entry is one line of an index: a group under a key of two numbers.
type entry struct {
	first  int64
	second int32
	rank   int32 // of the group
}

func (e entry) compare(o entry) int {
	switch {
	case e.first != o.first:
		return cmp.Compare(e.first, o.first)
	case e.second != o.second:
		return cmp.Compare(e.second, o.second)
	}
	return cmp.Compare(e.rank, o.rank)
}

// ordered is a sorted list of entries in blocks, so that a change moves one block only.
type ordered struct{ blocks [][]entry }

const blockSize = 256

// fill makes the list of entries, which it sorts.
func (o *ordered) fill(all []entry) {
	slices.SortFunc(all, entry.compare)
	o.blocks = nil
	for part := range slices.Chunk(all, blockSize/2) {
		o.blocks = append(o.blocks, append(make([]entry, 0, blockSize), part...))
	}
}

// block returns the first block that ends at e or after it.
func (o *ordered) block(e entry) int {
	low, high := 0, len(o.blocks)
	for low < high {
		mid := (low + high) / 2
		b := o.blocks[mid]
		if b[len(b)-1].compare(e) < 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// position returns the first place in a block that is at e or after it.
func position(b []entry, e entry) int {
	low, high := 0, len(b)
	for low < high {
		mid := (low + high) / 2
		if b[mid].compare(e) < 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

func (o *ordered) insert(e entry) {
	if len(o.blocks) == 0 {
		o.blocks = append(o.blocks, append(make([]entry, 0, blockSize), e))
		return
	}
	at := min(o.block(e), len(o.blocks)-1)
	if b := o.blocks[at]; len(b) == blockSize {
		right := append(make([]entry, 0, blockSize), b[blockSize/2:]...)
		o.blocks[at] = b[:blockSize/2]
		o.blocks = slices.Insert(o.blocks, at+1, right)
		if right[0].compare(e) < 0 {
			at++
		}
	}
	b := o.blocks[at]
	o.blocks[at] = slices.Insert(b, position(b, e), e)
}

// remove takes e out, which is there.
func (o *ordered) remove(e entry) {
	at := o.block(e)
	b := o.blocks[at]
	i := position(b, e)
	if len(b) == 1 {
		o.blocks = slices.Delete(o.blocks, at, at+1)
		return
	}
	o.blocks[at] = slices.Delete(b, i, i+1)
}

// from yields the entries whose first number is least or more, in order.
func (o *ordered) from(least int64, yield func(entry) bool) {
	start := entry{first: least, second: -1 << 31, rank: -1 << 31}
	at := o.block(start)
	if at == len(o.blocks) {
		return
	}
	i := position(o.blocks[at], start)
	for ; at < len(o.blocks); at, i = at+1, 0 {
		for _, e := range o.blocks[at][i:] {
			if !yield(e) {
				return
			}
		}
	}
}

// journal is which groups have changed since indexes were made. Indexes follow it when
// they are used.
type journal struct {
	groups []*group
	start  int // how many were forgotten
	used   bool
}

// journalSize is how many changes are kept; an index that is further behind is made anew.
const journalSize = 1 << 16

func (j *journal) add(g *group) {
	if !j.used {
		return
	}
	if len(j.groups) == journalSize {
		j.start += journalSize / 2
		j.groups = append(j.groups[:0], j.groups[journalSize/2:]...)
	}
	j.groups = append(j.groups, g)
}

func (j *journal) end() int { return j.start + len(j.groups) }

// since returns the changes after position at, and false where some are forgotten.
func (j *journal) since(at int) ([]*group, bool) {
	if at < j.start {
		return nil, false
	}
	return j.groups[at-j.start:], true
}

// follower is an index of the groups of one partition by keys that are computed from
// the group alone.
type follower struct {
	part *partition
	list ordered
	have [][]entry // of each group
	keys func(g *group, into []entry) []entry
	at   int // in the journal
	made bool
	room []entry
}

// follow brings the index up to date.
func (x *follower) follow(j *journal) {
	changes, ok := j.since(x.at)
	if !x.made || !ok || len(changes) > 4*len(x.part.groups)+64 {
		x.make(j)
		return
	}
	for _, g := range changes {
		if g.part == x.part {
			x.update(g)
		}
	}
	x.at = j.end()
}

func (x *follower) make(j *journal) {
	j.used = true
	x.have = make([][]entry, len(x.part.groups))
	var all []entry
	for i, g := range x.part.groups {
		x.room = x.keys(g, x.room[:0])
		x.have[i] = slices.Clone(x.room)
		all = append(all, x.room...)
	}
	x.list.fill(all)
	x.made, x.at = true, j.end()
}

// update replaces the entries of one group. Both lists are sorted.
func (x *follower) update(g *group) {
	x.room = x.keys(g, x.room[:0])
	old := x.have[g.rank]
	i, k := 0, 0
	for i < len(old) || k < len(x.room) {
		c := 0
		switch {
		case i == len(old):
			c = 1
		case k == len(x.room):
			c = -1
		default:
			c = old[i].compare(x.room[k])
		}
		switch {
		case c < 0:
			x.list.remove(old[i])
			i++
		case c > 0:
			x.list.insert(x.room[k])
			k++
		default:
			i++
			k++
		}
	}
	x.have[g.rank] = append(old[:0], x.room...)
}
