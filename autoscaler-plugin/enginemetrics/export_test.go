package enginemetrics

// Parse reads one page with a new Parser.
func Parse(page []byte, opts Options) (Sample, error) {
	p, err := NewParser(opts)
	if err != nil {
		return Sample{}, err
	}
	return p.Parse(page)
}

// Known tells whether the load can be judged by this sample.
func (s *Sample) Known() bool { return s.unknown() == "" }
