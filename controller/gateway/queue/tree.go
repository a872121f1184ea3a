package queue

// tree is a treap: a search tree by (at, seq) that chance keeps flat. Chance is
// a hash of seq, so that the same content always has the same shape. All
// operations take logarithmic time and allocate nothing: a node is part of its
// element.
type tree[E any] struct{ root *node[E] }

// node is the place of an element in a tree.
type node[E any] struct {
	elem E
	// at and seq are the order of the tree; seq is unique in it.
	at  int64
	seq uint64
	// toll is what sum adds up.
	toll int64
	// tag, then arrived, then seq are what least is the least of.
	tag, arrived int64

	chance      uint64
	left, right *node[E]
	// Of the node and all below it.
	size  int
	sum   int64
	least *node[E]
}

// mix spreads the bits of x (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (n *node[E]) before(o *node[E]) bool {
	return n.at < o.at || (n.at == o.at && n.seq < o.seq)
}

// lesser is the one to serve first of two; either may be nil.
func lesser[E any](a, b *node[E]) *node[E] {
	switch {
	case b == nil:
		return a
	case a == nil || b.tag < a.tag:
		return b
	case b.tag > a.tag:
		return a
	case b.arrived < a.arrived || (b.arrived == a.arrived && b.seq < a.seq):
		return b
	default:
		return a
	}
}

// update computes what is known of the node and all below it.
func (n *node[E]) update() {
	n.size, n.sum, n.least = 1, n.toll, n
	if l := n.left; l != nil {
		n.size += l.size
		n.sum += l.sum
		n.least = lesser(n.least, l.least)
	}
	if r := n.right; r != nil {
		n.size += r.size
		n.sum += r.sum
		n.least = lesser(n.least, r.least)
	}
}

func (t *tree[E]) len() int {
	if t.root == nil {
		return 0
	}
	return t.root.size
}

// insert puts a node in that is in no tree.
func (t *tree[E]) insert(n *node[E]) {
	n.chance = mix(n.seq)
	t.root = insert(t.root, n)
}

func insert[E any](t, n *node[E]) *node[E] {
	switch {
	case t == nil || n.chance > t.chance:
		n.left, n.right = split(t, n)
		n.update()
		return n
	case n.before(t):
		t.left = insert(t.left, n)
	default:
		t.right = insert(t.right, n)
	}
	t.update()
	return t
}

// split parts a tree into what is before a node and the rest.
func split[E any](t, at *node[E]) (l, r *node[E]) {
	switch {
	case t == nil:
		return nil, nil
	case t.before(at):
		t.right, r = split(t.right, at)
		t.update()
		return t, r
	default:
		l, t.left = split(t.left, at)
		t.update()
		return l, t
	}
}

// remove takes out a node that is in the tree.
func (t *tree[E]) remove(n *node[E]) {
	t.root = remove(t.root, n)
	n.left, n.right, n.least = nil, nil, nil
}

func remove[E any](t, n *node[E]) *node[E] {
	switch {
	case t == n:
		return merge(t.left, t.right)
	case n.before(t):
		t.left = remove(t.left, n)
	default:
		t.right = remove(t.right, n)
	}
	t.update()
	return t
}

// merge joins two trees, all of l before all of r.
func merge[E any](l, r *node[E]) *node[E] {
	switch {
	case l == nil:
		return r
	case r == nil:
		return l
	case l.chance > r.chance:
		l.right = merge(l.right, r)
		l.update()
		return l
	default:
		r.left = merge(l, r.left)
		r.update()
		return r
	}
}

// each calls change for every node. change may change the node's toll.
func (t *tree[E]) each(change func(*node[E])) {
	var walk func(n *node[E])
	walk = func(n *node[E]) {
		if n != nil {
			walk(n.left)
			walk(n.right)
			change(n)
			n.update()
		}
	}
	walk(t.root)
}

// first is the first node, nil if there is none.
func (t *tree[E]) first() *node[E] {
	n := t.root
	for n != nil && n.left != nil {
		n = n.left
	}
	return n
}

// leastUpTo is the node to serve first of those whose at is not above a limit.
func (t *tree[E]) leastUpTo(at int64) *node[E] {
	var best *node[E]
	for n := t.root; n != nil; {
		if n.at > at {
			n = n.left
			continue
		}
		best = lesser(best, n)
		if n.left != nil {
			best = lesser(best, n.left.least)
		}
		n = n.right
	}
	return best
}

// nth is the node with i others before it. i is less than len.
func (t *tree[E]) nth(i int) *node[E] {
	for n := t.root; ; {
		l := 0
		if n.left != nil {
			l = n.left.size
		}
		switch {
		case i < l:
			n = n.left
		case i == l:
			return n
		default:
			i -= l + 1
			n = n.right
		}
	}
}

// until is how many nodes come before the first for which stop is true, and the
// sum of their tolls. stop gets a node and the sum before it; once true in the
// tree's order it stays true.
func (t *tree[E]) until(stop func(n *node[E], sum int64) bool) (count int, sum int64) {
	for n := t.root; n != nil; {
		l, s := 0, sum
		if n.left != nil {
			l, s = n.left.size, sum+n.left.sum
		}
		if stop(n, s) {
			n = n.left
			continue
		}
		count, sum = count+l+1, s+n.toll
		n = n.right
	}
	return count, sum
}
