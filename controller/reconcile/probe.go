package reconcile

import (
	"maps"
	"sync"
	"time"

	"remuda/controller/planner"
)

// An answer of a probe is valid for probeAge, and on a fleet where probing is slow for longer,
// so that probing takes at most one part in probeShare of a core.
const (
	probeAge   = 2 * time.Second
	probeShare = 20
)

// probeWait is how long a caller waits while another one probes, before it returns the last
// answer.
const probeWait = 100 * time.Millisecond

// probe determines on demand which variants could have a further replica.
type probe struct {
	l *loop

	busy chan struct{} // holds one element while the fields below are in use
	// prober uses the observation of the time made; spent is how long its answers have taken.
	prober *planner.Prober
	made   time.Time
	spent  time.Duration

	mu   sync.Mutex
	last map[string]map[string]string // the last answers, by model
}

// unplaceable returns planner.Prober.Unplaceable as of a short while ago; nil until Nomad has
// answered.
func (p *probe) unplaceable(model string) map[string]string {
	wait := time.NewTimer(probeWait)
	defer wait.Stop()
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	case <-wait.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.last[model]
	}
	began := time.Now()
	now := p.l.cfg.Now()
	if age := now.Sub(p.made); p.prober == nil || age < 0 || age >= max(probeAge, probeShare*p.spent) {
		writes := p.l.executor.writes() // before the view, see inFlight
		view := p.l.cfg.Raft.Store().View()
		snap := p.l.cache.snapshot(&schedule{})
		if !snap.ready {
			return nil
		}
		p.prober = planner.NewProber(view, p.l.observe(view, snap, snap.jobs(view), p.l.inFlight(writes, view, snap), now), p.l.cfg.Planner)
		p.made, p.spent = now, 0
		p.mu.Lock()
		maps.DeleteFunc(p.last, func(name string, _ map[string]string) bool { return view.Model(nil, name) == nil })
		p.mu.Unlock()
	}
	out := p.prober.Unplaceable(model)
	p.spent += time.Since(began)
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.last, model); len(out) > 0 {
		p.last[model] = out
	}
	return out
}

// Unplaceable returns the variants of a model of which no further replica could be placed, with
// the reason, see planner.Prober. The answer may be some seconds old. It is empty if this server
// does not lead, or Nomad has not answered yet. It may be called from several goroutines at
// once.
func (r *Reconciler) Unplaceable(model string) map[string]string {
	l := r.current()
	if l == nil {
		return nil
	}
	return l.probe.unplaceable(model)
}
