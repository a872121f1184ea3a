package gateway

import (
	"container/list"
	"sync"
)

const (
	// maxResponses is how many responses are remembered, some 30 MiB of them; of more the one that was
	// asked for longest ago is forgotten, and searched for when it is asked for again.
	maxResponses = 100_000
	// maxResponseID is how long the ID of a response may be: engines make one of an X-Request-Id.
	maxResponseID = 256
)

// kept says who keeps a response.
type kept struct {
	replica, model string
	// key is the name of the API key that it was made with, empty where that is not known.
	key string
}

// responses remembers which replicas keep which responses: an engine has its own in its memory.
type responses struct {
	mu    sync.Mutex
	byID  map[string]*list.Element // guarded by mu, as is order
	order list.List                // of *remembered, the one asked for last is first
}

type remembered struct {
	id string
	kept
}

// put remembers a response. One of another key stays that key's: clients can choose the IDs that
// engines give.
func (r *responses) put(id string, k kept) {
	if id == "" || len(id) > maxResponseID {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		r.order.MoveToFront(e)
		if one := e.Value.(*remembered); one.key == k.key {
			one.kept = k
		}
		return
	}
	if r.byID == nil {
		r.byID = map[string]*list.Element{}
	}
	r.byID[id] = r.order.PushFront(&remembered{id: id, kept: k})
	if r.order.Len() > maxResponses {
		delete(r.byID, r.order.Remove(r.order.Back()).(*remembered).id)
	}
}

// get returns who keeps a response.
func (r *responses) get(id string) (kept, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		return kept{}, false
	}
	r.order.MoveToFront(e)
	return e.Value.(*remembered).kept, true
}

// forget forgets a response that is gone.
func (r *responses) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		r.order.Remove(e)
		delete(r.byID, id)
	}
}
