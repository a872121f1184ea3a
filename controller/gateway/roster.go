package gateway

import (
	"errors"
	"sync"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// roster is the table of engines and the processors of the models, guarded for
// concurrent use.
type roster struct {
	cfg Queue
	// budget is what the retry budget of each model is made from.
	budget queue.BudgetConfig

	mu         sync.Mutex     // guards what follows, held for arithmetic only
	table      *balance.Table // the engines
	processors map[string]*processor
	keys       *queue.Keys
	stopped    bool // no timer is armed any more
	alone      bool // the controller is away
	// queueLengths are of the models that have one of their own.
	queueLengths map[string]int

	// known is closed when the first list of engines came.
	known chan struct{}

	wants wants
}

func newRoster(cfg Config, table *balance.Table, keys *queue.Keys) *roster {
	return &roster{
		cfg: cfg.Queue,
		budget: queue.BudgetConfig{
			Ratio: cfg.Retries.BudgetRatio, Floor: cfg.Retries.BudgetFloor, Window: cfg.Retries.BudgetWindow,
		},
		table: table, keys: keys, processors: map[string]*processor{}, known: make(chan struct{}),
	}
}

// close stops the timers. Whoever waits then is told nothing more.
func (d *roster) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for _, p := range d.processors {
		p.disarm()
	}
}

func (d *roster) update(engines []replica.Engine, afterOutage bool) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.table.Ready() {
		defer close(d.known)
	}
	return d.changed(d.table.Update(time.Now(), engines, afterOutage))
}

func (d *roster) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.table.Lost(time.Now())
}

func (d *roster) direct(o balance.Orders) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.wants.tell()
	o.Away = d.alone // an old state is no sign that it is back
	return d.changed(d.table.Direct(time.Now(), o))
}

// away notes whether the controller is.
func (d *roster) away(away bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alone = away
	d.table.Away(away)
	d.pumpAll(time.Now())
}

func (d *roster) expire() balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.keys.Sweep(now)
	return d.changed(d.table.Expire(now))
}

// changed gives the engines that came to who waits, and forgets the processors of the
// models that are gone. mu is held.
func (d *roster) changed(ch balance.Changes) balance.Changes {
	now := time.Now()
	for _, p := range d.processors {
		if !p.downSince.IsZero() && d.table.State(now, p.model).Usable > 0 {
			p.up(now) // also where nobody waits for it any more
		}
	}
	d.pumpAll(now)
	for _, name := range ch.Models {
		if p := d.processors[name]; p != nil && p.queue.Len() == 0 {
			p.disarm()
			delete(d.processors, name)
		}
	}
	return ch
}

func (d *roster) pumpAll(now time.Time) {
	for _, p := range d.processors {
		d.pump(now, p)
	}
}

func (d *roster) flights(each, total int) (uint64, []balance.ReplicaLoad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Flights(each, total)
}

func (d *roster) ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Ready()
}

func (d *roster) models() []balance.Model {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Models(time.Now())
}

func (d *roster) lookup(name string) (balance.Model, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Lookup(time.Now(), name)
}

func (d *roster) loads() []balance.Load {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Loads(time.Now())
}

// admit counts a request of a key that has limits. The error is queue.ErrRate or
// queue.ErrConcurrency.
func (d *roster) admit(key string) (retryAfter time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys.Admit(time.Now(), key)
}

// leave ends what admit began.
func (d *roster) leave(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys.Done(time.Now(), key)
}

// limit returns the limits of a key.
func (d *roster) limit(key string) queue.KeyLimit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys.Limit(key)
}

// setKeys replaces the limits of keys.
func (d *roster) setKeys(def queue.KeyLimit, named map[string]queue.KeyLimit) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys.Set(time.Now(), def, named) //nolint:wrapcheck // the caller says whose they are
}

// setLengths replaces the lengths of queues that models have of their own.
func (d *roster) setLengths(lengths map[string]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queueLengths = lengths
}

// queueLength returns how many requests of a model may wait. mu is held.
func (d *roster) queueLength(model string) int {
	if n := d.queueLengths[model]; n > 0 {
		return n
	}
	return int(d.cfg.Length)
}

// lease is the right to send one request to one engine.
type lease struct {
	d    *roster
	p    *processor
	pick balance.Pick
	// first: the request had no engine before. began is when it got this one.
	first bool
	began time.Time
}

// endpoint is the engine.
func (l *lease) endpoint() *balance.Endpoint { return l.pick.Endpoint }

// failed notes a fault of the engine, and tells whether it gets no requests from now on
// and did until now.
func (l *lease) failed(f balance.Fault) (news bool) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return l.d.table.Failed(time.Now(), l.pick, f)
}

// givenUp notes that the client waits no more for the engine's first byte, and tells what
// failed does.
func (l *lease) givenUp(patience time.Duration) (news bool) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return l.d.table.GivenUp(time.Now(), l.pick, patience)
}

// answered notes that the engine gave a proper answer, or began to. One that was broken
// takes those who wait again.
func (l *lease) answered() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	now := time.Now()
	l.d.table.Answered(now, l.pick)
	l.d.pump(now, l.p)
}

// release ends the lease, exactly once and after everything else. The slot goes to who
// waits for it.
func (l *lease) release() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	now := time.Now()
	l.d.table.Release(now, l.pick)
	l.p.drain.Done(now)
	l.p.counts.left(now, l)
	l.d.pump(now, l.p)
	l.d.wants.tell()
}

// waits tells whether an error of Pick is one that time may heal.
func (d *roster) waits(err error, model string) bool {
	return errors.Is(err, balance.ErrBusy) || (errors.Is(err, balance.ErrNoEngine) && !d.table.Stopped(model))
}
