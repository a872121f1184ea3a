package queue_test

import (
	"math"
	"time"

	"remuda/controller/gateway/queue"
)

// model is the order of the package comment, done slowly: it looks at all
// requests each time, and never forgets a key but by its age.
type model struct {
	length int
	aging  time.Duration
	now    time.Duration
	keys   map[string]*modelKey
	reqs   map[int]*modelRequest
	count  int
	clock  [10]int64
}

type modelKey struct {
	tag       int64
	class     int
	idleSince time.Duration
}

type modelRequest struct {
	queue.Entry[int]
	seq           int
	toll          int64
	waiting, paid bool
}

func newModel(length int, aging time.Duration) *model {
	return &model{length: length, aging: aging, keys: map[string]*modelKey{}, reqs: map[int]*modelRequest{}}
}

func modelToll(weight float64, cost int64) int64 {
	if weight == 0 {
		weight = 1
	}
	return int64(math.Round(float64(cost) * 1024 / weight))
}

// score is Arrived - Priority*Aging.
func (m *model) score(r *modelRequest) time.Duration {
	return r.Arrived.Sub(t0) - time.Duration(r.Priority)*m.aging
}

func (m *model) level(now time.Duration, r *modelRequest) float64 {
	return math.Floor(float64(now-m.score(r)) / float64(m.aging))
}

// first of a key, nil if none waits.
func (m *model) first(key string) *modelRequest {
	var best *modelRequest
	for _, r := range m.reqs {
		if !r.waiting || r.Key != key {
			continue
		}
		if best == nil || m.score(r) < m.score(best) || (m.score(r) == m.score(best) && r.seq < best.seq) {
			best = r
		}
	}
	return best
}

func (m *model) waiting() (n int) {
	for _, r := range m.reqs {
		if r.waiting {
			n++
		}
	}
	return n
}

func (m *model) key(now time.Duration, name string) *modelKey {
	m.now = now
	k := m.keys[name]
	if k == nil || (m.first(name) == nil && now-k.idleSince >= m.aging) {
		k = &modelKey{tag: m.clock[0]}
		m.keys[name] = k
	}
	return k
}

// settle brings a key's tag to the clock of its first request.
func (m *model) settle(name string) {
	k := m.keys[name]
	if r := m.first(name); r != nil {
		k.tag += m.clock[r.Priority] - m.clock[k.class]
		k.class = r.Priority
	} else {
		k.idleSince = m.now
	}
	if m.waiting() == 0 {
		for i := range m.clock {
			m.clock[i] = m.clock[9]
		}
	}
}

func (m *model) enter(now time.Duration, r *modelRequest) {
	k := m.key(now, r.Key)
	if m.first(r.Key) == nil {
		k.tag = m.clock[r.Priority] + max(0, k.tag-m.clock[k.class])
		k.class = r.Priority
	}
	if r.paid {
		k.tag -= r.toll
	}
	r.waiting = true
	m.settle(r.Key)
}

func (m *model) push(now time.Duration, e queue.Entry[int]) {
	m.count++
	r := &modelRequest{Entry: e, seq: m.count, toll: modelToll(e.Weight, e.Cost)}
	m.reqs[e.Value] = r
	m.enter(now, r)
}

func (m *model) reweigh(key string, weight float64) {
	for _, r := range m.reqs {
		if r.waiting && !r.paid && r.Key == key {
			r.toll = modelToll(weight, r.Cost)
		}
	}
}

func (m *model) back(now time.Duration, id int) { m.enter(now, m.reqs[id]) }

func (m *model) pop(now time.Duration) (id int) {
	var best *modelRequest
	less := func(a, b *modelRequest) bool {
		la, lb := m.level(now, a), m.level(now, b)
		ta, tb := m.keys[a.Key].tag, m.keys[b.Key].tag
		switch {
		case la != lb:
			return la > lb
		case ta != tb:
			return ta < tb
		case !a.Arrived.Equal(b.Arrived):
			return a.Arrived.Before(b.Arrived)
		default:
			return a.seq < b.seq
		}
	}
	for name := range m.keys {
		if r := m.first(name); r != nil && (best == nil || less(r, best)) {
			best = r
		}
	}
	if best == nil {
		return 0
	}
	m.now = now
	for i := best.Priority; i <= 9; i++ {
		m.clock[i] = max(m.clock[i], m.keys[best.Key].tag)
	}
	best.paid = true
	m.remove(best.Value)
	return best.Value
}

func (m *model) remove(id int) {
	r := m.reqs[id]
	if r.paid {
		m.keys[r.Key].tag += r.toll
	}
	r.waiting = false
	m.settle(r.Key)
}

func (m *model) charge(now time.Duration, name string, weight float64, cost int64) {
	k := m.key(now, name)
	if m.first(name) == nil {
		k.tag, k.class = m.clock[0]+max(0, k.tag-m.clock[k.class]), 0
		if m.waiting() == 0 {
			for i := range m.clock {
				m.clock[i] = max(m.clock[i], k.tag)
			}
		}
	}
	k.tag += modelToll(weight, cost)
	m.settle(name)
}
