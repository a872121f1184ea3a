package reconcile

import (
	"maps"
	"sync"
	"time"

	"remuda/controller/planner"
)

// What a probe says is at least this old before it looks again, and on a fleet where looking
// takes long, so much older that it takes one part in probeShare of a core.
const (
	probeAge   = 2 * time.Second
	probeShare = 20
)

// probeWait is how long a caller waits while another one probes, before it takes the last
// answer.
const probeWait = 100 * time.Millisecond

// probe finds out, when it is asked, which variants could have a further replica.
type probe struct {
	l *leading

	busy chan struct{} // holds one element while the fields below are in use
	// prober is made of what was observed at that time, and has taken so long since then.
	prober *planner.Prober
	made   time.Time
	spent  time.Duration

	mu   sync.Mutex
	last map[string]map[string]string // the last answers, by model
}

// unplaceable is planner.Prober.Unplaceable of a short while ago; nil before Nomad was heard.
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
		writes := p.l.acts.writes() // before the view, see inFlight
		view := p.l.cfg.Raft.Store().View()
		seen := p.l.seen.take(&schedule{})
		if !seen.begun {
			return nil
		}
		p.prober = planner.NewProber(view, p.l.observe(view, seen, seen.jobs(view), p.l.inFlight(writes, view, seen), now), p.l.cfg.Planner)
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

// Unplaceable has the variants of a model of which no further replica could be placed, and
// why, see planner.Prober; from what was seen some seconds ago at most. It is empty where
// this server does not lead, or has not heard Nomad. It may be called from several goroutines
// at once.
func (r *Reconciler) Unplaceable(model string) map[string]string {
	l := r.current()
	if l == nil {
		return nil
	}
	return l.probe.unplaceable(model)
}
