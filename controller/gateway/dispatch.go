package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// Dispatcher decides which engine serves a request, and when. It is safe for
// concurrent use.
type Dispatcher interface {
	// Acquire returns the right to send a request to an engine of its model, none
	// of those that it has tried. It may wait until ctx ends. Its error is or wraps
	// balance.ErrNoList, balance.ErrUnknownModel, balance.ErrNoEngine or the
	// cause of ctx.
	Acquire(ctx context.Context, r balance.Request) (Lease, error)
}

// Lease is the right to send one request to one engine.
type Lease interface {
	// Endpoint is the engine.
	Endpoint() *balance.Endpoint
	// DialFailed notes that no connection could be made, and tells whether
	// that is news.
	DialFailed() bool
	// Failed notes that the engine took the request and failed it.
	Failed()
	// Answered notes that the engine gave a proper answer, or began to.
	Answered()
	// Release ends the lease. It is called exactly once, after everything else.
	Release()
}

// roster is the table of engines, guarded for concurrent use.
type roster struct {
	mu    sync.Mutex
	table *balance.Table // guarded by mu, held only for table operations
	// changed gets a word when a request begins or ends, or other orders came; nil
	// where nobody listens.
	changed chan struct{}
	// wanted are the models of the controller that were asked for and had no engine,
	// since the last report; guarded by mu, empty where nobody listens.
	wanted map[string]struct{}
	// reported are those that the last report had; one that is not among them is urgent.
	reported map[string]struct{}
	// urgent gets a word when a model is wanted that was not when it was last reported;
	// nil where nobody listens.
	urgent chan struct{}
}

var _ Dispatcher = (*roster)(nil)

// Acquire gives out the least busy engine at once; it never waits.
func (d *roster) Acquire(_ context.Context, r balance.Request) (Lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pick, err := d.table.Pick(time.Now(), r)
	if err != nil {
		if errors.Is(err, balance.ErrNoEngine) && len(r.Tried) == 0 { // else there are engines
			d.want(r.Model)
		}
		return nil, err
	}
	// It is served: what was asked for before is no reason to bring it up later.
	delete(d.wanted, r.Model)
	delete(d.reported, r.Model)
	d.tell()
	return &rosterLease{d: d, pick: pick}, nil
}

func (d *roster) update(engines []replica.Engine, afterOutage bool) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Update(time.Now(), engines, afterOutage)
}

func (d *roster) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.table.Lost(time.Now())
}

// tell never waits.
func (d *roster) tell() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// want notes that clients want a model, for a report soon. mu is held.
func (d *roster) want(model string) {
	if _, told := d.wanted[model]; told || d.changed == nil || !d.table.Wanted(model) {
		return
	}
	if d.wanted == nil {
		d.wanted = map[string]struct{}{}
	}
	d.wanted[model] = struct{}{}
	d.tell()
	if _, known := d.reported[model]; !known {
		select {
		case d.urgent <- struct{}{}:
		default:
		}
	}
}

// takeWanted returns at most so many of the models that are wanted, for a report. They
// are not returned again unless they are wanted again.
func (d *roster) takeWanted(most int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.Sorted(maps.Keys(d.wanted))
	names = names[:min(most, len(names))]
	select {
	case <-d.urgent: // it is told now
	default:
	}
	d.reported = make(map[string]struct{}, len(names))
	for _, name := range names {
		delete(d.wanted, name)
		d.reported[name] = struct{}{}
	}
	return names
}

// giveWanted takes back what was not reported and is not served by now.
func (d *roster) giveWanted(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if _, still := d.reported[name]; still {
			d.want(name)
		}
	}
	d.reported = nil
}

func (d *roster) direct(o balance.Orders) balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.tell()
	return d.table.Direct(time.Now(), o)
}

func (d *roster) flights(each, total int) (uint64, []balance.ReplicaLoad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Flights(each, total)
}

func (d *roster) stopped(model string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Stopped(model)
}

func (d *roster) expire() balance.Changes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Expire(time.Now())
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

type rosterLease struct {
	d    *roster
	pick balance.Pick
}

func (l *rosterLease) Endpoint() *balance.Endpoint { return l.pick.Endpoint }

func (l *rosterLease) DialFailed() bool {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return l.d.table.DialFailed(time.Now(), l.pick)
}

func (l *rosterLease) Failed() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.table.Failed(time.Now(), l.pick)
}

func (l *rosterLease) Answered() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.table.Answered(l.pick)
}

func (l *rosterLease) Release() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.table.Release(time.Now(), l.pick)
	l.d.tell()
}
