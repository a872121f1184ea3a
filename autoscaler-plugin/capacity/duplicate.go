package capacity

// named is a replica of a variant.
type named struct {
	variant int32
	replica string
}

// duplicates joins the entries of the same replica. The first of them counts. Most often the names
// increase, as an observer lists them, so that none of them has to be looked up.
func (a *Analyzer) duplicates(in *Input) {
	if increasing(in.Replicas) {
		return
	}
	if a.first == nil {
		a.first = map[named]int{}
	}
	clear(a.first)
	for i := range in.Replicas {
		name := named{a.entries[i].variant, in.Replicas[i].Replica}
		if j, twice := a.first[name]; twice {
			a.entries[j].join(&a.entries[i])
		} else {
			a.first[name] = i
		}
	}
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
