package fault

import "sync"

// Box is the current Set of one engine. It is safe for concurrent use.
type Box struct {
	mu      sync.Mutex
	set     Set
	changed chan struct{}
}

// NewBox holds set to begin with.
func NewBox(set Set) *Box { return &Box{set: set, changed: make(chan struct{})} }

// Get is the current set.
func (b *Box) Get() Set {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set
}

// Watch is the current set and a channel that is closed when it changes.
func (b *Box) Watch() (Set, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set, b.changed
}

// Update replaces the set by what f makes of it, unless f fails.
func (b *Box) Update(f func(Set) (Set, error)) (Set, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next, err := f(b.set)
	if err != nil {
		return b.set, err
	}
	b.set = next
	close(b.changed)
	b.changed = make(chan struct{})
	return next, nil
}
