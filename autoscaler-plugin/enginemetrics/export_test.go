package enginemetrics

// Parse reads one page with a new Parser.
func Parse(page []byte, opts Options) (Sample, error) { return NewParser(opts).Parse(page) }

// Known tells whether the load can be judged by this sample.
func (s *Sample) Known() bool { return s.unknown() == "" }
