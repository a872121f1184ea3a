package gateway

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/queue"
)

// drainWindow is over how long the speed of a queue is measured.
const drainWindow = 30 * time.Second

// lookPast is how many waiting requests are looked at for one that can go, where the
// first waits for an engine that has not failed it yet.
const lookPast = 16

// processor is one model's queue. Its engines' slots are its workers: a slot that is
// free takes the first request of the queue.
type processor struct {
	model  string
	queue  *queue.Queue[*ticket]
	drain  *queue.Drain
	budget *queue.Budget
	counts counts
	// downSince is when a request first found no engine, zero while there is one.
	downSince time.Time
	// loadTook is how long it took lately until there was one again, 0 if that is not
	// known.
	loadTook time.Duration
	// probe looks at the queue again when a broken engine may be tried.
	probe *time.Timer
}

// ticket is a request that wants an engine.
type ticket struct {
	request balance.Request
	entry   queue.Entry[*ticket]
	// waiter is nil until the request had to wait, in the queue of that processor.
	waiter *queue.Waiter[*ticket]
	in     *processor
	// served: an engine had it.
	served bool
	// got has the outcome of waiting.
	got chan outcome
}

type outcome struct {
	lease *lease
	err   error
}

// processor returns the model's, which is made where there is none. mu is held.
func (d *roster) processor(model string) *processor {
	if p := d.processors[model]; p != nil {
		return p
	}
	q, err := queue.New[*ticket](queue.Config{Length: maxQueue, Aging: d.cfg.Aging})
	if err != nil {
		panic(err) // the config was checked
	}
	b, err := queue.NewBudget(d.budget)
	if err != nil {
		panic(err)
	}
	p := &processor{model: model, queue: q, drain: queue.NewDrain(drainWindow), budget: b}
	d.processors[model] = p
	return p
}

// ask gets an engine for a request, or puts it into the queue: then both results are nil,
// and the ticket's channel has the outcome later. The error is queue.ErrFull or one of
// balance's.
func (d *roster) ask(t *ticket, again bool) (*lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	model := t.request.Model
	if p := d.processors[model]; p == nil || p.queue.Len() == 0 {
		pick, err := d.table.Pick(now, t.request)
		if err == nil {
			p = d.processor(model)
			if t.waiter == nil && !again {
				p.queue.Charge(now, t.entry.Key, t.entry.Weight, t.entry.Cost)
			}
			if !again {
				p.budget.Request(now)
				p.counts.came(now)
			}
			d.serving(now, p)
			return d.lease(now, p, t, pick), nil
		}
		if !d.waits(err, model) {
			return nil, err
		}
	}
	p := d.processor(model)
	if t.got == nil {
		t.got = make(chan outcome, 1)
	}
	switch {
	case t.waiter != nil && t.in == p:
		p.queue.Return(now, t.waiter)
	case again: // it had an engine, so it is not refused
		t.waiter, t.in = p.queue.Readmit(now, t.entry), p
	default:
		err := queue.ErrFull
		var w *queue.Waiter[*ticket]
		if p.queue.Len() < d.queueLength(model) {
			w, err = p.queue.Push(now, t.entry)
		}
		if err != nil {
			p.counts.refuse(now)
			return nil, err
		}
		t.waiter, t.in = w, p
	}
	if p.queue.Len() == 1 && d.table.State(now, model).Starting == 0 {
		p.downSince = time.Time{} // nobody has waited for it until now
	}
	if !again {
		p.budget.Request(now)
		p.counts.came(now)
	}
	if d.missing(now, p) {
		d.wants.want(now, model)
	}
	d.pump(now, p)
	return nil, nil //nolint:nilnil // it waits
}

