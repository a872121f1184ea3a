package balance

import (
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// BreakerConfig says how long an engine that fails is left alone.
//
// Each engine has a breaker. It is closed while all is well. It opens
//   - at once on Dial, Reset, Timeout (see also GivenUp), Protocol and Content: such an engine fails
//     fast or hangs, is always the least busy, and would draw all traffic;
//   - on Status and Cut after 5 in a row, or when more than half of the last 20
//     requests, and at least 10, ended so: one of them may be the request's fault.
//
// An open breaker lets nothing through until a probe is due. Then it is half-open:
// one request at a time goes to the engine. An answer closes the breaker, a failure
// opens it for twice as long. Until one request has ended well after that, the engine
// is on trial: any single failure opens the breaker again, for twice as long, so that
// an engine that begins answers and breaks them off does not get 5 more each time.
//
// What comes of requests that were sent before the breaker opened is no news and
// does not count: ten requests that are lost with one process are one failure.
//
// An engine that Consul newly lists, or lists with another token or address, is
// another process: its breaker is closed.
type BreakerConfig struct {
	// Base is for how long a breaker opens first. 0 means 2 s: long enough to skip a
	// dead engine until its check is critical.
	Base time.Duration
	// Max is the longest for which one opens. 0 means 30 s, or Base where that is
	// more: nobody wants to wait longer for an engine that was mended.
	Max time.Duration
	// Sole is for how long a breaker opens first after Dial, Reset or Cut while no
	// other engine of the model has a closed one; it doubles up to Base. A connection
	// that is refused costs nothing, and nobody else can serve: a restart is noticed
	// 100 ms after the first failure, and later at most as long again as it took, or
	// Base. 0 means 100 ms; never more than Base. After the other faults it is Base
	// each time: what fails slowly costs those who wait, and so does not asking.
	Sole time.Duration
}

const (
	defaultBase = 2 * time.Second
	defaultMax  = 30 * time.Second
	defaultSole = 100 * time.Millisecond

	// streakLimit is how many failures in a row open a breaker. It, the window and
	// the least are what Envoy and HAProxy use by default, or close to it.
	streakLimit = 5
	// window is of how many requests the share of failures is taken, windowLeast
	// how many of them there must be.
	window      = 20
	windowLeast = 10
)

// complete sets the defaults and returns what is wrong.
func (c *BreakerConfig) complete() (bad []string) {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Breaker.Base", c.Base}, {"Breaker.Max", c.Max}, {"Breaker.Sole", c.Sole}} {
		if f.d < 0 {
			bad = append(bad, fmt.Sprintf("%s is %s: must be more than 0, or 0 for the default", f.name, f.d))
		}
	}
	if c.Base == 0 {
		c.Base = defaultBase
	}
	if c.Max == 0 {
		c.Max = max(defaultMax, c.Base)
	}
	if c.Sole == 0 {
		c.Sole = defaultSole
	}
	c.Sole = min(c.Sole, c.Base)
	if c.Max > 0 && c.Max < c.Base {
		bad = append(bad, fmt.Sprintf("Breaker.Max is %s: must be at least Breaker.Base, which is %s", c.Max, c.Base))
	}
	return bad
}

// Fault is how an engine failed a request.
type Fault uint8

// Kinds of faults.
const (
	Dial     Fault = iota // no connection could be made
	Reset                 // the connection ended before the first byte
	Timeout               // no first byte, or no next one, in time
	Protocol              // not HTTP
	Content               // HTTP, but not what an OpenAI engine answers
	Status                // a 5xx
	Cut                   // the answer ended before it was complete
)

var faultNames = [...]string{"dial", "reset", "timeout", "protocol", "content", "status", "cut"}

// String returns the fault in lower case, for logs and labels.
func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("fault %d", uint8(f))
}

// grave faults open a breaker at once.
func (f Fault) grave() bool { return f != Status && f != Cut }

// gone tells whether the fault looks as if the engine's process had ended.
func (f Fault) gone() bool { return f == Dial || f == Reset || f == Cut }

// breaker is one engine's. The zero value is closed.
type breaker struct {
	// openings counts how often it opened. A request carries the number under which it
	// was sent.
	openings uint32
	// until is when a probe is due, early when one is due where no other engine of
	// the model has a closed breaker. Both are zero while it is closed.
	until, early time.Time
	// wait and quick are what until and early were last put off by. They are zero
	// unless the breaker is open or the engine is on trial.
	wait, quick time.Duration
	probe       *flight
	// streak is the number of failures in a row; failures has a bit for each of the
	// last requests, the newest lowest, of which there were seen.
	streak, seen int
	failures     uint32
	// muteSince is when the first of the requests was sent that were given up before
	// their first byte, since the engine last answered one; muted is how many there were.
	muteSince time.Time
	muted     int
}

