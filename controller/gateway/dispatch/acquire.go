package dispatch

import (
	"context"
	"errors"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/queue"
)

// Errors of Acquire beside balance's.
var (
	// ErrFull: as many requests of the model wait as may, or another one has taken the place of this
	// one; see queue.Queue.Displace.
	ErrFull = queue.ErrFull
	// ErrWaited: the request has waited for as long as its Patience lasts.
	ErrWaited = errors.New("the request has waited for long enough")
)

// Request is one request that wants engines, one after the other until one has answered it. It
// belongs to one goroutine.
type Request struct {
	// ID is the request's name in reports.
	ID, Model string
	// Cost, Prefix and Replica are as of balance.Request.
	Cost   int64
	Prefix uint64
	// Prompt is how many tokens the prompt is estimated to have.
	Prompt  int64
	Replica string
	// Key, Weight, Priority and Arrived are its place in the queue; see queue.Entry.
	Key      string
	Weight   float64
	Priority int
	Arrived  time.Time
	// Tried are the service IDs of the engines that have failed it; others are preferred.
	Tried []string
	// Queued is for how long it has waited for engines, set by Acquire. Waited: it had to wait.
	Queued time.Duration
	Waited bool

	// waiter is nil until the request had to wait, in the queue of the model in.
	waiter *queue.Waiter[*Request]
	in     *model
	// asked: it has asked for an engine before; served: one had it.
	asked, served bool
	// got has the outcome of waiting.
	got chan outcome
}

func (r *Request) balance() balance.Request {
	return balance.Request{ID: r.ID, Key: r.Key, Model: r.Model, Cost: r.Cost, Prefix: r.Prefix, Replica: r.Replica, Tried: r.Tried}
}

// picky tells whether the request may wait for an engine although another one is free.
func (r *Request) picky() bool { return len(r.Tried) > 0 || r.Replica != "" }

func (r *Request) entry(m *model) queue.Entry[*Request] {
	return queue.Entry[*Request]{ID: r.ID, Key: r.Key, Weight: m.weight(r), Priority: r.Priority, Cost: r.Cost, Prompt: r.Prompt, Arrived: r.Arrived, Value: r}
}

type outcome struct {
	grant *Grant
	err   error
}

// Patience is for how long a request waits, and who is told meanwhile.
type Patience interface {
	// Until is when the request gives up, as things stand.
	Until(s Standing) time.Time
	// Next is when Look is to be called, zero for never.
	Next() time.Time
	// Look is called then. An error ends the waiting, and Acquire returns it.
	Look(s Standing) error
}

// Acquire gets an engine for a request, which waits in the queue of its model where none is free. A
// request that had an engine before is not refused for a full queue, and is not charged again. The
// error is one of this package's or balance's, the cause of the context's end, or p's.
func (d *Dispatcher) Acquire(ctx context.Context, r *Request, p Patience) (*Grant, error) {
	began := time.Now()
	g, err := d.ask(r)
	if g != nil || err != nil {
		return g, err
	}
	r.Waited = true
	defer func() { r.Queued += time.Since(began) }()
	g, err = d.await(ctx, r, p)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// await waits until the request has an outcome.
func (d *Dispatcher) await(ctx context.Context, r *Request, p Patience) (*Grant, error) {
	limit := time.NewTimer(time.Until(p.Until(d.Standing(r, false))))
	defer limit.Stop()
	look := looker(p)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if err := p.Look(d.Standing(r, true)); err != nil {
				d.abandon(r, ctx.Err() != nil)
				return nil, err
			}
			look.Reset(time.Until(p.Next()))
		case o := <-r.got:
			return o.grant, o.err
		case <-ctx.Done():
			d.abandon(r, true)
			return nil, context.Cause(ctx)
		case <-limit.C:
			// Engines may have come or gone since, and with them the limit.
			if rest := time.Until(p.Until(d.Standing(r, false))); rest > 0 {
				limit.Reset(rest)
				continue
			}
			d.abandon(r, false)
			return nil, ErrWaited
		}
	}
}

// looker rings when p is to look, which may be never.
func looker(p Patience) *time.Timer {
	next := p.Next()
	if next.IsZero() {
		never := time.NewTimer(time.Hour)
		never.Stop()
		return never
	}
	return time.NewTimer(time.Until(next))
}

