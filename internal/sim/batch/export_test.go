package batch

import "slices"

// Order lists the running sequences and then the waiting ones, each in the
// order in which they will be served.
func (s *Scheduler) Order() (running, waiting []ID) {
	for _, seq := range s.running {
		running = append(running, seq.id)
	}
	for _, seq := range s.waiting {
		waiting = append(waiting, seq.id)
	}
	return running, waiting
}

// Blocks is a copy of the blocks that a sequence holds.
func (s *Scheduler) Blocks(id ID) []int32 {
	if seq, ok := s.seqs[id]; ok {
		return slices.Clone(seq.table)
	}
	return nil
}
