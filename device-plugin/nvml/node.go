package nvml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"remuda/device-plugin/health"
)

// node is what is known of the node, and the worker that lists its GPUs and waits for their XIDs. The
// source's mu guards it.
type node struct {
	Node
	life lifecycle
	// proc is the worker in use, nil if there is none, and goneAt when the last one ended without a
	// successor; zero if it has one.
	proc   *process
	goneAt time.Time
	// err is why NVML cannot be used, nil if it can.
	err error
	// changed is closed and replaced when NVML begins to work.
	changed chan struct{}
	// listed says that every GPU of the list has given its name, or was found to hang. unnamed has the
	// reasons of those without a name, by number.
	listed  bool
	unnamed map[int]string
	// skip are the GPUs in whose name a worker crashed or hangs, by number. oneByOne says that a worker
	// crashed and several GPUs may be the cause: the next one asks for one name after the other.
	skip     map[int]skipped
	oneByOne bool
	// renew says that NVML has to be initialised anew to see what is there.
	renew bool
	// stuck are the workers that could not be killed, since they hang inside the driver. Only tendNode
	// uses it.
	stuck []*process
	// load and listing are the driver's load and its GPUs when the worker was started.
	load, listing string
	// What was logged last.
	faultSaid, eventsSaid, unnamedSaid, missingSaid string
}

// skipped is how long a GPU is not asked for its name.
type skipped struct {
	until time.Time
	pause time.Duration
	why   string
}

// maxSkip bounds the pause between two attempts to name a GPU in whose name a worker crashed or hangs:
// the one costs the node the XIDs of a moment, the other a process.
const maxSkip = time.Hour

// leave has a GPU not be asked for its name for rediscover, twice as long each time in a row.
func (n *node) leave(i int, rediscover time.Duration, why error) {
	pause := min(max(rediscover, 2*n.skip[i].pause), maxSkip)
	n.skip[i] = skipped{until: time.Now().Add(pause), pause: pause, why: why.Error()}
}

// end kills a worker, and keeps one that cannot be killed.
func (n *node) end(p *process) {
	if !p.kill() {
		n.stuck = append(n.stuck, p)
	}
}

// maxStuck bounds the workers that cannot be killed: a driver that hangs must not collect processes.
// One is no reason to do without the XIDs of the other GPUs.
const maxStuck = 3

// mayStart says whether another worker may be started.
func (n *node) mayStart() bool {
	n.stuck = slices.DeleteFunc(n.stuck, func(p *process) bool { return isClosed(p.gone) })
	return len(n.stuck) < maxStuck
}

func (n *node) init(cfg Config) {
	n.changed = make(chan struct{})
	n.unnamed, n.skip = map[int]string{}, map[int]skipped{}
	n.life = lifecycle{retry: min(cfg.Retry, cfg.Period), maxRetry: cfg.Period}
}

// tendNode keeps the worker of the node until the source is closed.
func (s *Source) tendNode() {
	var p *process
	defer func() {
		if p != nil {
			p.kill()
		}
	}()
	began := time.Now()
	for s.ctx.Err() == nil {
		if p == nil && !s.node.mayStart() {
			stuck := s.node.stuck[0]
			s.nodeHangs(fmt.Errorf("NVML hangs inside the driver: %d of its processes cannot be killed, among them %d", len(s.node.stuck), stuck.cmd.Process.Pid))
			s.sleep(s.cfg.Period, stuck.gone)
			continue
		}
		if p == nil {
			s.mu.Lock()
			wait := s.node.life.wait(time.Now())
			s.mu.Unlock()
			if s.sleep(wait, nil) {
				began = time.Now()
				p = s.openNode(true)
			}
			continue
		}
		if !s.sleep(s.cfg.Period, p.gone) {
			return
		}
		l := limits{hang: s.cfg.Hang, giveUp: s.cfg.GiveUp}
		m, err := await(s.ctx, p, 0, p.ask(OpNode, 0), l, s.nodeHangs)
		switch {
		case errors.Is(err, errUnusable):
			ended := time.Now() // an end may take seconds
			s.node.end(p)
			s.nodeEnded(p, err, ended)
			p = nil
			continue
		case err != nil:
			s.nodeHangs(err)
		default:
			s.nodeAnswers(*m.Node)
		}
		if time.Since(began) >= s.cfg.Rediscover && s.outdated() && s.node.mayStart() {
			// The old worker goes on until its successor has registered every GPU: no XID gets
			// lost, and the driver stays awake.
			began = time.Now()
			if next := s.openNode(false); next != nil {
				s.node.end(p)
				p = next
			}
		}
	}
}

