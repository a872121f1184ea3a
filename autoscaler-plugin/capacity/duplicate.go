package capacity

import (
	"hash/maphash"
	"slices"
)

// duplicates joins the entries of the same replica. The first of them counts. Most often all
// names differ, and that is seen faster than by looking each of them up: by their ends, or
// because they increase, as they do where an observer lists them.
func (a *Analyzer) duplicates(in *Input) {
	if !a.thorough && (a.distinct(in.Replicas) || increasing(in.Replicas)) {
		return
	}
	a.clearTable(len(in.Replicas))
	for i := range in.Replicas {
		a.hashes[i] = maphash.String(a.seed, in.Replicas[i].Replica)
		if j, twice := a.same(in, i); twice {
			a.entries[j].join(&a.entries[i])
		}
	}
}

// distinct tells whether the names are seen to differ by their last bytes. Each sets a bit; two
// that share one may be the same name.
func (a *Analyzer) distinct(all []Replica) bool {
	const few = 64 // a 64th of the bits
	if len(all) > few {
		return false
	}
	clear(a.seen[:])
	for i := range all {
		s := all[i].Replica
		if len(s) < 8 {
			return false
		}
		s = s[len(s)-8:]
		end := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		bit := end * 0x9e3779b97f4a7c15 >> (64 - 12)
		word := &a.seen[bit/64]
		if *word>>(bit%64)&1 != 0 {
			return false
		}
		*word |= 1 << (bit % 64)
	}
	return true
}

// increasing tells whether each name is above the one before it.
func increasing(all []Replica) bool {
	for i := 1; i < len(all); i++ {
		if all[i].Replica <= all[i-1].Replica {
			return false
		}
	}
	return true
}

// same finds the entry that was there before of the same replica, or notes this one.
func (a *Analyzer) same(in *Input, i int) (int, bool) {
	hash, mask := a.hashes[i], len(a.table)-1
	for at := int(hash) & mask; ; at = (at + 1) & mask {
		j := int(a.table[at]) - 1
		if j < 0 {
			a.table[at] = int32(i + 1)
			return 0, false
		}
		if a.hashes[j] == hash && a.entries[j].variant == a.entries[i].variant && in.Replicas[j].Replica == in.Replicas[i].Replica {
			return j, true
		}
	}
}

// clearTable makes the table of replicas large enough for n, and empty.
func (a *Analyzer) clearTable(n int) {
	if !a.seeded {
		a.seed, a.seeded = maphash.MakeSeed(), true
	}
	a.hashes = slices.Grow(a.hashes[:0], n)[:n]
	size := 8
	for size < 2*n {
		size *= 2
	}
	if size > cap(a.table) {
		a.table = make([]int32, size)
		return
	}
	a.table = a.table[:size]
	clear(a.table)
}

// join makes one of two entries of the same replica, in e; o is the duplicate. The one that
// can be used is preferred, and of two such the highest values count.
func (e *entry) join(o *entry) {
	switch {
	case e.class == OK && o.class == OK:
		e.kv, e.queue, e.size = max(e.kv, o.kv), max(e.queue, o.queue), max(e.size, o.size)
	case o.class < e.class:
		e.kv, e.queue, e.size, e.class = o.kv, o.queue, o.size, o.class
	}
	e.draining = e.draining || o.draining
	o.class, o.duplicate = Duplicate, true
}
