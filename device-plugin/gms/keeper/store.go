package keeper

import (
	"errors"
	"fmt"
	"sync"
)

// Limits bound what a keeper holds. What would be over is refused.
type Limits struct {
	// Records is how many names there may be.
	Records int
	// Blob is the largest blob in bytes, and Bytes all of them together, what is
	// being saved included.
	Blob, Bytes uint64
	// Descriptors is how many may be held, what is being saved included: a record
	// that is replaced needs room for both.
	Descriptors int
	// Connections is how many clients there may be at a time.
	Connections int
}

// DefaultLimits have room for eight GPUs with two tags and many thousands of
// allocations each, as far as the process may open files (files is its
// RLIMIT_NOFILE).
func DefaultLimits(files uint64) Limits {
	l := Limits{Records: 1024, Blob: 64 << 20, Bytes: 256 << 20, Connections: 64}
	// Connections, and what the runtime needs.
	l.Descriptors = max(int(min(files, 1<<20))-l.Connections-64, 0)
	return l
}

func (l *Limits) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"Records", l.Records <= 0}, {"Blob", l.Blob == 0}, {"Bytes", l.Bytes == 0},
		{"Descriptors", l.Descriptors <= 0}, {"Connections", l.Connections <= 0},
	} {
		if f.bad {
			errs = append(errs, fmt.Errorf("Limits.%s must be more than 0", f.name))
		}
	}
	return errors.Join(errs...)
}

// record is a blob and descriptors.
type record struct {
	blob []byte
	fds  []int
	// refs counts the store and the loads in progress; the store's mu guards it.
	refs int
}

// store is the records, and the room that is left. Safe for concurrent use.
type store struct {
	limits Limits

	mu      sync.Mutex
	records map[string]*record
	bytes   uint64 // of all records, and reserved
	fds     int    // likewise
}

func newStore(limits Limits) *store {
	return &store{limits: limits, records: map[string]*record{}}
}

// reserve keeps room for a record that is on its way. The caller ends it with
// put or cancel.
func (s *store) reserve(name string, e extent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch l := s.limits; {
	case s.records[name] == nil && len(s.records) >= l.Records:
		return fmt.Errorf("the keeper has %d records, which is its limit", l.Records)
	case e.size > l.Blob:
		return fmt.Errorf("a blob of %d bytes is over the keeper's limit of %d", e.size, l.Blob)
	case e.size > l.Bytes-min(s.bytes, l.Bytes):
		return fmt.Errorf("the keeper holds %d bytes and %d more are over its limit of %d", s.bytes, e.size, l.Bytes)
	case uint64(e.count) > uint64(max(l.Descriptors-s.fds, 0)):
		return fmt.Errorf("the keeper holds %d descriptors and %d more are over its limit of %d", s.fds, e.count, l.Descriptors)
	}
	s.bytes += e.size
	s.fds += int(e.count)
	return nil
}

// cancel gives up what was reserved.
func (s *store) cancel(e extent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= e.size
	s.fds -= int(e.count)
}

// put stores a record that was reserved, in place of the old one, and tells whether
// it did. It does not where its client, by waits, is gone: one that has called a save
// off may have saved or dropped the name anew over another connection, and this one
// must not come after that. waits is asked under mu, so that there is no moment
// between.
func (s *store) put(name string, r *record, waits func() bool) bool {
	r.refs = 1
	s.mu.Lock()
	old, stored := r, waits()
	if stored {
		old = s.records[name]
		s.records[name] = r
	}
	s.mu.Unlock()
	s.release(old)
	return stored
}

// get returns a record, which the caller releases; nil if there is none.
func (s *store) get(name string) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[name]
	if r != nil {
		r.refs++
	}
	return r
}

// drop forgets a record, and tells whether it did; see put for waits.
func (s *store) drop(name string, waits func() bool) bool {
	s.mu.Lock()
	if !waits() {
		s.mu.Unlock()
		return false
	}
	old := s.records[name]
	delete(s.records, name)
	s.mu.Unlock()
	s.release(old)
	return true
}

// release gives up one use of r, which may be nil. The last one closes it.
func (s *store) release(r *record) {
	if r == nil {
		return
	}
	s.mu.Lock()
	r.refs--
	last := r.refs == 0
	s.mu.Unlock()
	if !last {
		return
	}
	closeAll(r.fds)
	s.cancel(extent{uint64(len(r.blob)), uint32(len(r.fds))})
}

// clear drops everything.
func (s *store) clear() {
	s.mu.Lock()
	all := s.records
	s.records = map[string]*record{}
	s.mu.Unlock()
	for _, r := range all {
		s.release(r)
	}
}

// held is how much there is, what is on its way included.
func (s *store) held() (records, descriptors int, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records), s.fds, s.bytes
}
