package gateway

import "sync"

// live are the requests that are on their way.
type live struct {
	mu   sync.Mutex
	here map[*exchange]struct{} // guarded by mu
}

func (l *live) add(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.here == nil {
		l.here = map[*exchange]struct{}{}
	}
	l.here[x] = struct{}{}
}

func (l *live) remove(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.here, x)
}

// kill ends the request of an ID, false where there is none.
func (l *live) kill(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.here {
		if x.id == id {
			x.kill(errKilled)
			return true
		}
	}
	return false
}
