package batch

// pool is the KV cache's blocks. A block is either in the free list or in
// exactly one sequence's table.
type pool struct {
	free  []int32
	total int
}

func newPool(n int) *pool {
	p := &pool{free: make([]int32, n), total: n}
	for i := range p.free {
		p.free[i] = int32(n - 1 - i)
	}
	return p
}

// grow appends blocks to table until it has want, or leaves it alone and
// reports false when there are too few.
func (p *pool) grow(table []int32, want int) ([]int32, bool) {
	need := want - len(table)
	if need <= 0 {
		return table, true
	}
	if need > len(p.free) {
		return table, false
	}
	cut := len(p.free) - need
	table = append(table, p.free[cut:]...)
	p.free = p.free[:cut]
	return table, true
}

// release takes all blocks of table back.
func (p *pool) release(table []int32) []int32 {
	p.free = append(p.free, table...)
	return table[:0]
}
