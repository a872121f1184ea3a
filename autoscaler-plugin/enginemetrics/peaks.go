package enginemetrics

import (
	"fmt"
	"slices"
	"time"
)

// Times of what Peaks remembers, beside DefaultWindow.
const (
	// DefaultStaleAfter is how old the last sample of a replica may be before the replica is stale, and
	// how far apart two samples may be for a rate: two scrapes of 10 s may fail.
	DefaultStaleAfter = 30 * time.Second
	// forgetAfter is how long a replica is remembered after its last sample.
	forgetAfter = 2 * time.Minute
)

// slack is by how much a time may lie before the latest one without being a
// clock that was set back: answers of several scrapes arrive out of order.
const slack = 5 * time.Second

// Peaks keeps, for every replica, the highest KV usage and queue of the last
// minute and the rates of its counters.
//
// Every method that takes a time moves Peaks' clock. A clock set back by more
// than five seconds moves everything remembered back with it, so that ages stay
// what they were: nothing becomes fresh for an hour and no peak gets stuck. A
// clock set forward and a host that was suspended look alike: all that is
// remembered is old, replicas are stale (not idle) until they are observed
// again, and no rate is taken across the gap. Only the wall clock counts,
// because the monotonic clock stands still while a host is suspended.
//
// Not safe for concurrent use.
type Peaks struct {
	now      int64 // Unix nanoseconds; 0 before the first call
	replicas map[string]*track
}

// track is what is remembered of one replica. It always has a point.
type track struct {
	Points []point `json:"points"`
	Last   Sample  `json:"last"`
	// Value is the counters' last reading, Since is from when on it grew without
	// a break (0: it is not there now), Total is its growth. Counters are in the
	// order of the quantities from Finished on.
	Value [counters]float64 `json:"value"`
	Since [counters]int64   `json:"since"`
	Total [counters]float64 `json:"total"`
	// Latencies are in the order of the quantities from FirstTokens on.
	Latencies [latencies]growing `json:"latencies"`
}

// point is one observation.
type point struct {
	At      int64             `json:"at"` // Unix nanoseconds
	Running Value             `json:"running"`
	Waiting Value             `json:"waiting"`
	KV      Value             `json:"kv"`
	Total   [counters]float64 `json:"total"`
	// Latencies are the growth of the buckets of the track's Latencies.
	Latencies [latencies][]float64 `json:"latencies"`
}

// NewPeaks remembers nothing yet.
func NewPeaks() *Peaks { return &Peaks{replicas: map[string]*track{}} }

// nanos is a wall-clock time, kept in a range in which differences cannot
// overflow (1970 to 2116).
func nanos(t time.Time) int64 {
	switch {
	case t.Unix() < 0:
		return 0
	case t.Unix() > 1<<62/int64(time.Second):
		return 1 << 62
	}
	return max(0, min(t.UnixNano(), 1<<62))
}

// tick moves the clock.
func (p *Peaks) tick(t time.Time) int64 {
	now := nanos(t)
	back := p.now - now
	switch {
	case len(p.replicas) == 0 || back <= 0:
		p.now = now
	case back > int64(slack):
		for _, tr := range p.replicas {
			tr.shift(-back)
		}
		p.now = now
	}
	return p.now
}

func (t *track) shift(by int64) {
	for i := range t.Points {
		t.Points[i].At += by
	}
	for i, since := range t.Since {
		if since != 0 {
			t.Since[i] = since + by
			if t.Since[i] == 0 {
				t.Since[i] = 1 // 0 stands for none
			}
		}
	}
	for i := range t.Latencies {
		if g := &t.Latencies[i]; g.Since != 0 {
			g.Since = max(g.Since+by, 1)
		}
	}
}

func (t *track) newest() int64 { return t.Points[len(t.Points)-1].At }