// sleep waits, and says whether the source is still open. It ends early when early is closed.
func (s *Source) sleep(d time.Duration, early <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-early:
	case <-s.ctx.Done():
	}
	return s.ctx.Err() == nil
}

// outdated says whether NVML has to be initialised anew to see what is there.
func (s *Source) outdated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.node.unnamed {
		if !time.Now().Before(s.node.skip[i].until) {
			return true
		}
	}
	return s.node.renew || s.host.drivers() != s.node.listing
}

// openNode starts a worker of the node, lists the GPUs and registers them for their XIDs. It returns nil
// if that failed. alone says that there is no other worker, which goes on if this one fails.
func (s *Source) openNode(alone bool) *process {
	s.metrics.starts.Inc()
	listing := s.host.drivers()
	var p *process
	known := make(chan struct{}) // closed once p is
	p, err := spawn(s.cfg.Command, "", func(e Event) { <-known; s.event(p, e) })
	close(known)
	hangs := func(error) {}
	if alone {
		hangs = s.nodeHangs
		s.mu.Lock()
		s.node.life.started()
		s.mu.Unlock()
	}
	l := limits{hang: s.cfg.Hang, giveUp: s.cfg.StartGiveUp}
	if err == nil {
		_, err = await(s.ctx, p, 0, p.first, l, hangs)
	}
	var m Message
	if err == nil {
		m, err = await(s.ctx, p, 0, p.ask(OpNode, 0), l, hangs)
	}
	if err == nil && m.Node == nil {
		err = errors.New("the NVML worker answered without the node")
	}
	if err == nil {
		s.mu.Lock()
		if listing != s.node.listing { // a number may be another GPU's now
			clear(s.node.skip)
		}
		s.node.unnamed, s.node.listing, s.node.renew = map[int]string{}, listing, false
		s.mu.Unlock()
		s.nodeAnswers(*m.Node)
		err = s.nameAll(p, m.Node.Count)
	}
	if err != nil {
		ended := time.Now()
		if p != nil {
			s.node.end(p)
		}
		if alone {
			s.nodeEnded(p, err, ended)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.proc, s.node.listed, s.node.oneByOne = p, true, false
	if p.waited || s.node.eventsSaid == "" { // otherwise what its predecessor reported holds until it has waited
		s.eventsWork(p.eventsErr)
	}
	if !s.node.goneAt.IsZero() {
		s.log.Warn("no worker waited for XIDs: XIDs of that time are not seen", "seconds", time.Since(s.node.goneAt).Seconds())
		s.node.goneAt = time.Time{}
	}
	s.metrics.nameless.Set(float64(len(s.node.unnamed)))
	var errs []error
	for _, i := range slices.Sorted(maps.Keys(s.node.unnamed)) {
		errs = append(errs, fmt.Errorf("GPU %d: %s", i, s.node.unnamed[i]))
	}
	s.say(&s.node.unnamedSaid, errors.Join(errs...), "the driver lists GPUs whose UUID cannot be read: they are not published unless they are known")
	s.touch(nil)
	s.log.Debug("NVML is initialised", "pid", p.cmd.Process.Pid, "gpus", m.Node.Count)
	return p
}

// nameAll asks for the names of all GPUs, at once unless one of them crashed a worker, and waits until
// each has answered or hangs; an answer that comes later is taken in as well. Its error is that the
// worker is gone.
func (s *Source) nameAll(p *process, count int) error {
	done := make(chan struct{}, MaxGPUs)
	wait := func() error {
		select {
		case <-done:
			return nil
		case <-p.gone:
			return p.ending()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	waits := 0
	for i := range min(count, MaxGPUs) {
		s.mu.Lock()
		skip, oneByOne := time.Now().Before(s.node.skip[i].until), s.node.oneByOne
		if skip {
			s.node.unnamed[i] = s.node.skip[i].why
		}
		s.mu.Unlock()
		if skip {
			continue
		}
		if oneByOne && waits > 0 {
			if err := wait(); err != nil {
				return err
			}
			waits--
		}
		waits++
		answer := p.ask(OpName, i)
		s.running.Go(func() {
			l := limits{hang: s.cfg.Hang, giveUp: s.cfg.StartGiveUp}
			hung := false
			m, err := await(s.ctx, p, 1+i, answer, l, func(err error) {
				hung = true
				s.unnamed(i, err)
				s.mu.Lock()
				s.node.leave(i, s.cfg.Rediscover, err)
				s.mu.Unlock()
				done <- struct{}{}
			})
			switch {
			case s.ctx.Err() != nil || isClosed(p.gone) && m.Name == nil:
			case err != nil:
				s.unnamed(i, err)
			case m.Name != nil:
				s.named(i, *m.Name)
			}
			if !hung {
				done <- struct{}{}
			}
		})
	}
	for range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// named takes in the name of a GPU.
func (s *Source) named(i int, n Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.node.unnamed, i)
	delete(s.node.skip, i)
	s.metrics.nameless.Set(float64(len(s.node.unnamed)))
	if slices.Contains(s.cfg.Ignored, n.UUID) {
		return
	}
	u := s.unit(n.UUID)
	if u == nil {
		u = s.adopt(Device{UUID: n.UUID, PCIBusID: n.PCIBusID})
	}
	u.device.PCIBusID, u.device.Events = n.PCIBusID, n.Events
	s.metrics.watched.WithLabelValues(n.UUID).Set(boolean(n.Events))
	var err error
	if !n.Events {
		err = errors.New(n.EventsErr)
		s.node.renew = s.node.renew || n.Refused
	}
	s.say(&u.eventsSaid, err, "the driver reports no XIDs for this GPU: its health depends on its counters only", "gpu", n.UUID)
	s.touch(u)
}

// unnamed takes in that a GPU has no name.
func (s *Source) unnamed(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.unnamed[i] = err.Error()
}

// nodeAnswers takes in that NVML works.
func (s *Source) nodeAnswers(n Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node.err != nil {
		s.log.Info("NVML works again", "driver_version", n.DriverVersion, "was", s.node.err)
	}
	load := s.host.driverLoad()
	if s.node.DriverVersion != "" && s.node.DriverVersion != n.DriverVersion || s.node.load != "" && s.node.load != load {
		s.log.Info("the driver was loaded anew: that resets every GPU", "driver_version", n.DriverVersion)
		s.machine.Reloaded()
		clear(s.node.skip)
	}
	s.node.Node, s.node.load, s.node.err, s.node.faultSaid = n, load, nil, ""
	s.node.life.answered()
	close(s.node.changed)
	s.node.changed = make(chan struct{})
	s.metrics.up.Set(1)
	if text := fmt.Sprint(n.Missing); text != s.node.missingSaid && len(n.Missing) > 0 {
		s.node.missingSaid = text
		s.log.Info("NVML lacks functions: the values that they return are unknown", "functions", n.Missing)
	}
	s.touch(nil)
}

// nodeHangs takes in that NVML does not answer about the node, in a process that goes on.
func (s *Source) nodeHangs(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.life.hangs()
	s.nodeFault(err)
}

// nodeEnded takes in that the worker of the node is gone, or had to go, since a time.
func (s *Source) nodeEnded(p *process, err error, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	if s.node.proc != nil {
		s.node.proc, s.node.goneAt = nil, since
	}
	s.node.life.ended(time.Now())
	if p != nil && isClosed(p.gone) && len(p.culprits) > 0 {
		s.node.oneByOne = true
		if len(p.culprits) > 1 {
			return
		}
		// The next worker leaves that GPU alone, so that it serves the others.
		s.node.leave(p.culprits[0], s.cfg.Rediscover, err)
		return
	}
	if causeOf(err) == causeCrash && s.node.life.failures == 1 {
		s.log.Warn("the NVML worker of the node is replaced", "error", err)
		return
	}
	s.nodeFault(err)
}

// nodeFault takes in why NVML cannot be used. It is against the GPUs that have no worker; those that
// have one are read as before.
func (s *Source) nodeFault(err error) {
	if s.ctx.Err() != nil {
		return
	}
	s.node.err = err
	s.metrics.up.Set(0)
	s.say(&s.node.faultSaid, err, "NVML cannot be used", "next_start", s.node.life.wait(time.Now()))
	for _, u := range s.units {
		if u.life.phase != ready {
			u.settled = true
			s.observe(u, health.Reading{Err: err.Error(), Certain: true})
		}
	}
	s.touch(nil)
}

// eventsWork takes in whether the worker can wait for XIDs. NVML's documentation has a GPU that is lost
// as one cause, which the next readings show.
func (s *Source) eventsWork(err error) {
	s.metrics.events.Set(boolean(err == nil))
	if err != nil {
		s.node.renew = true // another worker may be able to
		if s.node.eventsSaid == "" {
			for _, u := range s.units {
				u.readSoon()
			}
		}
	}
	s.say(&s.node.eventsSaid, err, "cannot wait for XIDs: they are not seen until this is over")
}
