// Package dispatch decides which engine gets a request, and when.
//
// A Dispatcher has a table of engines (package balance) and, per model, one bounded queue
// (package queue). Acquire returns a Grant, the right to send one request to one engine, at once
// if an engine has a free slot and nobody waits, and else when it is the request's turn. A Grant
// is released once, and its slot goes to whoever waits.
//
// Nothing here sends anything. All methods may be called from several goroutines at once.
package dispatch

import (
	"sync"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// MaxQueue bounds the length of a queue: a waiting request costs a goroutine and its body.
const MaxQueue = 100_000

// Config is what a Dispatcher goes by. All of it must be valid.
type Config struct {
	// Length is how many requests of one model may wait, unless SetModels says otherwise, and
	// Aging how long one waits until it counts one priority more.
	Length int
	Aging  time.Duration
	// Budget bounds the retries of each model.
	Budget queue.BudgetConfig
	// Table has the engines, and Keys the limits of keys. The Dispatcher owns them from now on.
	Table *balance.Table
	Keys  *queue.Keys
	// Reports: somebody takes Wanted, and listens to Changed and Urgent.
	Reports bool
}

// Dispatcher gives engines to requests.
type Dispatcher struct {
	cfg Config

	mu      sync.Mutex     // guards what follows, held for arithmetic only
	table   *balance.Table // the engines
	models  map[string]*model
	keys    *queue.Keys
	stopped bool // no timer is armed any more
	alone   bool // the controller is away
	// lengths are of the models that have one of their own.
	lengths map[string]int
	// goals are the times to the first token of models that have such a goal.
	goals  map[string]time.Duration
	wants  wants
	shares shares
	// claimed are the replicas of the last Claims.
	claimed []string
	// lend fires when the controller has been away for lendAfter; nil while it is not away.
	lend *time.Timer

	// known is closed when the first list of engines came.
	known chan struct{}
}

// New returns a dispatcher without engines.
func New(cfg Config) *Dispatcher {
	d := &Dispatcher{cfg: cfg, table: cfg.Table, keys: cfg.Keys, models: map[string]*model{}, known: make(chan struct{})}
	if cfg.Reports {
		d.wants.changed, d.wants.urgent = make(chan struct{}, 1), make(chan struct{}, 1)
		d.table.SetShares(map[string]int{})
	}
	return d
}

// Close stops the timers. Whoever waits then is told nothing more.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for _, m := range d.models {
		m.disarm()
	}
	if d.lend != nil {
		d.lend.Stop()
	}
}

// Update takes a list of engines; see balance.Table.Update.
func (d *Dispatcher) Update(engines []replica.Engine, afterOutage bool) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.table.Ready() {
		defer close(d.known)
	}
	ch := d.changed(d.table.Update(time.Now(), engines, afterOutage))
	if d.table.Unshared() {
		d.wants.hurry() // nothing is sent to those that came before the controller gives a share
	}
	return ch
}

// Lost notes that Consul is away.
func (d *Dispatcher) Lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.table.Lost(time.Now())
}

// Direct takes what the controller says of models and replicas.
func (d *Dispatcher) Direct(o balance.Orders) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.wants.tell()
	o.Away = d.alone // an old state is no sign that it is back
	return d.changed(d.table.Direct(time.Now(), o))
}

// lendAfter is for how long the controller must be away before a share of no slots counts as one slot. An election
// takes less.
const lendAfter = 5 * time.Second

// Away notes whether the controller is away. After lendAfter, each replica that this gateway has no slot of gets one
// request at a time until the controller is back: its engine may be idle, and clients wait.
func (d *Dispatcher) Away(away bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alone = away
	d.table.Away(away)
	switch {
	case !away && d.lend != nil:
		d.lend.Stop()
		d.lend = nil
		d.table.Lend(false)
	case away && d.lend == nil && !d.stopped:
		var lend *time.Timer
		lend = time.AfterFunc(lendAfter, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.lend == lend && !d.stopped {
				d.table.Lend(true)
				d.pumpAll(time.Now())
			}
		})
		d.lend = lend
	}
	d.pumpAll(time.Now())
}

// Expire forgets what nobody asks for any more. Call it every now and then.
func (d *Dispatcher) Expire() balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.keys.Sweep(now)
	return d.changed(d.table.Expire(now))
}

// changed gives the engines that came to those who wait, and forgets the models that are gone. mu
// is held.
func (d *Dispatcher) changed(ch balance.Changes) balance.Changes {
	now := time.Now()
	for _, m := range d.models {
		if !m.downSince.IsZero() && d.table.State(now, m.name).Usable > 0 {
			m.up(now) // also where nobody waits for it any more
		}
	}
	d.pumpAll(now)
	for _, name := range ch.Models {
		if m := d.models[name]; m != nil && m.queue.Len() == 0 {
			m.disarm()
			delete(d.models, name)
		}
	}
	return ch
}

func (d *Dispatcher) pumpAll(now time.Time) {
	for _, m := range d.models {
		d.pump(now, m)
	}
}

// Flights returns the requests at engines; see balance.Table.Flights.
func (d *Dispatcher) Flights(each, total int) (uint64, []balance.ReplicaLoad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Flights(each, total)
}

// Known is closed when the first list of engines has come.
func (d *Dispatcher) Known() <-chan struct{} { return d.known }

// Ready tells whether the first list of engines has come.
func (d *Dispatcher) Ready() bool {
	select {
	case <-d.known:
		return true
	default:
		return false
	}
}

// Models lists the models that clients may ask for.
func (d *Dispatcher) Models() []balance.Model {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Models(time.Now())
}

// Lookup returns one of them; the error is one of balance's.
func (d *Dispatcher) Lookup(name string) (balance.Model, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Lookup(time.Now(), name)
}

// Endpoints returns the engines of a model that may serve, free or not.
func (d *Dispatcher) Endpoints(model string) []*balance.Endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Endpoints(time.Now(), model)
}

// Loads returns the state of the models' engines.
func (d *Dispatcher) Loads() []balance.Load {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Loads(time.Now())
}

// Admit counts a request of a key that has limits; see queue.Keys.Admit. room is what the key has
// left.
func (d *Dispatcher) Admit(key string, tokens int64) (room queue.Room, retryAfter time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	retryAfter, err = d.keys.Admit(now, key, tokens)
	return d.keys.Room(now, key), retryAfter, err
}

// Leave ends what Admit began; see queue.Keys.Done.
func (d *Dispatcher) Leave(key string, more int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys.Done(time.Now(), key, more)
}

// Limit returns the limits of a key.
func (d *Dispatcher) Limit(key string) queue.KeyLimit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys.Limit(key)
}

// SetKeys replaces the limits of keys.
func (d *Dispatcher) SetKeys(def queue.KeyLimit, named map[string]queue.KeyLimit) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys.Set(time.Now(), def, named)
}

// SetModels replaces the lengths of queues that models have of their own, and their goals for the time
// to the first token.
func (d *Dispatcher) SetModels(lengths map[string]int, goals map[string]time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lengths, d.goals = lengths, goals
}

// wholeLength returns how many requests of a model may wait at all gateways together. mu is held.
func (d *Dispatcher) wholeLength(model string) int {
	if n := d.lengths[model]; n > 0 {
		return n
	}
	return d.cfg.Length
}

// length returns how many requests of a model may wait here. mu is held.
func (d *Dispatcher) length(model string) int {
	whole := d.wholeLength(model)
	if n, ok := d.shares.queue[model]; ok {
		return min(n, whole)
	}
	return whole
}