// Rest waits for d, or until the patience is over.
func (d *Dispatcher) Rest(ctx context.Context, r *Request, p Patience, pause time.Duration) error {
	rest := time.NewTimer(min(pause, time.Until(p.Until(d.Standing(r, false)))))
	defer rest.Stop()
	look := looker(p)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if err := p.Look(d.Standing(r, true)); err != nil {
				return err
			}
			look.Reset(time.Until(p.Next()))
		case <-rest.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Retry asks the model's budget for one more attempt; else it says when to ask again.
func (d *Dispatcher) Retry(name string) (ok bool, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.models[name]; m != nil {
		return m.budget.Retry(time.Now())
	}
	return true, time.Time{} // the model is gone, which Acquire will say
}

// ask gets an engine for a request, or puts it into the queue: then both results are nil,
// and the request's channel has the outcome later.
func (d *Dispatcher) ask(r *Request) (*Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	again := r.asked
	if m := d.models[r.Model]; m == nil || m.queue.Len() == 0 {
		pick, err := d.table.Pick(now, r.balance())
		if err == nil {
			m = d.model(r.Model)
			m.enter(r)
			if !again {
				m.queue.Charge(now, r.Key, m.weight(r), r.Cost)
				d.came(now, m, r)
			}
			d.serving(now, m)
			return d.grant(now, m, r, pick), nil
		}
		if !d.waits(err, r.Model) {
			return nil, err
		}
	}
	m := d.model(r.Model)
	if r.got == nil {
		r.got = make(chan outcome, 1)
	}
	m.enter(r)
	switch {
	case r.waiter != nil && r.in == m:
		m.queue.Return(now, r.waiter)
	case again: // it had an engine, so it is not refused
		r.waiter, r.in = m.queue.Readmit(now, r.entry(m)), m
	default:
		if r.waiter = d.enter(now, m, r); r.waiter == nil {
			m.leave(r.Key)
			d.refuse(now, m)
			return nil, ErrFull
		}
		r.in = m
	}
	if m.queue.Len() == 1 && d.table.State(now, r.Model).Starting == 0 {
		m.downSince = time.Time{} // nobody has waited for it until now
	}
	if !again {
		d.came(now, m, r)
	}
	if d.missing(now, m) {
		d.wants.want(now, r.Model)
	}
	d.wants.tell() // a larger share may be had
	d.pump(now, m)
	return nil, nil //nolint:nilnil // it waits
}

// enter puts a request into the queue of a model, nil where that is full of requests that come before
// it. mu is held.
func (d *Dispatcher) enter(now time.Time, m *model, r *Request) *queue.Waiter[*Request] {
	length := d.length(m.name)
	if m.queue.Len() < length {
		w, err := m.queue.Push(now, r.entry(m))
		if err == nil {
			return w
		}
	}
	w, out := m.queue.Displace(now, r.entry(m), length)
	if out != nil {
		m.leave(out.Key)
		d.refuse(now, m)
		out.Value.got <- outcome{err: ErrFull}
	}
	return w
}

// came counts a request that was not refused. mu is held.
func (d *Dispatcher) came(now time.Time, m *model, r *Request) {
	r.asked = true
	m.budget.Request(now)
	m.counts.came(now)
}

// abandon takes a request out of the queue whose client waits no more. left tells that
// the client is gone, and with it its wish; else its wait is over, and it is refused, unless
// an engine had it before.
func (d *Dispatcher) abandon(r *Request, left bool) {
	d.mu.Lock()
	if m := r.in; m.queue.Remove(r.waiter) {
		now := time.Now()
		m.leave(r.Key)
		if left && m.queue.Len() == 0 {
			d.wants.cancel(m.name)
		}
		if !left && !r.served {
			d.refuse(now, m)
		}
		d.pump(now, m) // it may have been in the way of another one
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	if o := <-r.got; o.grant != nil { // it was served meanwhile
		o.grant.Release()
	}
}

// Standing is where a waiting request stands.
type Standing struct {
	// State is what the model is at.
	State api.QueueState
	// Position is 1 for the next one, 0 for one that does not wait now, or where it was not asked
	// for.
	Position int
	// Managed: a controller brings the model up.
	Managed bool
	// Usable: there are engines, and all are busy. Failing: those that there are have failed
	// requests.
	Usable, Failing bool
	// Problem is why no engine comes, empty where nothing is known of one.
	Problem balance.Problem
}

// Standing looks at where a request stands. Its position takes time in proportion of the
// keys that wait.
func (d *Dispatcher) Standing(r *Request, position bool) Standing {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	s := d.table.State(now, r.Model)
	out := Standing{Managed: s.Exists && !s.Stopped, Usable: s.Usable > 0, Failing: s.Usable > 0 && s.Open == s.Usable, State: stateOf(s)}
	if !out.Usable {
		out.Problem = s.Problem
	}
	if position && r.waiter != nil {
		out.Position = r.in.queue.Position(now, r.waiter)
	}
	return out
}

// stateOf names a model's state.
func stateOf(s balance.State) api.QueueState {
	switch {
	case s.Usable > 0 && s.InFlight > 0:
		return api.QueueBusy
	case s.Usable > 0:
		return api.QueueReady
	case s.Stopped:
		return api.QueueStopped
	case s.Problem.State != "":
		return s.Problem.State
	case s.Starting > 0:
		return api.QueueDeploying
	default:
		return api.QueueProvisioning
	}
}
