package scalesim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const never = math.MaxInt64

// replica is one replica that is charged.
type replica struct {
	id         int
	readyAt    int64
	running    int32
	next, prev int32 // in loads
	draining   bool
	tokens     int64
	peakLoad   peak // running, or tokens where Config.KVTokens is set
}

// run is the state of one simulation. Times are ns since the start of the trace.
type run struct {
	cfg      Config
	arrivals []Arrival
	span     int64
	target   int64
	interval int64
	window   int64 // of the peaks, in intervals
	from     int64 // of the score
	packed   bool
	rng      *rand.Rand

	now     int64
	next    int // the next arrival; the queue is arrivals[head:next]
	head    int
	ends    departures
	loads   loads
	reps    []replica
	free    []int32 // of reps
	ready   []int32 // ready longest first
	start   []int32 // starting ones, by readyAt
	drain   []int32 // draining ones, in the order of their drain
	nextID  int
	desired int
	running int64

	// Integrals in ns since the last flush.
	charged, busy, waited int64

	finished    int64
	tardy       int64 // began after the target wait
	stretch     []float64
	samples     []*Observation // pending ones, the oldest first
	spare       []*Observation
	served      int64 // ns since the last flush
	obs         Observation
	tick        int64
	peakRunning peak
	peakWaiting peak

	scored   bool
	scoreIdx int // the first arrival that is scored
	waits    waits
	ended    int64     // of the scored requests
	episodes []episode // the last one of each of cfg.Waits
	res      Result
}

// Run simulates the policy on the trace. It fails only on a configuration or a trace that
// is not valid.
func Run(cfg Config, trace *Trace, policy Policy) (Result, error) {
	if err := errors.Join(cfg.Validate(), trace.Validate()); err != nil {
		return Result{}, fmt.Errorf("simulate %s: %w", policy.Name(), err)
	}
	interval := cfg.Interval
	if p, ok := policy.(Paced); ok {
		interval = p.Interval()
		if interval < time.Millisecond {
			return Result{}, fmt.Errorf("simulate %s: its interval is %v: it must be at least 1ms", policy.Name(), interval)
		}
	}
	if cfg.ScoreFrom >= trace.Span {
		return Result{}, fmt.Errorf("simulate %s: score_from_ns is %v: it must be before the end of the trace at %v", policy.Name(), cfg.ScoreFrom, trace.Span)
	}
	s := newRun(cfg, trace, interval)
	s.res.Policy, s.res.Trace = policy.Name(), trace.Name
	s.simulate(policy)
	return s.result(), nil
}

func newRun(cfg Config, trace *Trace, interval time.Duration) *run {
	window := cfg.PeakWindow
	if window == 0 {
		window = time.Minute
	}
	s := &run{cfg: cfg, arrivals: trace.Arrivals, span: int64(trace.Span), target: int64(cfg.TargetWait),
		interval: int64(interval), window: max(1, int64(math.Ceil(float64(window)/float64(interval)))),
		from: int64(cfg.ScoreFrom), packed: cfg.Dispatch == Packed, loads: newLoads(cfg.Slots),
		rng: rand.New(rand.NewPCG(cfg.Seed, streamColdStart)), desired: cfg.Initial}
	if cfg.BatchSlope > 0 && cfg.Slots > 1 {
		for b := range cfg.Slots + 1 {
			s.stretch = append(s.stretch, (1+cfg.BatchSlope*float64(b-1)/float64(cfg.Slots-1))/(1+cfg.BatchSlope))
		}
	}
	if n := len(cfg.Waits); n > 0 {
		s.res.WorstEpisode, s.episodes = make([]int64, n), make([]episode, n)
	}
	for range cfg.Initial {
		r := s.newReplica(0)
		s.ready = append(s.ready, r)
		s.loads.add(s.reps, r)
	}
	return s
}

