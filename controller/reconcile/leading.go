package reconcile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-memdb"
	"golang.org/x/time/rate"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// leading is one time of leading. A new one begins with nothing.
type leading struct {
	cfg     Config
	nomads  map[string]Nomad // by the name of the pool
	metrics *metrics
	term    uint64
	began   time.Time

	woken chan struct{} // has one place
	wg    sync.WaitGroup
	seen  *sightings
	why   *why // of jobs that are not placed
	idle  *why // of engines that do not serve
	acts  *acts
	out   *writer
	// planner is used by the loop only.
	planner Planner
	probe   *probe

	mu     sync.Mutex // guards what follows
	looked time.Time
	paused bool
	// problems has what is wrong with the nodes of a pool, see listing.
	problems map[string]string
	// wanted are the models that clients had asked for at the last look, and when.
	wanted map[string]time.Time
	// failing: a replica had failed enough requests at the last look to be looked at again soon.
	failing bool
}

func newLeading(r *Reconciler, term uint64) *leading {
	l := &leading{cfg: r.cfg, nomads: r.cfg.nomads(), metrics: r.metrics, term: term, began: r.cfg.Now(), woken: make(chan struct{}, 1)}
	l.cfg.Logger = l.cfg.Logger.With("term", term)
	l.seen = newSightings(l.cfg.poolNames(), l.cfg.Now, l.cfg.ConsulGrace, l.wake)
	l.why = &why{
		waits: waitsForNomad, patience: l.cfg.Planner.PlaceTimeout, again: l.cfg.WhyInterval, now: l.cfg.Now,
		ask: func(ctx context.Context, j job) (string, error) { return l.nomads[j.pool].Why(ctx, j.Name) },
		told: func(name string, err error) {
			if err != nil {
				l.cfg.Logger.Debug("cannot read why Nomad does not place a job", "replica", name, "error", err)
			}
			l.wake()
		},
	}
	l.idle = &why{
		waits: waitsForEngines, patience: l.cfg.Planner.ServingGrace, again: l.cfg.WhyInterval, now: l.cfg.Now,
		ask: l.askShims, told: func(string, error) { l.wake() },
	}
	l.acts, l.planner = newActs(l), l.cfg.NewPlanner(l.cfg.Planner)
	l.probe = &probe{l: l, busy: make(chan struct{}, 1), last: map[string]map[string]string{}}
	l.out = &writer{l: l, lost: map[string]time.Time{}, plans: rate.NewLimiter(rate.Limit(l.cfg.PlanRate), l.cfg.PlanBurst)}
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

	l.cfg.Loads.Begin(l.term)
	known := map[string][]string{}
	nodes := l.cfg.Raft.Store().View().Nodes(nil)
	for _, n := range nodes {
		known[n.CapacityPool] = append(known[n.CapacityPool], n.ID)
	}
	l.cfg.Logger.Info("reconciling", "nodes", len(nodes), "pools", len(l.nomads))
	for pool, n := range l.nomads {
		l.wg.Go(func() {
			_ = n.WatchNodes(ctx, known[pool], func(nodes []state.Node, unread map[string]error) { l.seen.sawNodes(pool, nodes, unread) }, func(err error) { l.seen.lostNodes(pool, err) })
		})
		l.wg.Go(func() {
			_ = n.WatchJobs(ctx, func(list nomad.Listing) { l.sawJobs(pool, list) }, func(err error) { l.seen.lostJobs(pool, err) })
		})
	}
	l.wg.Go(func() { _ = l.cfg.Consul.Watch(ctx, l.seen.sawEngines, l.seen.lostEngines) })
	l.wg.Go(func() { l.watchState(ctx) })

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reports := l.cfg.Loads.Changed() // before they are looked at
		began := l.cfg.Now()
		next, drains := l.look(ctx)
		wait := l.cfg.Resync
		if !next.IsZero() {
			wait = min(wait, next.Sub(l.cfg.Now()))
		}
		timer.Reset(max(wait, 0))
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return
			case <-l.woken:
				again = true
			case <-reports:
				// Most reports change nothing that is decided.
				reports = l.cfg.Loads.Changed()
				again = drains || l.asked() || l.beginsToFail()
			case <-timer.C:
				again = true
			}
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

