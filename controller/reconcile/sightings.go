package reconcile

import (
	"maps"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// sightings keeps what the watches last said, and what was written to Nomad and is
// not seen yet.
type sightings struct {
	now   func() time.Time
	grace time.Duration // ConsulGrace
	wake  func()

	mu      sync.Mutex // guards what follows
	nodes   []state.Node
	jobs    map[string]nomad.Job // by ID, never changed once it is here
	engines map[string][]planner.Engine
	// believed is when the engines may be believed again after an outage.
	believed time.Time
	// returned is when Nomad's jobs were heard again after an outage.
	returned time.Time
	echoes   map[string]echo

	nodesAre, jobsAre, enginesAre Source
}

func newSightings(now func() time.Time, grace time.Duration, wake func()) *sightings {
	return &sightings{now: now, grace: grace, wake: wake, echoes: map[string]echo{}}
}

// sighted is what is known at one moment. Nobody changes it.
type sighted struct {
	nodes        []state.Node
	nodesKnown   bool
	jobs         map[string]nomad.Job
	jobsKnown    bool
	engines      map[string][]planner.Engine
	enginesKnown bool
	echoes       map[string]echo
	// returned is when Nomad's jobs were heard again after an outage.
	returned time.Time
	// begun: Nomad was heard at least once.
	begun bool
}

// take returns what is known now, and when that will be something else by itself.
func (s *sightings) take(next *schedule) sighted {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for name, e := range s.echoes {
		if !now.Before(e.until) || s.jobsAre.Known && e.seen(s.jobs) {
			delete(s.echoes, name)
			continue
		}
		next.add(e.until)
	}
	out := sighted{
		nodes: s.nodes, nodesKnown: s.nodesAre.Known, jobs: s.jobs, jobsKnown: s.jobsAre.Known,
		engines: s.engines, enginesKnown: s.enginesAre.Known, echoes: maps.Clone(s.echoes),
		returned: s.returned, begun: !s.nodesAre.Heard.IsZero() && !s.jobsAre.Heard.IsZero(),
	}
	if out.enginesKnown && now.Before(s.believed) {
		out.enginesKnown = false
		next.add(s.believed)
	}
	return out
}

func (s *sightings) sources() (nodes, jobs, engines Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodesAre, s.jobsAre, s.enginesAre
}

// set makes a change, and has the loop look at it.
func (s *sightings) set(change func(now time.Time)) {
	s.mu.Lock()
	change(s.now())
	s.mu.Unlock()
	s.wake()
}

func (s *sightings) sawNodes(nodes []state.Node) {
	s.set(func(now time.Time) { s.nodes, s.nodesAre = nodes, Source{Known: true, Heard: now} })
}

func (s *sightings) sawJobs(jobs []nomad.Job) {
	byID := make(map[string]nomad.Job, len(jobs))
	for _, j := range jobs {
		byID[j.ID] = j
	}
	s.set(func(now time.Time) {
		if !s.jobsAre.Known && !s.jobsAre.LostAt.IsZero() {
			s.returned = now
		}
		s.jobs, s.jobsAre = byID, Source{Known: true, Heard: now}
	})
}

func (s *sightings) sawEngines(engines []replica.Engine, afterOutage bool) {
	byName := map[string][]planner.Engine{}
	for _, e := range engines {
		name := e.Name.String()
		byName[name] = append(byName[name], planner.Engine{Role: e.Role, Passing: e.Passing, NodeDown: e.NodeDown, Token: e.Token})
	}
	s.set(func(now time.Time) {
		s.engines, s.enginesAre = byName, Source{Known: true, Heard: now}
		if afterOutage {
			s.believed = now.Add(s.grace)
		}
	})
}

func (s *sightings) lostNodes(err error) {
	s.set(func(now time.Time) { lose(&s.nodesAre, now, err.Error()) })
}

func (s *sightings) lostJobs(err error) {
	s.set(func(now time.Time) { lose(&s.jobsAre, now, err.Error()) })
}

func (s *sightings) lostEngines() {
	s.set(func(now time.Time) {
		lose(&s.enginesAre, now, "consul does not answer, or refuses to list the engines")
	})
}

func lose(s *Source, now time.Time, why string) {
	if s.Known || s.LostAt.IsZero() {
		s.LostAt = now
	}
	s.Known, s.Error = false, why
}

// expect remembers a write to Nomad until it is seen.
func (s *sightings) expect(name string, e echo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.echoes[name] = e
}

// echo is a write to Nomad that the watch has to show yet. Without it the next look
// would take the world from before the write for what somebody did to it.
type echo struct {
	kind planner.Kind
	// index is what a Register has written, and for the others the job's index as it
	// was before.
	index uint64
	// job is what a Register has written.
	job   planner.Job
	until time.Time
}

// seen tells whether the watch shows the write, or what came after it.
func (e echo) seen(jobs map[string]nomad.Job) bool {
	j, there := jobs[e.job.Name.String()]
	switch e.kind {
	case planner.Register:
		return there && j.Index >= e.index
	case planner.Stop:
		return !there || j.Stopped || j.Index > e.index
	}
	return !there || j.Index > e.index
}
