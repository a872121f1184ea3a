package enginemetrics

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PeaksConfig bounds what Peaks remembers.
type PeaksConfig struct {
	// Window is over how long the peaks and rates are taken. One minute by
	// default, as in the queries' max_over_time.
	Window time.Duration
	// StaleAfter is how old the last sample of a replica may be before the replica
	// is stale, and how far apart two samples may be for a rate. 30 s by default:
	// two scrapes of 10 s may fail.
	StaleAfter time.Duration
	// ForgetAfter is how long a replica that is no longer observed is remembered.
	// Ten minutes by default.
	ForgetAfter time.Duration
	// MaxPoints is how many samples of a replica are kept; when there are more,
	// neighbours are merged and the peak stays. 64 by default, at least 4.
	MaxPoints int
	// MaxReplicas is how many replicas are remembered. 100,000 by default.
	MaxReplicas int
}

// DefaultPeaksConfig is what zero fields become.
func DefaultPeaksConfig() PeaksConfig {
	return PeaksConfig{Window: DefaultWindow, StaleAfter: 30 * time.Second, ForgetAfter: 10 * time.Minute,
		MaxPoints: 64, MaxReplicas: 100_000}
}

func (c PeaksConfig) withDefaults() (PeaksConfig, error) {
	d := DefaultPeaksConfig()
	c.Window = cmp.Or(c.Window, d.Window)
	c.StaleAfter = cmp.Or(c.StaleAfter, d.StaleAfter)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, max(d.ForgetAfter, c.Window, c.StaleAfter))
	c.MaxPoints = cmp.Or(c.MaxPoints, d.MaxPoints)
	c.MaxReplicas = cmp.Or(c.MaxReplicas, d.MaxReplicas)
	var errs []error
	if c.Window < 0 {
		errs = append(errs, fmt.Errorf("window is %v: must be more than 0", c.Window))
	}
	if c.StaleAfter < 0 {
		errs = append(errs, fmt.Errorf("stale after is %v: must be more than 0", c.StaleAfter))
	}
	if c.ForgetAfter < max(c.Window, c.StaleAfter, 0) {
		errs = append(errs, fmt.Errorf("forget after is %v: must be at least the window of %v and stale after of %v", c.ForgetAfter, c.Window, c.StaleAfter))
	}
	if c.MaxPoints < 4 {
		errs = append(errs, fmt.Errorf("max points is %d: must be 4 or more", c.MaxPoints))
	}
	if c.MaxReplicas < 1 {
		errs = append(errs, fmt.Errorf("max replicas is %d: must be 1 or more", c.MaxReplicas))
	}
	return c, errors.Join(errs...)
}

// slack is by how much a time may lie before the latest one without being a
// clock that was set back: answers of several scrapes arrive out of order.
const slack = 5 * time.Second

// ErrFull is what Observe answers when there are MaxReplicas already, none of
// them old enough to forget.
var ErrFull = errors.New("too many replicas")

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
	cfg      PeaksConfig
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

// NewPeaks checks the configuration; zero fields become defaults.
func NewPeaks(cfg PeaksConfig) (*Peaks, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("peaks: %w", err)
	}
	return &Peaks{cfg: cfg, replicas: map[string]*track{}}, nil
}

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
func (p *Peaks) Observe(replica string, now time.Time, s Sample) error {
	at := p.tick(now)
	tr := p.replicas[replica]
	if tr == nil {
		if len(p.replicas) >= p.cfg.MaxReplicas {
			p.forget(at)
		}
		if len(p.replicas) >= p.cfg.MaxReplicas {
			return fmt.Errorf("peaks: %w: %d, no room for %q: raise max replicas", ErrFull, len(p.replicas), replica)
		}
		tr = &track{}
		p.replicas[replica] = tr
	}
	tr.count(at, &s.Counters, int64(p.cfg.StaleAfter))
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
	tr.prune(at-int64(p.cfg.Window), p.cfg.MaxPoints)
	return nil
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
// rate may start, and keeps at most limit points.
func (t *track) prune(before int64, limit int) {
	first := 0
	for first+1 < len(t.Points) && t.Points[first+1].At <= before {
		first++
	}
	if first > 0 {
		t.Points = slices.Delete(t.Points, 0, first)
	}
	if len(t.Points) <= limit {
		return
	}
	// Merge neighbours, but not the newest point, whose values are those of now.
	kept := t.Points[:0]
	last := len(t.Points) - 1
	for i := 0; i < last; i += 2 {
		if i+1 < last {
			kept = append(kept, merge(t.Points[i], t.Points[i+1]))
		} else {
			kept = append(kept, t.Points[i])
		}
	}
	t.Points = append(kept, t.Points[last])
}

// merge makes one point of two: the later time, the higher peaks. A peak lives
// a little longer this way, never shorter.
func merge(a, b point) point {
	return point{At: b.At, Running: higher(a.Running, b.Running), Waiting: higher(a.Waiting, b.Waiting),
		KV: higher(a.KV, b.KV), Total: b.Total, Latencies: b.Latencies}
}

// Forget drops replicas that were not observed for ForgetAfter.
func (p *Peaks) Forget(now time.Time) { p.forget(p.tick(now)) }

func (p *Peaks) forget(now int64) {
	for r, tr := range p.replicas {
		if now-tr.newest() > int64(p.cfg.ForgetAfter) {
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
	return p.view(replica, tr, at)
}

func (p *Peaks) view(replica string, tr *track, now int64) View {
	last := tr.Points[len(tr.Points)-1]
	v := View{Replica: replica, Age: time.Duration(now - last.At), Last: tr.Last,
		Running: last.Running, Waiting: last.Waiting, KVUsage: last.KV}
	// A window reaches back to, and does not include, its beginning.
	before := now - int64(p.cfg.Window)
	for _, q := range tr.Points {
		if q.At <= before {
			continue
		}
		v.Points++
		v.Running = peak(v.Running, q.Running)
		v.Waiting = peak(v.Waiting, q.Waiting)
		v.KVUsage = peak(v.KVUsage, q.KV)
	}
	v.Class, v.Why = ClassOK, ""
	if why := tr.Last.unknown(); why != "" {
		v.Class, v.Why = ClassUnknown, why
		if tr.Last.Asleep {
			v.Class = ClassAsleep
		}
	}
	if v.Age > p.cfg.StaleAfter {
		v.Class, v.Why = ClassStale, fmt.Sprintf("last read %v ago: must be at most %v", v.Age.Round(time.Millisecond), p.cfg.StaleAfter)
		return v
	}
	v.Rates = tr.rates()
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
