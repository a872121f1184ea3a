package capacity

// Sum is the exact sum of xs, for tests. The first of two rounds leaves its bits behind.
func Sum(xs ...float64) float64 {
	var s sum
	for range 2 {
		s.reset()
		for _, x := range xs {
			s.add(x)
		}
	}
	return s.value()
}
