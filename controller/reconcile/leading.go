package reconcile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// leading is one time of leading. A new one begins with nothing.
type leading struct {
	cfg     Config
	metrics *metrics
	term    uint64

	woken chan struct{} // has one place
	wg    sync.WaitGroup
	seen  *sightings
	why   *why
	acts  *acts
	out   *writer

	mu     sync.Mutex // guards what follows
	looked time.Time
	paused bool
}

func newLeading(r *Reconciler, term uint64) *leading {
	l := &leading{cfg: r.cfg, metrics: r.metrics, term: term, woken: make(chan struct{}, 1)}
	l.cfg.Logger = l.cfg.Logger.With("term", term)
	l.seen = newSightings(l.cfg.Now, l.cfg.ConsulGrace, l.wake)
	l.why = &why{
		ask: l.cfg.Nomad.Why, patience: l.cfg.Planner.PlaceTimeout, again: l.cfg.WhyInterval, now: l.cfg.Now, pending: map[string]*pending{},
		told: func(name string, err error) {
			if err != nil {
				l.cfg.Logger.Debug("why does Nomad not place it: no answer", "replica", name, "error", err)
			}
			l.wake()
		},
	}
	l.acts = newActs(l)
	l.out = &writer{l: l, plans: bucket{rate: l.cfg.PlanRate, burst: float64(l.cfg.PlanBurst)}}
	return l
}

// wake has the loop look again. It never waits.
func (l *leading) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// run leads until ctx ends, and returns when everything that it started has ended.
func (l *leading) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer l.wg.Wait()
	defer cancel()

	l.cfg.Loads.Reset()
	var known []string
	for _, n := range l.cfg.Raft.Store().View().Nodes(nil) {
		known = append(known, n.ID)
	}
	l.cfg.Logger.Info("reconciling", "nodes", len(known))
	l.wg.Go(func() { _ = l.cfg.Nomad.WatchNodes(ctx, known, l.seen.sawNodes, l.seen.lostNodes) })
	l.wg.Go(func() { _ = l.cfg.Nomad.WatchJobs(ctx, l.seen.sawJobs, l.seen.lostJobs) })
	l.wg.Go(func() { _ = l.cfg.Consul.Watch(ctx, l.seen.sawEngines, l.seen.lostEngines) })
	l.wg.Go(func() { l.watchState(ctx) })

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reports := l.cfg.Loads.Changed() // before they are looked at
		began := l.cfg.Now()
		next, drains := l.look(ctx)
		if !drains {
			reports = nil // nothing hangs on them
		}
		wait := l.cfg.Resync
		if !next.IsZero() {
			wait = min(wait, next.Sub(l.cfg.Now()))
		}
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
			return
		case <-l.woken:
		case <-reports:
		case <-timer.C:
		}
		// What comes within Settle is looked at together.
		if rest := l.cfg.Settle - l.cfg.Now().Sub(began); rest > 0 {
			timer.Reset(min(rest, l.cfg.Settle))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
	}
}

// watchState wakes the loop at each change of what plans are made from.
func (l *leading) watchState(ctx context.Context) {
	after := uint64(0)
	for {
		index, err := l.cfg.Raft.Store().Block(ctx, after, func(v *state.View, ws memdb.WatchSet) (uint64, error) {
			v.Models(ws)
			v.Replicas(ws)
			v.Nodes(ws)
			v.Switches(ws)
			return v.TableIndex(state.TableModels, state.TableReplicas, state.TableNodes, state.TableSwitches), nil
		})
		if err != nil || ctx.Err() != nil {
			return // only the context's end is an error here
		}
		after = index
		l.wake()
	}
}

// look compares the state with the world once: it writes what has changed of the
// nodes, commits a plan, and starts the actions. It returns when to look again though
// nothing happens, and whether replicas are being drained.
func (l *leading) look(ctx context.Context) (time.Time, bool) {
	start := time.Now()
	defer func() { l.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	var next schedule
	now := l.cfg.Now()
	if seen := l.seen.take(&next); seen.nodesKnown {
		l.out.nodes(ctx, l.cfg.Raft.Store().View(), seen.nodes, now, &next)
	}
	// The order matters. An action first leaves its echo, then commits, then ends. One
	// that had ended before is in the view; and whose commit is in the view, its echo
	// is among what is seen. Of those that end in between, busy knows.
	busy := l.acts.busy()
	view := l.cfg.Raft.Store().View()
	seen := l.seen.take(&next)

	// Before Nomad was heard, nobody knows which seats are taken by jobs that the
	// state does not know.
	if seen.begun {
		o := l.observe(view, seen, busy, now)
		if l.out.ready(now, &next) {
			plan, again := l.cfg.Plan(view, o, l.cfg.Planner, l.cfg.Placer)
			if !again.IsZero() && !again.After(now) {
				again = now.Add(l.cfg.Retry) // what is overdue already is no hurry
			}
			next.add(again)
			if plan != nil && l.out.plan(ctx, view, plan, now, &next) {
				view = l.cfg.Raft.Store().View()
				o = l.observe(view, seen, busy, now)
				l.wake() // there may be more
			}
		}
		if seen.jobsKnown && ctx.Err() == nil {
			l.why.look(ctx, view, seen.jobs, func(f func()) { l.wg.Go(f) }, &next)
			l.acts.start(ctx, view, seen, busy, l.cfg.Actions(view, o, l.cfg.Planner), now, &next)
		}
	}
	drains := draining(view)
	if drains {
		next.add(l.cfg.Loads.Next())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked, l.paused = now, view.Switch(nil, planner.PauseReconcile) != ""
	return next.at, drains
}

func (l *leading) status() Status {
	s := Status{Leading: true, Term: l.term}
	s.Nodes, s.Jobs, s.Engines = l.seen.sources()
	s.Running, s.Waiting = l.acts.status()
	s.Error = l.out.trouble()
	slices.SortFunc(s.Waiting, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Replica, b.Replica), strings.Compare(a.Kind, b.Kind))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Looked, s.Paused = l.looked, l.paused
	return s
}