// abandon takes a request out of the queue whose client waits no more. left tells that
// the client is gone, and with it its wish; else its wait is over, and it is refused, unless
// an engine had it before.
func (d *roster) abandon(t *ticket, left bool) {
	d.mu.Lock()
	if p := t.in; p.queue.Remove(t.waiter) {
		now := time.Now()
		if left && p.queue.Len() == 0 {
			d.wants.cancel(p.model)
		}
		if !left && !t.served {
			p.counts.refuse(now)
		}
		d.pump(now, p) // it may have been in the way of another one
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	if o := <-t.got; o.lease != nil { // it was served meanwhile
		o.lease.release()
	}
}

// pump gives engines to who waits for them. mu is held.
func (d *roster) pump(now time.Time, p *processor) {
	for p.queue.Len() > 0 {
		first := p.queue.Peek(now)
		pick, err := d.table.Pick(now, first.Value.request)
		switch {
		case err == nil:
			p.queue.Pop(now)
			d.give(now, p, first.Value, pick)
		case !d.waits(err, p.model):
			for _, w := range p.queue.All(now, p.queue.Len()) {
				p.queue.Remove(w)
				w.Value.got <- outcome{err: err}
			}
		case len(first.Value.request.Tried) > 0 && d.lookPast(now, p):
		default:
			d.missing(now, p)
			d.arm(now, p)
			return
		}
	}
	p.disarm()
}

// lookPast serves one request behind the first, which waits for a certain engine.
func (d *roster) lookPast(now time.Time, p *processor) bool {
	fresh := true // of those that have tried nothing all are alike
	for _, w := range p.queue.All(now, lookPast) {
		tried := len(w.Value.request.Tried) > 0
		if !tried && !fresh {
			continue
		}
		pick, err := d.table.Pick(now, w.Value.request)
		if err != nil {
			fresh = fresh && tried
			continue
		}
		p.queue.Remove(w)
		p.queue.Charge(now, w.Key, w.Weight, w.Cost)
		d.give(now, p, w.Value, pick)
		return true
	}
	return false
}

func (d *roster) give(now time.Time, p *processor, t *ticket, pick balance.Pick) {
	d.serving(now, p)
	t.got <- outcome{lease: d.lease(now, p, t, pick)}
}

// lease gives an engine to a request. mu is held.
func (d *roster) lease(now time.Time, p *processor, t *ticket, pick balance.Pick) *lease {
	first := !t.served
	t.served = true
	return &lease{d: d, p: p, pick: pick, first: first, began: now}
}

// serving notes that the model has an engine. mu is held.
func (d *roster) serving(now time.Time, p *processor) {
	p.up(now)
	// What was asked for before is no reason to bring it up later.
	d.wants.served(p.model)
	d.wants.tell()
}

// up notes that the model has an engine again.
func (p *processor) up(now time.Time) {
	if !p.downSince.IsZero() {
		p.loadTook = now.Sub(p.downSince)
		p.downSince = time.Time{}
	}
}

// missing notes where the model has no engine for who waits, and tells whether the controller
// could bring one up. mu is held.
func (d *roster) missing(now time.Time, p *processor) (wanted bool) {
	s := d.table.State(now, p.model)
	if s.Usable > 0 {
		return false
	}
	if p.downSince.IsZero() {
		p.downSince = now
	}
	return s.Exists && !s.Stopped
}

// arm looks at the queue again when a broken engine takes a probe. mu is held.
func (d *roster) arm(now time.Time, p *processor) {
	at, ok := d.table.NextProbe(now, p.model)
	if !ok || d.stopped {
		p.disarm()
		return
	}
	wait := max(at.Sub(now), time.Millisecond)
	if p.probe != nil {
		p.probe.Reset(wait)
		return
	}
	p.probe = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.stopped {
			d.pump(time.Now(), p)
		}
	})
}

func (p *processor) disarm() {
	if p.probe != nil {
		p.probe.Stop()
	}
}

// retry asks the model's budget for one more attempt; else it says when to ask again.
func (d *roster) retry(model string) (ok bool, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.processors[model]; p != nil {
		return p.budget.Retry(time.Now())
	}
	return true, time.Time{} // the model is gone, which ask will say
}

