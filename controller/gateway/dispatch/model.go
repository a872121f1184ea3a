package dispatch

import (
	"errors"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/queue"
)

// drainWindow is over how long the speed of a queue is measured.
const drainWindow = 30 * time.Second

// lookPast is how many waiting requests are looked at for one that can go, where the
// first waits for an engine that has not failed it yet, or that has what it goes on from.
const lookPast = 64

// model is what the dispatcher has of one model. Its engines' slots take the first request of the
// queue whenever one is free.
type model struct {
	name   string
	queue  *queue.Queue[*Request]
	drain  *queue.Drain
	budget *queue.Budget
	counts counts
	// keys are those with requests at engines or in the queue.
	keys map[string]*keyLoad
	// refusedBefore are those of counts at the last report.
	refusedBefore int64
	// downSince is when a request first found no engine, zero while there is one.
	downSince time.Time
	// loadTook is how long it took lately until there was one again, 0 if that is not
	// known.
	loadTook time.Duration
	// probe looks at the queue again when a broken engine may be tried.
	probe *time.Timer
}

// model returns a model's, which is made where there is none. mu is held.
func (d *Dispatcher) model(name string) *model {
	if m := d.models[name]; m != nil {
		return m
	}
	q, err := queue.New[*Request](queue.Config{Length: MaxQueue, Aging: d.cfg.Aging})
	if err != nil {
		panic(err) // the config was checked
	}
	b, err := queue.NewBudget(d.cfg.Budget)
	if err != nil {
		panic(err)
	}
	m := &model{name: name, keys: map[string]*keyLoad{}, queue: q, drain: queue.NewDrain(drainWindow), budget: b}
	d.models[name] = m
	return m
}

// pump gives engines to those who wait for them. mu is held.
func (d *Dispatcher) pump(now time.Time, m *model) {
	for m.queue.Len() > 0 {
		first := m.queue.Peek(now)
		pick, err := d.table.Pick(now, first.Value.balance())
		switch {
		case err == nil:
			m.queue.Pop(now)
			d.give(now, m, first.Value, pick)
		case !d.waits(err, m.name):
			for _, w := range m.queue.All(now, m.queue.Len()) {
				m.queue.Remove(w)
				m.leave(w.Key)
				w.Value.got <- outcome{err: err}
			}
		case first.Value.picky() && d.lookPast(now, m):
		default:
			d.missing(now, m)
			d.arm(now, m)
			return
		}
	}
	m.disarm()
}

// lookPast serves one request behind the first, which waits for a certain engine.
func (d *Dispatcher) lookPast(now time.Time, m *model) bool {
	fresh := true // of those that are not picky all are alike
	for _, w := range m.queue.All(now, lookPast) {
		picky := w.Value.picky()
		if !picky && !fresh {
			continue
		}
		pick, err := d.table.Pick(now, w.Value.balance())
		if err != nil {
			fresh = fresh && picky
			continue
		}
		m.queue.Remove(w)
		m.queue.Charge(now, w.Key, w.Weight, w.Cost)
		d.give(now, m, w.Value, pick)
		return true
	}
	return false
}

func (d *Dispatcher) give(now time.Time, m *model, r *Request, pick balance.Pick) {
	d.serving(now, m)
	r.got <- outcome{grant: d.grant(now, m, r, pick)}
}

// serving notes that the model has an engine. mu is held.
func (d *Dispatcher) serving(now time.Time, m *model) {
	m.up(now)
	// What was asked for before is no reason to bring it up later.
	d.wants.served(m.name)
	d.wants.tell()
}

// up notes that the model has an engine again.
func (m *model) up(now time.Time) {
	if !m.downSince.IsZero() {
		m.loadTook = now.Sub(m.downSince)
		m.downSince = time.Time{}
	}
}

// missing notes where the model has no engine for those who wait, and tells whether the controller
// could bring one up. mu is held.
func (d *Dispatcher) missing(now time.Time, m *model) (wanted bool) {
	s := d.table.State(now, m.name)
	if s.Usable > 0 {
		return false
	}
	if m.downSince.IsZero() {
		m.downSince = now
	}
	return s.Exists && !s.Stopped
}

// arm looks at the queue again when a broken engine takes a probe. mu is held.
func (d *Dispatcher) arm(now time.Time, m *model) {
	at, ok := d.table.NextProbe(now, m.name)
	if !ok || d.stopped {
		m.disarm()
		return
	}
	wait := max(at.Sub(now), time.Millisecond)
	if m.probe != nil {
		m.probe.Reset(wait)
		return
	}
	m.probe = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.stopped {
			d.pump(time.Now(), m)
		}
	})
}

func (m *model) disarm() {
	if m.probe != nil {
		m.probe.Stop()
	}
}

// waits tells whether an error of Pick is one that time may heal.
func (d *Dispatcher) waits(err error, model string) bool {
	return errors.Is(err, balance.ErrBusy) || (errors.Is(err, balance.ErrNoEngine) && !d.table.Stopped(model))
}

// MaxRetryAfter bounds what clients are told: a queue that stands still says nothing.
const MaxRetryAfter = 10 * time.Minute

// RetryAfter is when a client that was not served should come back: fallback where nothing is
// known.
func (d *Dispatcher) RetryAfter(name string, fallback time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	m := d.models[name]
	if m == nil {
		return fallback
	}
	if !m.downSince.IsZero() {
		if left := m.loadTook - now.Sub(m.downSince); left > 0 {
			return min(left, MaxRetryAfter)
		}
		return fallback
	}
	if wait, ok := m.drain.Wait(now, m.queue.Len()+1); ok && m.queue.Len() > 0 {
		return min(max(wait, time.Second), MaxRetryAfter)
	}
	return fallback
}
