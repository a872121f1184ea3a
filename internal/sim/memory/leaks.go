package memory

import "errors"

// Leaks are device memory that is kept by mistake (a fault switch). The zero Leaks
// are none. Not safe for concurrent use.
type Leaks struct{ regions []region }

// Add leaks n bytes more, shared between the GPUs of a place; 0 leaks nothing.
func (l *Leaks) Add(n int64, at Place) error {
	if n <= 0 {
		return nil
	}
	r, err := newDevice(n, at)
	if err != nil {
		return err
	}
	for i := 0; i < len(r.data); i += 4096 {
		r.data[i] = 1 // a page that was never touched takes no memory
	}
	l.regions = append(l.regions, r)
	return nil
}

// Size is how many bytes have leaked.
func (l *Leaks) Size() (n int64) {
	for i := range l.regions {
		n += l.regions[i].size()
	}
	return n
}

// Free gives all of it back.
func (l *Leaks) Free() error {
	var errs []error
	for i := range l.regions {
		errs = append(errs, l.regions[i].free())
	}
	l.regions = nil
	return errors.Join(errs...)
}
