// Package balance decides which engine serves a request.
//
// A Table is plain state over plain data: it does no I/O, starts no
// goroutines, logs nothing and reads no clock. It is not safe for concurrent
// use; its owner guards it.
//
// What it promises:
//   - Only engines that Consul reports as passing are picked, from the update
//     that reports them until the update that no longer does.
//   - Of the engines of one replica only those with the highest fencing token
//     are picked, whether or not they pass: while the newest
//     holder cannot serve, an older one must not.
//   - No engine has more requests of this table than it has slots.
//   - Among the rest the one with the least outstanding work per slot is picked,
//     then the one with the fewest requests per slot, then one on the gateway's own
//     node, then the one that was picked longest ago. Work is counted in tokens; see
//     Request.Cost.
//   - Requests with the same Request.Prefix go to the same engine while that is free
//     and does not make it much busier than the others; see Imbalance. Else they go to
//     the prefix's second engine, and so on. Several tables with the same engines have
//     the same order.
//   - A request that goes on from what one replica has in its memory goes there while that
//     serves; see Request.Replica.
//   - An engine that fails is left alone for a while, and then gets one request
//     at a time until one is answered; see BreakerConfig.
//   - An engine whose node Consul cannot see is used only when no other is left.
//   - A replica that the controller drains gets no new request; see Away for the
//     only exception.
//   - An outage of Consul does not empty the table: see Update and Lost.
package balance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"remuda/internal/replica"
)

// Errors of Pick.
var (
	// ErrNoList means that there was no update yet.
	ErrNoList = errors.New("waiting for the list of engines from Consul")
	// ErrUnknownModel means that no engine serves the model or did lately.
	ErrUnknownModel = errors.New("unknown model")
	// ErrNoEngine means that the model is known but has no engine that may serve:
	// the controller has to start one.
	ErrNoEngine = errors.New("no active engine")
	// ErrBusy means that the model has engines that may serve, but none takes this
	// request now: all slots are taken, or breakers are open. The request should
	// wait until a pick is answered or released, the table changes, or the time of
	// NextProbe has come.
	ErrBusy = errors.New("no engine is free")
)

// Config holds the table's time spans and rules. Spans must not be negative.
type Config struct {
	// Grace is how long after an outage of Consul an engine that was active
	// before it is still used although Consul no longer vouches for it.
	Grace time.Duration
	// Remember is how long a model without engines stays known, and how long
	// the highest token of a replica without engines stays binding.
	Remember time.Duration
	// Breaker says how long an engine that fails is left alone.
	Breaker BreakerConfig
	// Imbalance says when load counts more than a prefix.
	Imbalance Imbalance
}

// Imbalance bounds what prefix affinity may do to the balance: a request goes to
// an engine for its prefix only while that engine's work per slot is
// at most Factor times the least work per slot of all engines that are free, plus
// Slack.
type Imbalance struct {
	// Factor is at least 1. 0 means 1.5: what is gained by a cached prefix is
	// lost by about half as much queueing in the engine's batch.
	Factor float64
	// Slack is in tokens. 0 means 2048, a prompt and an answer of usual length: without
	// it the first request on an idle model would drive the second one away.
	Slack int64
}

const (
	defaultFactor = 1.5
	defaultSlack  = 2048
)

// Endpoint is an engine with the names that are needed for each request. It
// never changes.
type Endpoint struct {
	replica.Engine
	// ServiceID is the engine's Consul service ID.
	ServiceID string
	// Addr is "host:port".
	Addr string
	// Replica is the replica's name as a string.
	Replica string
}

// Table holds the engines of all models.
type Table struct {
	cfg        Config
	engines    map[string]*engine   // by service ID
	parted     map[string][]*engine // by service ID; see part
	models     map[string]*model
	tops       map[string]*top // by replica
	orders     Orders
	ready      bool
	graceUntil time.Time
	picks      uint64
	// shares are those of replicas, nil where each has all of its slots; see SetShares.
	shares map[string]int
	// lends is described at Lend.
	lends bool
}

// top is the highest token that a replica ever had. It outlives the replica's
// engines: a holder that was frozen, and comes back when its successor is gone,
// is not served.
type top struct {
	token replica.Token
	// engines are how many there are now.
	engines int
	// last is when the replica last had an engine or a request.
	last     time.Time
	inFlight int
	flights  flights
	lastPick time.Time
	draining bool
	outcomes Outcomes
	// share is how many requests the table may have at the replica, -1 for as many as it has slots.
	share int
}

type model struct {
	engines  []*engine // sorted by service ID
	first    time.Time // when the model became known
	last     time.Time // when it last had an engine or a request
	inFlight int
	work     int64 // tokens
	// exists and stopped are what the controller says.
	exists, stopped bool
}

type engine struct {
	*Endpoint
	hash     uint64 // of the replica's name
	model    *model
	top      *top
	passing  bool // in the latest update, or since the last outage (see keptUntil)
	listed   bool // in the latest update
	parted   bool // not in the table, but requests are at it
	inFlight int
	// work is the cost of all requests in flight, perSlot the share of a slot.
	work     int64
	perSlot  float64
	lastPick uint64
	// keptUntil is not zero while the engine is used only because Consul was
	// away; it is forever while Consul still is.
	keptUntil time.Time
	// dropped tells that an engine on a node that is down refused a connection:
	// the node is not merely out of Consul's sight.
	dropped bool
	breaker breaker
}

// weigh adds to the engine's work. Equal quotients are equal floats, whatever they
// are quotients of, and no product can overflow.
func (e *engine) weigh(cost int64) {
	e.work += cost
	e.perSlot = float64(e.work) / float64(e.Slots)
}

// full tells whether no slot is free. There may be more requests than slots after an
// update that took slots away, or a share.
func (e *engine) full() bool {
	return e.inFlight >= e.Slots || e.top.share >= 0 && e.top.inFlight >= e.top.share
}

// maxSlots bounds what a service's meta may claim, so that sums stay in range.
const maxSlots = 1 << 20

// forever is later than any time that a table is asked about.
var forever = time.Unix(1<<40, 0)

// New returns an empty table. The error names every bad field.
func New(cfg Config) (*Table, error) {
	var bad []string
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Grace", cfg.Grace}, {"Remember", cfg.Remember}} {
		if f.d < 0 {
			bad = append(bad, fmt.Sprintf("%s is %s: must be 0 or more", f.name, f.d))
		}
	}
	bad = append(bad, cfg.Breaker.complete()...)
	bad = append(bad, cfg.Imbalance.complete()...)
	if bad != nil {
		return nil, fmt.Errorf("invalid balance config: %s", strings.Join(bad, "; "))
	}
	return &Table{
		cfg:     cfg,
		engines: map[string]*engine{},
		parted:  map[string][]*engine{},
		models:  map[string]*model{},
		tops:    map[string]*top{},
	}, nil
}

// complete sets the defaults and returns what is wrong.
func (i *Imbalance) complete() (bad []string) {
	switch {
	case i.Factor == 0:
		i.Factor = defaultFactor
	case !(i.Factor >= 1): // or it is not a number
		bad = append(bad, fmt.Sprintf("Imbalance.Factor is %g: must be at least 1, or 0 for the default", i.Factor))
	}
	switch {
	case i.Slack == 0:
		i.Slack = defaultSlack
	case i.Slack < 0:
		bad = append(bad, fmt.Sprintf("Imbalance.Slack is %d tokens: must be at least 1, or 0 for the default", i.Slack))
	}
	return bad
}

// Ready tells whether there was an update.
func (t *Table) Ready() bool { return t.ready }