// sawJobs takes a list of jobs. One without a change matters only while a write is not known to
// be shown: by its index the write has had no visible effect.
func (l *leading) sawJobs(pool string, list nomad.Listing) {
	if list.Changed {
		l.seen.sawJobs(pool, list)
		return
	}
	l.seen.sawIndex(pool, list)
	if l.acts.awaits(pool) {
		l.wake()
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
			v.Dedicated(ws)
			v.Schedule(ws)
			return v.TableIndex(state.TableModels, state.TableReplicas, state.TableNodes, state.TableSwitches, state.TableDedicated, state.TableSchedule), nil
		})
		if err != nil || ctx.Err() != nil {
			return // only the context's end is an error here
		}
		after = index
		l.wake()
	}
}

// look compares the state with the world once: it writes what has changed of the
// nodes, commits a plan, and starts the actions, those of the plan among them. It returns
// when to look again though nothing happens, and whether replicas drain towards WARM.
func (l *leading) look(ctx context.Context) (time.Time, bool) {
	start := time.Now()
	defer func() { l.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	var next schedule
	now := l.cfg.Now()
	seen := l.seen.take(&next)
	list := seen.listing()
	if len(list.known) > 0 {
		l.out.nodes(ctx, l.cfg.Raft.Store().View(), list, now, &next)
	}
	writes := l.acts.writes() // before the view, see inFlight
	view := l.cfg.Raft.Store().View()
	inFlight := l.inFlight(writes, view, seen)
	l.acts.giveUp(view)

	// Before Nomad was heard, nobody knows which seats are taken by jobs that the
	// state does not know.
	if seen.begun {
		jobs := seen.jobs(view)
		o := l.observe(view, seen, jobs, inFlight, now)
		l.heard(o)
		if l.out.ready(now, &next) {
			plan, again := l.planner.Plan(view, o)
			if !again.IsZero() && !again.After(now) {
				again = now.Add(l.cfg.Retry) // what is overdue already is no hurry
			}
			next.add(again)
			if plan != nil && l.out.plan(ctx, view, plan, now, &next) {
				view = l.cfg.Raft.Store().View()
				o = l.observe(view, seen, jobs, inFlight, now)
				l.wake() // there may be more
			}
		}
		if ctx.Err() == nil {
			known := func(pool string) bool { return seen.pools[pool].jobsKnown }
			for _, w := range []*why{l.why, l.idle} {
				w.look(ctx, view, jobs, known, func(f func()) { l.wg.Go(f) }, &next)
			}
			l.acts.start(ctx, view, seen, jobs, inFlight, l.cfg.Actions(view, o, l.cfg.Planner), now, &next)
		}
	}
	drains := draining(view)
	if drains || !l.cfg.Loads.Known() {
		next.add(l.cfg.Loads.Next())
	}
	failing := l.cfg.Loads.Failing(planner.FailuresLeast)
	if failing {
		next.add(now.Add(failingPause))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = failing
	l.looked, l.paused, l.problems = now, view.Switch(nil, state.SwitchPauseReconcile) != "", list.problems
	return next.at, drains
}

func (l *leading) status() Status {
	s := Status{Leading: true, Term: l.term}
	s.Engines = l.seen.enginesSource()
	var running map[string]int
	running, s.Waiting = l.acts.status()
	s.Error = l.out.trouble()
	slices.SortFunc(s.Waiting, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Replica, b.Replica), strings.Compare(a.Kind, b.Kind))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Looked, s.Paused = l.looked, l.paused
	for _, name := range l.cfg.poolNames() {
		p := PoolStatus{Name: name, Running: running[name], Problem: l.problems[name]}
		p.Nodes, p.Jobs = l.seen.sources(name)
		s.Pools = append(s.Pools, p)
		s.Running += p.Running
	}
	s.Nodes, s.Jobs = s.Pools[0].Nodes, s.Pools[0].Jobs
	return s
}

// heard notes which models clients ask for.
func (l *leading) heard(o planner.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = o.Demand
}

// demandPause is how long clients ask for a model in vain before that is news again.
const demandPause = time.Second

// asked tells whether clients ask for a model that they did not ask for at the last look,
// or still do so long after it.
func (l *leading) asked() bool {
	now := l.cfg.Loads.Demand(scaledAt(l.cfg.Raft.Store().View()))
	l.mu.Lock()
	defer l.mu.Unlock()
	for model, at := range now {
		if was, known := l.wanted[model]; !known || at.Sub(was) >= demandPause {
			return true
		}
	}
	return false
}

// failingPause is how long until the next look while a replica fails its requests: at every
// report of them, it would be many a second.
const failingPause = time.Second

// beginsToFail reports whether a replica has failed enough requests by now to be looked at, and
// none had at the last look.
func (l *leading) beginsToFail() bool {
	failing := l.cfg.Loads.Failing(planner.FailuresLeast)
	l.mu.Lock()
	defer l.mu.Unlock()
	return failing && !l.failing
}