// standing is where a waiting request stands.
type standing struct {
	state string
	// position is 1 for the next one, 0 for one that does not wait now.
	position int
	// managed: a controller brings the model up.
	managed bool
	// usable: there are engines, and all are busy. failing: those that there are have failed
	// requests.
	usable, failing bool
	// problem is why no engine comes, empty where nothing is known of one.
	problem balance.Problem
}

// standing looks at where a request stands. Its position takes time in proportion of the
// keys that wait.
func (d *roster) standing(t *ticket, position bool) standing {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	s := d.table.State(now, t.request.Model)
	out := standing{managed: s.Exists && !s.Stopped, usable: s.Usable > 0, failing: s.Usable > 0 && s.Open == s.Usable, state: stateOf(s)}
	if !out.usable {
		out.problem = s.Problem
	}
	if position && t.waiter != nil {
		out.position = t.in.queue.Position(now, t.waiter)
	}
	return out
}

// stateOf names a model's state.
func stateOf(s balance.State) string {
	switch {
	case s.Usable > 0 && s.InFlight > 0:
		return api.QueueBusy
	case s.Usable > 0:
		return api.QueueReady
	case s.Stopped:
		return api.QueueCancelled
	case s.Problem.State != "":
		return s.Problem.State
	case s.Starting > 0:
		return api.QueueDeploying
	default:
		return api.QueueProvisioning
	}
}

// retryAfter is when a client that was not served should come back: fallback where
// nothing is known.
func (d *roster) retryAfter(model string, fallback time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	p := d.processors[model]
	if p == nil {
		return fallback
	}
	if !p.downSince.IsZero() {
		if left := p.loadTook - now.Sub(p.downSince); left > 0 {
			return min(left, maxRetryAfter)
		}
		return fallback
	}
	if wait, ok := p.drain.Wait(now, p.queue.Len()+1); ok && p.queue.Len() > 0 {
		return min(max(wait, time.Second), maxRetryAfter)
	}
	return fallback
}

// maxRetryAfter bounds what clients are told: a queue that stands still says nothing.
const maxRetryAfter = 10 * time.Minute

// queues returns what the models have, those with the longest queues first, and the counters
// of all.
func (d *roster) queues(models, requests int) ([]api.QueueLoad, []api.ModelCounters) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var out []api.QueueLoad
	for _, p := range d.processors {
		s := d.table.State(now, p.model)
		q := api.QueueLoad{Model: p.model, State: stateOf(s), Waiting: p.queue.Len(), InFlight: s.InFlight, OldestAt: p.queue.Oldest(), CompletedPerSecond: p.drain.PerSecond(now)}
		if q.Waiting == 0 && q.InFlight == 0 && q.CompletedPerSecond == 0 {
			continue
		}
		out = append(out, q)
	}
	sortQueues(out)
	counters := d.counters(out, models)
	out = out[:min(len(out), models)]
	for i := range out {
		n := min(out[i].Waiting, api.MaxReportRequests, requests)
		requests -= n
		if n == 0 {
			continue
		}
		for _, w := range d.processors[out[i].Model].queue.All(now, n) {
			out[i].Requests = append(out[i].Requests, api.Request{ID: w.ID, Started: w.Arrived})
		}
	}
	return out, counters
}

// length is how long a queue is.
type length struct {
	waiting int
	oldest  time.Time
}

// lengths returns the length of every model's queue.
func (d *roster) lengths() map[string]length {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]length, len(d.processors))
	for name, p := range d.processors {
		out[name] = length{waiting: p.queue.Len(), oldest: p.queue.Oldest()}
	}
	return out
}

func sortQueues(q []api.QueueLoad) {
	slices.SortFunc(q, func(a, b api.QueueLoad) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.InFlight, a.InFlight), strings.Compare(a.Model, b.Model))
	})
}

// isFull tells whether an error says that no more may wait.
func isFull(err error) bool { return errors.Is(err, queue.ErrFull) }