// simulate goes from boundary to boundary: a replica becomes ready, a decision, an hour of
// the score, the end. Between them there are only arrivals and departures.
func (s *run) simulate(policy Policy) {
	nextTick, nextHour := int64(0), s.from
	age := int64(s.cfg.DataAge)
	for {
		nextReady := int64(never)
		if len(s.start) > 0 {
			nextReady = s.reps[s.start[0]].readyAt
		}
		nextAct := int64(never)
		if len(s.samples) > 0 {
			nextAct = int64(s.samples[0].Now) + age
		}
		stop := min(nextTick, nextAct, nextHour, nextReady, s.span)
		s.serve(stop)
		s.advance(stop)
		s.flush()
		if stop == s.span {
			return
		}
		if stop == nextHour {
			s.nextHour()
			nextHour += int64(time.Hour)
		}
		if stop == nextReady {
			s.becomeReady()
		}
		if stop == nextTick {
			s.sample()
			nextTick += s.interval
		}
		for len(s.samples) > 0 && int64(s.samples[0].Now)+age == stop {
			s.decide(policy)
		}
	}
}

// serve handles the arrivals before stop, and the departures until stop.
func (s *run) serve(stop int64) {
	arrivals := s.arrivals
	arrival := int64(never)
	if s.next < len(arrivals) {
		arrival = int64(arrivals[s.next].At)
	}
	for {
		end := int64(never)
		if len(s.ends) > 0 {
			end = s.ends[0].at
		}
		if end <= arrival {
			if end > stop {
				return
			}
			s.advance(end)
			s.depart()
			continue
		}
		if arrival >= stop {
			return
		}
		s.advance(arrival)
		s.next++
		if s.head == s.next-1 { // nobody waits
			if r := s.pick(); r >= 0 {
				s.assign(r)
				s.begin(r, false)
			}
		}
		if w := int64(s.next - s.head); w > s.peakWaiting.high {
			s.peakWaiting.high = w
		}
		arrival = never
		if s.next < len(arrivals) {
			arrival = int64(arrivals[s.next].At)
		}
	}
}

// advance moves the clock.
func (s *run) advance(t int64) {
	dt := t - s.now
	if dt == 0 {
		return
	}
	s.now = t
	s.charged += dt * int64(len(s.ready)+len(s.start)+len(s.drain))
	s.busy += dt * s.running
	s.waited += dt * int64(s.next-s.head)
}

// pick gives a ready replica with a free slot, or -1.
func (s *run) pick() int32 {
	if s.packed {
		return s.loads.most()
	}
	return s.loads.least()
}

// assign takes a free slot of a ready replica.
func (s *run) assign(r int32) {
	s.loads.remove(s.reps, r)
	s.reps[r].running++
	s.loads.add(s.reps, r)
	s.running++
	if s.running > s.peakRunning.high {
		s.peakRunning.high = s.running
	}
}

// begin starts the head of the queue in a slot that is taken. With replace, its departure
// takes the place of the one at the top, which is over.
func (s *run) begin(r int32, replace bool) {
	a := &s.arrivals[s.head]
	service := int64(a.Service)
	if s.stretch != nil {
		service = max(int64(float64(service)*s.stretch[s.reps[r].running]), 1)
	}
	d := departure{at: s.now + service, service: service, replica: r}
	if s.now-int64(a.At) > s.target {
		s.tardy++
	}
	if s.scored && s.head >= s.scoreIdx {
		s.score(s.now-int64(a.At), int64(a.At))
	} else {
		d.replica |= unscored
	}
	s.head++
	rep := &s.reps[r]
	if s.cfg.KVTokens > 0 {
		d.tokens = int32(min(int64(a.Context)+int64(a.Generated), math.MaxInt32))
		rep.tokens += int64(d.tokens)
		rep.peakLoad.note(rep.tokens)
	} else {
		rep.peakLoad.note(int64(rep.running))
	}
	if replace {
		s.ends.replaceTop(d)
		return
	}
	s.ends.push(d)
}

// score counts a wait.
func (s *run) score(wait, at int64) {
	if wait == 0 {
		s.waits.zero++
		return
	}
	s.waits.add(wait)
	s.late(wait, at)
}

// episode is a row of late requests.
type episode struct{ last, count int64 }

// late adds one that arrived at at, in the order of arrival, and returns how many there are now.
func (e *episode) late(at int64) int64 {
	if at-e.last >= int64(EpisodeGap) {
		e.count = 0
	}
	e.last = at
	e.count++
	return e.count
}

