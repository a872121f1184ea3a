package reconcile

import (
	"slices"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// cache holds what the watches of Nomad and Consul reported last.
type cache struct {
	now   func() time.Time
	grace time.Duration // ConsulGrace
	wake  func()

	mu      sync.Mutex // guards the fields below
	pools   map[string]*poolCache
	engines map[string][]planner.Engine
	// passedAt is when an engine of a replica that has none now was last seen to pass; replaced,
	// never modified.
	passedAt map[string]time.Time
	// enginesTrustedAt is when the list of engines may be trusted again after an outage.
	enginesTrustedAt time.Time
	engineSource     Source
}

// poolCache holds what the watches of one Nomad reported last.
type poolCache struct {
	nodes  []state.Node
	unread map[string]error     // nodes that could not be read, by ID; replaced, never modified
	jobs   map[string]nomad.Job // by ID; replaced, never modified
	// nodeJob is what runs of the node job; see nomad.Listing.
	nodeJob *nomad.NodeJob
	// index and began are those of the list of jobs; see nomad.Listing.
	index uint64
	began time.Time
	// returnedAt is when the jobs were listed again after an outage.
	returnedAt            time.Time
	nodeSource, jobSource Source
}

func newCache(pools []string, now func() time.Time, grace time.Duration, wake func()) *cache {
	c := &cache{now: now, grace: grace, wake: wake, pools: map[string]*poolCache{}}
	for _, name := range pools {
		c.pools[name] = &poolCache{}
	}
	return c
}

// snapshot is a copy of the cache at one moment. It is not modified.
type snapshot struct {
	pools        map[string]poolSnapshot
	engines      map[string][]planner.Engine
	passedAt     map[string]time.Time
	enginesKnown bool
	// ready means that at least one pool is loaded, and that the controller's own pool is either
	// loaded or known to be unreachable. Before that the jobs of another pool would look like
	// all jobs.
	ready bool
}

// snapshot copies the cache, and adds to next when the copy becomes outdated by time alone.
func (c *cache) snapshot(next *schedule) snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	out := snapshot{pools: make(map[string]poolSnapshot, len(c.pools)), engines: c.engines, passedAt: c.passedAt, enginesKnown: c.engineSource.Known}
	for name, p := range c.pools {
		one := poolSnapshot{
			nodes: p.nodes, unread: p.unread, nodesKnown: p.nodeSource.Known, jobs: p.jobs, nodeJob: p.nodeJob, index: p.index, began: p.began, returnedAt: p.returnedAt,
			loaded:  !p.nodeSource.LastContactAt.IsZero() && !p.jobSource.LastContactAt.IsZero(),
			settled: p.nodeSource.settled() && p.jobSource.settled(),
		}
		one.jobsKnown = p.jobSource.Known && one.loaded
		out.ready = out.ready || one.loaded
		out.pools[name] = one
	}
	out.ready = out.ready && out.pools[ownPool].settled
	if out.enginesKnown && now.Before(c.enginesTrustedAt) {
		out.enginesKnown = false
		next.add(c.enginesTrustedAt)
	}
	return out
}

// settled reports whether the source has answered, or is known to be unreachable.
func (s Source) settled() bool { return !s.LastContactAt.IsZero() || !s.LostAt.IsZero() }

// sources returns the state of the watches of a pool's nodes and jobs.
func (c *cache) sources(pool string) (nodes, jobs Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[pool]
	return p.nodeSource, p.jobSource
}

func (c *cache) enginesSource() Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.engineSource
}

// update applies change under the lock and wakes the loop.
func (c *cache) update(change func(now time.Time)) {
	c.mu.Lock()
	change(c.now())
	c.mu.Unlock()
	c.wake()
}

// updatePool is update for the cache of one pool.
func (c *cache) updatePool(pool string, change func(p *poolCache, now time.Time)) {
	c.update(func(now time.Time) { change(c.pools[pool], now) })
}

func (c *cache) setNodes(pool string, nodes []state.Node, unread map[string]error) {
	c.updatePool(pool, func(p *poolCache, now time.Time) {
		p.nodes, p.unread, p.nodeSource = nodes, unread, Source{Known: true, LastContactAt: now}
	})
}

func (c *cache) setJobs(pool string, l nomad.Listing) {
	byID := make(map[string]nomad.Job, len(l.Jobs))
	for _, j := range l.Jobs {
		byID[j.ID] = j
	}
	c.updatePool(pool, func(p *poolCache, now time.Time) {
		if !p.jobSource.Known && !p.jobSource.LostAt.IsZero() {
			p.returnedAt = now
		}
		p.jobs, p.jobSource = byID, Source{Known: true, LastContactAt: now}
		p.nodeJob, p.index, p.began = l.Node, l.Index, l.Began
	})
}

// setJobsIndex records that the jobs are unchanged up to a later index.
func (c *cache) setJobsIndex(pool string, l nomad.Listing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools[pool].index, c.pools[pool].began = l.Index, l.Began
}

func (c *cache) setEngines(engines []replica.Engine, afterOutage bool) {
	byName := map[string][]planner.Engine{}
	for _, e := range engines {
		name := e.Name.String()
		byName[name] = append(byName[name], planner.Engine{Passing: e.Passing})
	}
	c.update(func(now time.Time) {
		passedAt := map[string]time.Time{}
		for name, at := range c.passedAt {
			if !passing(byName[name]) && now.Sub(at) < passedMemory {
				passedAt[name] = at
			}
		}
		for name, old := range c.engines {
			if passing(old) && !passing(byName[name]) {
				passedAt[name] = now
			}
		}
		c.passedAt = passedAt
		c.engines, c.engineSource = byName, Source{Known: true, LastContactAt: now}
		if afterOutage {
			c.enginesTrustedAt = now.Add(c.grace)
		}
	})
}

// passedMemory is for how long a replica without an engine that passes is remembered to have had one:
// longer than any serving grace.
const passedMemory = time.Hour

func passing(engines []planner.Engine) bool {
	return slices.ContainsFunc(engines, func(e planner.Engine) bool { return e.Passing })
}

func (c *cache) loseNodes(pool string, err error) {
	c.updatePool(pool, func(p *poolCache, now time.Time) { markLost(&p.nodeSource, now, err.Error()) })
}

func (c *cache) loseJobs(pool string, err error) {
	c.updatePool(pool, func(p *poolCache, now time.Time) { markLost(&p.jobSource, now, err.Error()) })
}

func (c *cache) loseEngines() {
	c.update(func(now time.Time) {
		markLost(&c.engineSource, now, "cannot reach Consul, or Consul denies listing the engines")
	})
}

func markLost(s *Source, now time.Time, why string) {
	if s.Known || s.LostAt.IsZero() {
		s.LostAt = now
	}
	s.Known, s.Error = false, why
}
