package placement

// Hurry leaves each group so many steps of the exact search.
func (f *Fleet) Hurry(steps int) { f.search.most = steps }
