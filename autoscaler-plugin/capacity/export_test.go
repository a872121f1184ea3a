package capacity

// Sum is the exact sum of xs, for tests. The first of two rounds leaves its bits behind.
func Sum(xs ...float64) float64 {
	var s sum
	for range 2 {
		s.reset()
		for i, x := range xs {
			switch i % 3 {
			case 0:
				s.add(x)
			case 1:
				s.addShare(x)
			default:
				s.addWhole(x)
			}
		}
	}
	return s.value()
}