func (b *breaker) closed() bool { return b.until.IsZero() }

// due is when the next probe may go; alone: no engine of the model has a closed
// breaker.
func (b *breaker) due(alone bool) time.Time {
	if alone {
		return b.early
	}
	return b.until
}

// note counts the end of a request.
func (b *breaker) note(failed bool) {
	b.failures = b.failures << 1 & (1<<window - 1)
	b.seen = min(b.seen+1, window)
	if failed {
		b.failures |= 1
		b.streak++
	} else {
		b.streak = 0
	}
}

// outlier tells whether the engine fails too often.
func (b *breaker) outlier() bool {
	return b.streak >= streakLimit || b.seen >= windowLeast && 2*bits.OnesCount32(b.failures) > b.seen
}

// failed takes a failure of f, and returns whether the breaker was closed and is not
// any more.
func (b *breaker) failed(c *BreakerConfig, now time.Time, f *flight, fault Fault) bool {
	if f.failed || f.opening != b.openings {
		return false
	}
	f.failed = true
	b.note(true)
	wasClosed, onTrial := b.closed(), b.wait > 0
	if wasClosed && !fault.grave() && !onTrial && !b.outlier() {
		return false
	}
	b.openings++
	b.probe, b.muted = nil, 0
	b.wait = max(c.Base, min(2*b.wait, c.Max))
	b.until = now.Add(b.wait)
	b.early = now.Add(c.Base)
	if fault.gone() {
		b.quick = max(c.Sole, min(2*b.quick, c.Base))
		b.early = now.Add(b.quick)
	}
	return wasClosed
}

// answered takes the beginning of a good answer to f.
func (b *breaker) answered(f *flight) {
	f.answered = true
	b.muted = 0
	if f.opening != b.openings || b.closed() {
		return
	}
	b.until, b.early, b.probe = time.Time{}, time.Time{}, nil
	b.streak, b.seen, b.failures = 0, 0, 0
}

// ended takes the end of f.
func (b *breaker) ended(f *flight) {
	if b.probe == f {
		b.probe = nil
	}
	if f.answered && !f.failed && f.opening == b.openings {
		b.note(false)
		b.wait, b.quick = 0, 0
	}
}

// Failed notes that the picked engine failed the request. It returns whether that is
// news: the engine's breaker was closed and is open now, or an engine that Consul does
// not vouch for was dropped. Only the first failure of a pick counts.
func (t *Table) Failed(now time.Time, p Pick, fault Fault) bool {
	e, news := p.e, false
	e.top.outcomes.failed(p.f, fault)
	if fault == Dial { // nobody is there
		news = !e.keptUntil.IsZero() || e.lost()
		e.keptUntil = time.Time{}
		e.dropped = e.NodeDown
	}
	return e.breaker.failed(&t.cfg.Breaker, now, p.f, fault) || news
}

// GivenUp notes that whoever sent the request to the picked engine waited no longer for its
// first byte: the client's time was over, or the client is gone. That says nothing about
// the engine, or an impatient client could take engines away from the others. But where so
// many requests in a row as open a breaker were given up, and no byte of an answer has come
// for as long as an engine may take, it is a Timeout: else an engine that hangs would be
// asked for ever by clients that wait for less. It returns what Failed does.
func (t *Table) GivenUp(now time.Time, p Pick, patience time.Duration) bool {
	b := &p.e.breaker
	if p.f.failed || p.f.answered || p.f.opening != b.openings {
		return false
	}
	if b.muted == 0 || p.f.Started.Before(b.muteSince) {
		b.muteSince = p.f.Started
	}
	if b.muted++; b.muted < streakLimit || now.Sub(b.muteSince) < patience {
		return false
	}
	return t.Failed(now, p, Timeout)
}

// Answered notes that the picked engine began a proper answer: a half-open breaker is
// closed. The request counts as served well when it is released and did not fail
// meanwhile.
func (t *Table) Answered(_ time.Time, p Pick) { p.e.breaker.answered(p.f) }

// NextProbe returns when the first of the model's open breakers lets a request through
// that does not let one through now. It returns false where time alone changes nothing:
// no breaker is open, or the engines that are due have their probe or no free slot, or
// are not for the request that waits. Ask with the time at which Pick said ErrBusy, so
// that nothing becomes due in between.
func (t *Table) NextProbe(now time.Time, name string) (time.Time, bool) {
	m := t.models[name]
	if m == nil {
		return time.Time{}, false
	}
	serving := t.serving(m, now)
	alone := !slices.ContainsFunc(m.engines, func(e *engine) bool { return e.breaker.closed() && t.serves(e, now, serving) })
	var first time.Time
	for _, e := range m.engines {
		b := &e.breaker
		if b.closed() || !t.serves(e, now, serving) {
			continue
		}
		if at := b.due(alone); at.After(now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, !first.IsZero()
}