// Observe remembers a sample of a replica that was read at now. A scrape that
// failed is not observed: the replica becomes stale by itself.
func (p *Peaks) Observe(replica string, now time.Time, s Sample) {
	at := p.tick(now)
	tr := p.replicas[replica]
	if tr == nil {
		tr = &track{}
		p.replicas[replica] = tr
	}
	tr.count(at, &s.Counters, int64(DefaultStaleAfter))
	tr.Last = s
	next := point{At: at, Running: s.Running, Waiting: s.Waiting, KV: s.KVUsage, Total: tr.Total}
	for i := range tr.Latencies {
		next.Latencies[i] = tr.Latencies[i].Total
	}
	if n := len(tr.Points); n > 0 && tr.Points[n-1].At == at {
		tr.Points[n-1] = merge(tr.Points[n-1], next)
	} else {
		tr.Points = append(tr.Points, next)
	}
	tr.prune(at - int64(DefaultWindow))
}

// count adds the growth of the counters since the last sample. A counter that
// fell was reset and has grown by what it shows now, as Prometheus counts. Over
// a gap nothing is known.
func (t *track) count(at int64, c *Counters, gap int64) {
	broken := len(t.Points) == 0 || at-t.newest() > gap
	for i := range counters {
		v, flaw := c.at(i).Get()
		switch {
		case flaw != None:
			t.Since[i] = 0
			continue
		case broken || t.Since[i] == 0:
			t.Since[i] = max(at, 1)
		case v < t.Value[i]:
			t.Total[i] += v
		default:
			t.Total[i] += v - t.Value[i]
		}
		t.Value[i] = v
	}
	for i := range t.Latencies {
		t.Latencies[i].count(at, c.latency(i), broken)
	}
}

// prune drops what is before the window, except the newest of it, from which a
// rate may start.
func (t *track) prune(before int64) {
	first := 0
	for first+1 < len(t.Points) && t.Points[first+1].At <= before {
		first++
	}
	t.Points = slices.Delete(t.Points, 0, first)
}

// merge makes one point of two of the same time: the higher peaks.
func merge(a, b point) point {
	return point{At: b.At, Running: higher(a.Running, b.Running), Waiting: higher(a.Waiting, b.Waiting),
		KV: higher(a.KV, b.KV), Total: b.Total, Latencies: b.Latencies}
}

// Forget drops replicas that were not observed for two minutes.
func (p *Peaks) Forget(now time.Time) {
	at := p.tick(now)
	for r, tr := range p.replicas {
		if at-tr.newest() > int64(forgetAfter) {
			delete(p.replicas, r)
		}
	}
}

// Len is how many replicas are remembered.
func (p *Peaks) Len() int { return len(p.replicas) }

// Read tells about one replica at now. One that was never observed is unknown.
func (p *Peaks) Read(replica string, now time.Time) View {
	at := p.tick(now)
	tr := p.replicas[replica]
	if tr == nil {
		return View{Replica: replica, Class: ClassUnknown, Why: "never observed"}
	}
	return tr.view(replica, at)
}

func (t *track) view(replica string, now int64) View {
	last := t.Points[len(t.Points)-1]
	v := View{Replica: replica, Age: time.Duration(now - last.At), Last: t.Last,
		Running: last.Running, Waiting: last.Waiting, KVUsage: last.KV}
	// A window reaches back to, and does not include, its beginning.
	before := now - int64(DefaultWindow)
	for _, q := range t.Points {
		if q.At <= before {
			continue
		}
		v.Points++
		v.Running = peak(v.Running, q.Running)
		v.Waiting = peak(v.Waiting, q.Waiting)
		v.KVUsage = peak(v.KVUsage, q.KV)
	}
	v.Class, v.Why = ClassOK, ""
	if why := t.Last.unknown(); why != "" {
		v.Class, v.Why = ClassUnknown, why
		if t.Last.Asleep {
			v.Class = ClassAsleep
		}
	}
	if v.Age > DefaultStaleAfter {
		v.Class, v.Why = ClassStale, fmt.Sprintf("last read %v ago: must be at most %v", v.Age.Round(time.Millisecond), DefaultStaleAfter)
		return v
	}
	v.Rates = t.rates()
	return v
}

// peak raises a value of now to an earlier one. What is bad or absent now stays
// so: the past does not say how it is.
func peak(now, earlier Value) Value {
	if !now.present() {
		return now
	}
	return higher(now, earlier)
}
