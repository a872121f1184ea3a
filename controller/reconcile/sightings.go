package reconcile

import (
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// sightings keeps what the watches last said.
type sightings struct {
	now   func() time.Time
	grace time.Duration // ConsulGrace
	wake  func()

	mu      sync.Mutex // guards what follows
	pools   map[string]*poolSightings
	engines map[string][]planner.Engine
	// believed is when the engines may be believed again after an outage.
	believed   time.Time
	enginesAre Source
}

// poolSightings is what one Nomad last said.
type poolSightings struct {
	nodes  []state.Node
	unread map[string]error     // nodes that could not be read, by ID; never changed once it is here
	jobs   map[string]nomad.Job // by ID, never changed once it is here
	// index and began are those of the list of jobs; see nomad.Listing.
	index uint64
	began time.Time
	// returned is when the jobs were heard again after an outage.
	returned          time.Time
	nodesAre, jobsAre Source
}

func newSightings(pools []string, now func() time.Time, grace time.Duration, wake func()) *sightings {
	s := &sightings{now: now, grace: grace, wake: wake, pools: map[string]*poolSightings{}}
	for _, name := range pools {
		s.pools[name] = &poolSightings{}
	}
	return s
}

// sighted is what is known at one moment. Nobody changes it.
type sighted struct {
	pools        map[string]poolSighted
	engines      map[string][]planner.Engine
	enginesKnown bool
	// begun: some Nomad was heard, and the own one was or is known to be out of reach.
	// Before that what another pool has would seem to be all there is.
	begun bool
}

// take returns what is known now, and when that will be something else by itself.
func (s *sightings) take(next *schedule) sighted {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	out := sighted{pools: make(map[string]poolSighted, len(s.pools)), engines: s.engines, enginesKnown: s.enginesAre.Known}
	for name, p := range s.pools {
		one := poolSighted{
			nodes: p.nodes, unread: p.unread, nodesKnown: p.nodesAre.Known, jobs: p.jobs, index: p.index, began: p.began, returned: p.returned,
			begun:   !p.nodesAre.Heard.IsZero() && !p.jobsAre.Heard.IsZero(),
			settled: p.nodesAre.settled() && p.jobsAre.settled(),
		}
		one.jobsKnown = p.jobsAre.Known && one.begun
		out.begun = out.begun || one.begun
		out.pools[name] = one
	}
	out.begun = out.begun && out.pools[own].settled
	if out.enginesKnown && now.Before(s.believed) {
		out.enginesKnown = false
		next.add(s.believed)
	}
	return out
}

// settled tells whether it was heard, or is known to be out of reach.
func (s Source) settled() bool { return !s.Heard.IsZero() || !s.LostAt.IsZero() }

// sources returns how the pool's nodes and jobs are known.
func (s *sightings) sources(pool string) (nodes, jobs Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[pool]
	return p.nodesAre, p.jobsAre
}

func (s *sightings) enginesSource() Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enginesAre
}

// set makes a change, and has the loop look at it.
func (s *sightings) set(change func(now time.Time)) {
	s.mu.Lock()
	change(s.now())
	s.mu.Unlock()
	s.wake()
}

// setPool is set for what one Nomad says.
func (s *sightings) setPool(pool string, change func(p *poolSightings, now time.Time)) {
	s.set(func(now time.Time) { change(s.pools[pool], now) })
}

func (s *sightings) sawNodes(pool string, nodes []state.Node, unread map[string]error) {
	s.setPool(pool, func(p *poolSightings, now time.Time) {
		p.nodes, p.unread, p.nodesAre = nodes, unread, Source{Known: true, Heard: now}
	})
}

func (s *sightings) sawJobs(pool string, l nomad.Listing) {
	byID := make(map[string]nomad.Job, len(l.Jobs))
	for _, j := range l.Jobs {
		byID[j.ID] = j
	}
	s.setPool(pool, func(p *poolSightings, now time.Time) {
		if !p.jobsAre.Known && !p.jobsAre.LostAt.IsZero() {
			p.returned = now
		}
		p.jobs, p.jobsAre = byID, Source{Known: true, Heard: now}
		p.index, p.began = l.Index, l.Began
	})
}

// sawIndex notes that the jobs are the same up to a later index.
func (s *sightings) sawIndex(pool string, l nomad.Listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[pool].index, s.pools[pool].began = l.Index, l.Began
}

func (s *sightings) sawEngines(engines []replica.Engine, afterOutage bool) {
	byName := map[string][]planner.Engine{}
	for _, e := range engines {
		name := e.Name.String()
		byName[name] = append(byName[name], planner.Engine{Passing: e.Passing})
	}
	s.set(func(now time.Time) {
		s.engines, s.enginesAre = byName, Source{Known: true, Heard: now}
		if afterOutage {
			s.believed = now.Add(s.grace)
		}
	})
}

func (s *sightings) lostNodes(pool string, err error) {
	s.setPool(pool, func(p *poolSightings, now time.Time) { lose(&p.nodesAre, now, err.Error()) })
}

func (s *sightings) lostJobs(pool string, err error) {
	s.setPool(pool, func(p *poolSightings, now time.Time) { lose(&p.jobsAre, now, err.Error()) })
}

func (s *sightings) lostEngines() {
	s.set(func(now time.Time) {
		lose(&s.enginesAre, now, "cannot reach Consul, or Consul denies listing the engines")
	})
}

func lose(s *Source, now time.Time, why string) {
	if s.Known || s.LostAt.IsZero() {
		s.LostAt = now
	}
	s.Known, s.Error = false, why
}
