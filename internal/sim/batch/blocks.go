package batch

import "slices"

// pool is the KV cache's blocks. A block is either in the free list or in the table of
// at least one sequence. A block that holds a known part of a prompt (its key) keeps it
// while it is free, until it is taken for something else: least recently used first.
type pool struct {
	blocks []block // and the free list's anchor behind the last one
	byKey  map[uint64]int32
	free   int
}

type block struct {
	users      int
	next, prev int32  // in the free list
	key        uint64 // 0 for none
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), byKey: map[uint64]int32{}}
	anchor := int32(n)
	p.blocks[anchor] = block{next: anchor, prev: anchor}
	for i := range anchor {
		p.putFree(i, p.blocks[anchor].prev)
	}
	return p
}

func (p *pool) total() int { return len(p.blocks) - 1 }

// putFree puts b behind after in the free list.
func (p *pool) putFree(b, after int32) {
	next := p.blocks[after].next
	p.blocks[b].prev, p.blocks[b].next = after, next
	p.blocks[after].next, p.blocks[next].prev = b, b
	p.free++
}

func (p *pool) takeFree(b int32) {
	at := p.blocks[b]
	p.blocks[at.prev].next, p.blocks[at.next].prev = at.next, at.prev
	p.free--
}

// grow appends blocks to table until it has want, or leaves it alone and
// reports false when there are too few.
func (p *pool) grow(table []int32, want int) ([]int32, bool) {
	if want-len(table) > p.free {
		return table, false
	}
	for len(table) < want {
		b := p.blocks[p.total()].next
		p.takeFree(b)
		p.forget(b)
		p.blocks[b].users = 1
		table = append(table, b)
	}
	return table, true
}

// release gives all blocks of table back. The last ones are taken again first, because
// fewer prompts begin with them.
func (p *pool) release(table []int32) []int32 {
	anchor := int32(p.total())
	for _, b := range slices.Backward(table) {
		at := &p.blocks[b]
		if at.users--; at.users > 0 {
			continue
		}
		if at.key == 0 {
			p.putFree(b, anchor)
		} else {
			p.putFree(b, p.blocks[anchor].prev)
		}
	}
	return table[:0]
}

// cached are the blocks that hold the beginning of a prompt with these keys, and how
// many of them are free.
func (p *pool) cached(keys []uint64) (found []int32, free int) {
	for _, k := range keys {
		b, ok := p.byKey[k]
		if !ok {
			break
		}
		found = append(found, b)
		if p.blocks[b].users == 0 {
			free++
		}
	}
	return found, free
}

// share appends cached blocks to table.
func (p *pool) share(table, found []int32) []int32 {
	for _, b := range found {
		if p.blocks[b].users == 0 {
			p.takeFree(b)
		}
		p.blocks[b].users++
	}
	return append(table, found...)
}

// keep records what a computed block holds, unless another one holds the same.
func (p *pool) keep(b int32, key uint64) {
	if _, ok := p.byKey[key]; !ok && p.blocks[b].key == 0 {
		p.byKey[key], p.blocks[b].key = b, key
	}
}

func (p *pool) forget(b int32) {
	if k := p.blocks[b].key; k != 0 {
		delete(p.byKey, k)
		p.blocks[b].key = 0
	}
}

// forgetAll empties the cache; tables stay as they are.
func (p *pool) forgetAll() {
	for i := range p.blocks {
		p.blocks[i].key = 0
	}
	clear(p.byKey)
}

// Prefix is the keys of a prompt's full blocks: each stands for the prompt up to the
// block's end, so two prompts share the keys of their common beginning.
func (c Config) Prefix(tokens []int) []uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a's, over whole tokens
	keys := make([]uint64, 0, len(tokens)/c.BlockSize)
	h := uint64(offset)
	for i, t := range tokens {
		h = (h ^ uint64(t)) * prime
		if (i+1)%c.BlockSize == 0 {
			keys = append(keys, max(h, 1))
		}
	}
	return keys
}