// EpisodeGap is how long no late request must arrive for an episode to end.
const EpisodeGap = 5 * time.Minute

// late counts a request that arrived at at and waited so long, if that is too long, and says
// so.
func (s *run) late(wait, at int64) bool {
	h := &s.res.Hours[(at-s.from)/int64(time.Hour)]
	for i, w := range s.cfg.Waits {
		if wait > int64(w) {
			h.LateAfter[i]++
			s.res.WorstEpisode[i] = max(s.res.WorstEpisode[i], s.episodes[i].late(at))
		}
	}
	if wait <= s.target {
		return false
	}
	s.res.Late++
	h.Late++
	return true
}

// depart ends the request at the top of the heap; its slot goes to the head of the queue.
func (s *run) depart() {
	d := s.ends[0]
	if d.replica&unscored == 0 {
		s.ended++
	}
	d.replica &^= unscored
	rep := &s.reps[d.replica]
	s.finished++
	s.served += d.service
	rep.tokens -= int64(d.tokens)
	if !rep.draining && s.head < s.next {
		s.begin(d.replica, true)
		return
	}
	s.ends.pop()
	s.running--
	if rep.draining {
		rep.running--
		if rep.running == 0 {
			s.gone(d.replica)
		}
		return
	}
	s.loads.remove(s.reps, d.replica)
	rep.running--
	s.loads.add(s.reps, d.replica)
}

// flush moves the integrals to the totals, so that they stay small enough to be exact.
func (s *run) flush() {
	const second = float64(time.Second)
	s.obs.BusySeconds += float64(s.busy) / second
	s.obs.WaitingSeconds += float64(s.waited) / second
	s.obs.ServedSeconds += float64(s.served) / second
	if s.scored {
		h := &s.res.Hours[len(s.res.Hours)-1]
		h.GPUHours += float64(s.charged) / float64(time.Hour)
		h.BusyHours += float64(s.busy) / float64(time.Hour)
		h.Desired, h.Ready, h.Waiting = s.desired, len(s.ready), s.next-s.head
	}
	s.charged, s.busy, s.waited, s.served = 0, 0, 0, 0
}

// nextHour begins an hour of the score; the first begins the score.
func (s *run) nextHour() {
	if !s.scored {
		s.scored, s.scoreIdx = true, s.next
		s.res.PeakReplicas = len(s.ready) + len(s.start) + len(s.drain)
	}
	s.res.Hours = append(s.res.Hours, Hour{Desired: s.desired, Ready: len(s.ready), Waiting: s.next - s.head})
	if n := len(s.cfg.Waits); n > 0 {
		s.res.Hours[len(s.res.Hours)-1].LateAfter = make([]int64, n)
	}
}

// result closes the score.
func (s *run) result() Result {
	res := &s.res
	if !s.scored {
		return *res
	}
	for i := max(s.head, s.scoreIdx); i < s.next; i++ {
		at := int64(s.arrivals[i].At)
		if !s.late(s.span-at, at) {
			res.Open++
		}
	}
	for i := s.scoreIdx; i < s.next; i++ {
		res.Hours[(int64(s.arrivals[i].At)-s.from)/int64(time.Hour)].Requests++
	}
	res.Requests = int64(s.next - s.scoreIdx)
	res.Begun = int64(max(s.head, s.scoreIdx) - s.scoreIdx)
	res.Finished = s.ended
	for i := range res.Hours {
		res.GPUHours += res.Hours[i].GPUHours
		res.BusyHours += res.Hours[i].BusyHours
	}
	res.InTime = 1
	if n := res.Requests - res.Open; n > 0 {
		res.InTime = float64(n-res.Late) / float64(n)
	}
	if res.GPUHours > 0 {
		res.Utilization = res.BusyHours / (res.GPUHours * float64(s.cfg.Slots))
	}
	res.WaitMean, res.WaitMax = s.waits.mean(), time.Duration(s.waits.max)
	res.WaitP50, res.WaitP99, res.WaitP999 = s.waits.quantile(0.5), s.waits.quantile(0.99), s.waits.quantile(0.999)
	return *res
}
