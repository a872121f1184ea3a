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

// loop reconciles during one term of leadership. It starts with an empty cache.
type loop struct {
	cfg     Config
	nomads  map[string]Nomad // by the name of the pool
	metrics *metrics
	term    uint64
	began   time.Time

	woken      chan struct{} // of capacity 1
	wg         sync.WaitGroup
	cache      *cache
	blocked    *poller[string]    // why Nomad does not place jobs
	notServing *poller[string]    // why engines do not serve
	pairs      *poller[pairState] // how failover pairs are
	executor   *executor
	writer     *writer
	// planner is used by run only.
	planner Planner
	probe   *probe

	mu      sync.Mutex // guards the fields below
	lastRun time.Time
	paused  bool
	// problems describes the problems with the nodes of a pool, see listing.
	problems map[string]string
	// demand has the models that clients had asked for in vain by the last run, and when.
	demand map[string]time.Time
	// failing reports whether a replica had failed enough requests by the last run to run again
	// soon.
	failing bool
}

func newLoop(r *Reconciler, term uint64) *loop {
	l := &loop{cfg: r.cfg, nomads: r.cfg.nomads(), metrics: r.metrics, term: term, began: r.cfg.Now(), woken: make(chan struct{}, 1)}
	l.cfg.Logger = l.cfg.Logger.With("term", term)
	l.cache = newCache(l.cfg.poolNames(), l.cfg.Now, l.cfg.ConsulGrace, l.wake)
	l.blocked = &poller[string]{
		// The answer has to be there when PlaceTimeout is over, for the reason of the failure.
		concerns: waitsForNomad, patience: l.cfg.Planner.PlaceTimeout / 2, interval: l.cfg.WhyInterval, now: l.cfg.Now,
		ask: func(ctx context.Context, j job, _ string) (string, error) { return l.nomads[j.pool].Why(ctx, j.Name) },
		onAnswer: func(name, _, _ string, err error) {
			if err != nil {
				l.cfg.Logger.Debug("cannot read why Nomad does not place a job", "replica", name, "error", err)
			}
			l.wake()
		},
	}
	l.notServing = &poller[string]{
		concerns: waitsForEngines, patience: l.cfg.Planner.ServingGrace, interval: l.cfg.WhyInterval, now: l.cfg.Now,
		ask: l.notServingReason, onAnswer: func(string, string, string, error) { l.wake() },
	}
	l.pairs = &poller[pairState]{
		concerns: isPair, interval: pairInterval, now: l.cfg.Now, ask: l.askPair,
		onAnswer: func(_ string, last, now pairState, _ error) {
			if now != last {
				l.wake()
			}
		},
	}
	l.executor, l.planner = newExecutor(l), l.cfg.NewPlanner(l.cfg.Planner)
	l.probe = &probe{l: l, busy: make(chan struct{}, 1), last: map[string]map[string]string{}}
	l.writer = &writer{l: l, lost: map[string]time.Time{}, plans: rate.NewLimiter(rate.Limit(l.cfg.PlanRate), l.cfg.PlanBurst)}
	return l
}

// wake triggers another run. It never blocks.
func (l *loop) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// run reconciles until ctx ends, and returns when every goroutine that it started has ended.
func (l *loop) run(ctx context.Context) {
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
			_ = n.WatchNodes(ctx, known[pool], func(nodes []state.Node, unread map[string]error) { l.cache.setNodes(pool, nodes, unread) }, func(err error) { l.cache.loseNodes(pool, err) })
		})
		l.wg.Go(func() {
			_ = n.WatchJobs(ctx, func(list nomad.Listing) { l.setJobs(pool, list) }, func(err error) { l.cache.loseJobs(pool, err) })
		})
	}
	l.wg.Go(func() { _ = l.cfg.Consul.Watch(ctx, l.cache.setEngines, l.cache.loseEngines) })
	l.wg.Go(func() { l.watchState(ctx) })

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reports := l.cfg.Loads.Changed() // before they are read
		began := l.cfg.Now()
		next, drains := l.reconcileOnce(ctx)
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
				// Most reports do not affect any decision.
				reports = l.cfg.Loads.Changed()
				again = drains || l.newDemand() || l.newFailures()
			case <-timer.C:
				again = true
			}
		}
		// Changes within Settle are handled in one run.
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

// setJobs stores a list of jobs. A list without a change matters only while a write may not be
// visible: the index of the list shows that the write had no visible effect.
func (l *loop) setJobs(pool string, list nomad.Listing) {
	if list.Changed {
		l.cache.setJobs(pool, list)
		return
	}
	l.cache.setJobsIndex(pool, list)
	if l.executor.awaitsWrite(pool) {
		l.wake()
	}
}

