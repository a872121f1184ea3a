package ui

import (
	"net/http"
	"reflect"
	"sync"
)

// maxMade is how many live parts are kept. One has up to some 200 KB.
const maxMade = 32

// madeParts keeps the live parts that were made last. Half the cost of a page is to render it, and most of what is
// asked for again has not changed.
type madeParts struct {
	mu sync.Mutex
	// of is by the token and the address that was asked for. It is guarded by mu.
	of map[[2]string]madePart
}

type madePart struct {
	user user
	data any
	part part
}

// part renders the live part of a page, or returns the last one of the same token and address if that was made of
// the same data.
func (m *madeParts) part(v *visit, template string, data any) part {
	key := [2]string{v.token, v.from}
	m.mu.Lock()
	last, ok := m.of[key]
	m.mu.Unlock()
	if ok && last.user == v.User && reflect.DeepEqual(last.data, data) {
		last.part.index = v.index
		return last.part
	}
	l := newPart(v, http.StatusOK, template, data)
	if v.gzip {
		l.zipped = zip(l.body)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = make(map[[2]string]madePart, maxMade)
	}
	if !ok && len(m.of) >= maxMade {
		for any := range m.of {
			delete(m.of, any)
			break
		}
	}
	m.of[key] = madePart{v.User, data, l}
	return l
}