// watchState wakes the loop at each change of the tables from which plans are made.
func (l *loop) watchState(ctx context.Context) {
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

// reconcileOnce compares the state with Nomad and Consul once: it writes changed nodes,
// commits a plan, and starts the actions, including those of the plan. It returns when to run
// again if nothing changes until then, and whether replicas drain towards WARM.
func (l *loop) reconcileOnce(ctx context.Context) (time.Time, bool) {
	start := time.Now()
	defer func() { l.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	var next schedule
	now := l.cfg.Now()
	snap := l.cache.snapshot(&next)
	list := snap.listing()
	if len(list.known) > 0 {
		l.writer.nodes(ctx, l.cfg.Raft.Store().View(), list, now, &next)
	}
	if snap.ready { // before a plan says that a replica serves
		known := l.cfg.Raft.Store().View()
		l.writer.addresses(ctx, known, snap.jobs(known), now, &next)
	}
	writes := l.executor.writes() // before the view, see inFlight
	view := l.cfg.Raft.Store().View()
	inFlight := l.inFlight(writes, view, snap)
	l.executor.cancelStale(view)

	// Until Nomad has answered, the seats of jobs that are not in the state are unknown.
	if snap.ready {
		jobs := snap.jobs(view)
		o := l.observe(view, snap, jobs, inFlight, now)
		l.noteDemand(o)
		if l.writer.ready(now, &next) {
			plan, again := l.planner.Plan(view, o)
			if !again.IsZero() && !again.After(now) {
				again = now.Add(l.cfg.Retry) // an overdue deadline is not urgent
			}
			next.add(again)
			if plan != nil && l.writer.plan(ctx, view, plan, now, &next) {
				l.writer.addresses(ctx, l.cfg.Raft.Store().View(), jobs, now, &next) // of replicas that were adopted
				view = l.cfg.Raft.Store().View()
				o = l.observe(view, snap, jobs, inFlight, now)
				l.wake() // the planner may have more to decide
			}
		}
		if ctx.Err() == nil {
			known := func(pool string) bool { return snap.pools[pool].jobsKnown }
			run := func(f func()) { l.wg.Go(f) }
			l.blocked.poll(ctx, view, jobs, known, run, &next)
			l.notServing.poll(ctx, view, jobs, known, run, &next)
			l.pairs.poll(ctx, view, jobs, known, run, &next)
			l.executor.start(ctx, view, snap, jobs, inFlight, l.cfg.Actions(view, o, l.cfg.Planner), now, &next)
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
	l.lastRun, l.paused, l.problems = now, view.Switch(nil, state.SwitchPauseReconcile) != "", list.problems
	return next.at, drains
}

func (l *loop) status() Status {
	s := Status{Leading: true, Term: l.term}
	s.Engines = l.cache.enginesSource()
	var running map[string]int
	running, s.Waiting = l.executor.status()
	s.Error = l.writer.lastError()
	slices.SortFunc(s.Waiting, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Replica, b.Replica), strings.Compare(a.Kind, b.Kind))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	s.LastRunAt, s.Paused = l.lastRun, l.paused
	for _, name := range l.cfg.poolNames() {
		p := PoolStatus{Name: name, Running: running[name], Problem: l.problems[name]}
		p.Nodes, p.Jobs = l.cache.sources(name)
		s.Pools = append(s.Pools, p)
		s.Running += p.Running
	}
	s.Nodes, s.Jobs = s.Pools[0].Nodes, s.Pools[0].Jobs
	return s
}

// noteDemand records which models clients ask for.
func (l *loop) noteDemand(o planner.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.demand = o.Demand
}

// demandPause is how often unmet demand for a model triggers another run.
const demandPause = time.Second

// newDemand reports whether clients ask for a model that they had not asked for by the last
// run, or ask for it again after demandPause.
func (l *loop) newDemand() bool {
	now := l.cfg.Loads.Demand(scaledAt(l.cfg.Raft.Store().View()))
	l.mu.Lock()
	defer l.mu.Unlock()
	for model, at := range now {
		if was, known := l.demand[model]; !known || at.Sub(was) >= demandPause {
			return true
		}
	}
	return false
}

// failingPause is the time until the next run while a replica fails its requests. A run at
// every report would mean many a second.
const failingPause = time.Second

// newFailures reports whether a replica has failed enough requests to trigger a run, and none
// had by the last run.
func (l *loop) newFailures() bool {
	failing := l.cfg.Loads.Failing(planner.FailuresLeast)
	l.mu.Lock()
	defer l.mu.Unlock()
	return failing && !l.failing
}
