// Package nvml is the source of real GPUs for the device plugin: it reads them
// through NVIDIA's management library and follows their health.
//
// It guarantees that whatever NVML or the driver does costs the plugin nothing,
// and that a GPU suffers for its own faults only. NVML lives in processes of its
// own (package worker): one for the node, which lists the GPUs and waits for
// their XIDs, and one for each GPU, which reads that GPU. A process that hangs
// or crashes is ended and started again, with pauses. This package links nothing
// of NVIDIA's. What is known is returned at once: no caller waits for a GPU. A GPU
// that the driver no longer lists is lost and stays published as unhealthy; only
// MIG instances, which people create and destroy, come and go.
//
// One limit is the driver's: while a worker runs it has its GPU open, and
// `nvidia-smi --gpu-reset` refuses a GPU that is open. To reset a single GPU,
// drain the node and stop Nomad first.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/health"
)

// Config is what a Source needs.
type Config struct {
	// Logger gets one line for each XID and each fault. Required.
	Logger hclog.Logger
	// Command starts a worker. Required.
	Command []string
	// Health judges XIDs and readings. Required.
	Health health.Config
	// Period is the time from one reading of a GPU to the next; DefaultPeriod if 0.
	Period time.Duration
	// Hang is how long one call of NVML may take before it counts as hanging; DefaultHang if 0.
	Hang time.Duration
	// GiveUp is how long one call may take before its process is replaced, and a whole reading before
	// the GPU counts as too slow to be used; DefaultGiveUp if 0.
	GiveUp time.Duration
	// StartGiveUp is GiveUp for the calls that initialise NVML and open a GPU; DefaultStartGiveUp if 0.
	StartGiveUp time.Duration
	// Retry is the pause before the second restart of a worker in a row, which doubles with each
	// further one up to Rediscover; DefaultRetry if 0.
	Retry time.Duration
	// Rediscover is how often NVML is initialised anew for a GPU that is lost or cannot be listed: one
	// that comes back is found only that way. DefaultRediscover if 0.
	Rediscover time.Duration
	// Ignored are UUIDs of GPUs that are left alone.
	Ignored []string
	// Dir is the directory in which faults are kept over a restart, with mode 0700; empty for none.
	Dir string
	// Root is where /sys and /proc are; "/" if empty.
	Root string
	// Clock is time.Now if nil.
	Clock func() time.Time
}

// Defaults of Config.
const (
	// DefaultPeriod is the plugin's own.
	DefaultPeriod = deviceplugin.DefaultFingerprintPeriod
	// DefaultHang is far above what one call of a loaded driver takes: some 100 ms where it is busy.
	DefaultHang = 5 * time.Second
	// DefaultGiveUp is where a call that hangs is more likely to be stuck for good than to return.
	DefaultGiveUp = 30 * time.Second
	// DefaultStartGiveUp is for a large node without the persistence daemon,
	// where the driver wakes one GPU after the other, each for seconds.
	DefaultStartGiveUp = 2 * time.Minute
	// DefaultRetry keeps a crash that repeats itself from costing more than a process a second.
	DefaultRetry = time.Second
	// DefaultRediscover costs a lost GPU's node one short process each time.
	DefaultRediscover = 30 * time.Second
)

// sampleWait is how long Samples waits for a GPU: less than the second in which Nomad and scrapes ask
// again. What comes later is absent from this sample.
const sampleWait = 800 * time.Millisecond

// Source is a node's real GPUs. It is safe for concurrent use.
type Source struct {
	cfg  Config
	log  hclog.Logger
	host host

	// ctx ends all that run started.
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	// startedAt is when start was called first.
	startedAt time.Time
	running   sync.WaitGroup
	// mu guards what follows; it is never held across a call of NVML.
	mu       sync.Mutex
	machine  *health.Machine
	topology topology
	store    store
	node     node
	units    []*unit // in the order in which they became known
	recent   map[Event]heard
	changed  func()        // nil if there is no Watch
	news     chan struct{} // closed and replaced when something was learned

	metrics metrics
}

// heard is by which process an event was reported last, and when.
type heard struct {
	by *process
	at time.Time
}

var (
	_ deviceplugin.Source  = (*Source)(nil)
	_ deviceplugin.Watcher = (*Source)(nil)
)

// New makes a Source. Nothing is started before the first GPUs.
func New(cfg Config) (*Source, error) {
	var errs []error
	if cfg.Logger == nil {
		errs = append(errs, errors.New("NVML source: Logger is missing"))
	}
	if len(cfg.Command) == 0 {
		errs = append(errs, errors.New("NVML source: Command is missing"))
	}
	for _, f := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{{"Period", &cfg.Period, DefaultPeriod}, {"Hang", &cfg.Hang, DefaultHang}, {"GiveUp", &cfg.GiveUp, DefaultGiveUp},
		{"StartGiveUp", &cfg.StartGiveUp, DefaultStartGiveUp}, {"Retry", &cfg.Retry, DefaultRetry},
		{"Rediscover", &cfg.Rediscover, DefaultRediscover}} {
		if *f.d < 0 {
			errs = append(errs, fmt.Errorf("NVML source: %s is %s: must not be negative", f.name, *f.d))
		}
		if *f.d == 0 {
			*f.d = f.def
		}
	}
	machine, err := health.New(cfg.Health)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	s := &Source{
		cfg: cfg, log: cfg.Logger.Named("nvml"), host: host{root: cfg.Root}, news: make(chan struct{}),
		machine: machine, store: store{dir: cfg.Dir}, recent: map[Event]heard{}, metrics: newMetrics(),
	}
	s.node.init(cfg)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// start takes up what was kept and starts the workers.
func (s *Source) start() {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.startedAt = time.Now()
		if s.ctx.Err() != nil {
			return
		}
		all, err := s.store.load()
		if err != nil {
			s.log.Warn("cannot use kept faults", "error", err)
		}
		for uuid, k := range all {
			if slices.Contains(s.cfg.Ignored, uuid) {
				continue
			}
			reset := k.Boot != s.host.boot() || k.Driver != s.host.driverLoad()
			for id, saved := range k.Health {
				s.machine.Restore(id, saved, reset)
			}
			s.adopt(k.Device)
		}
		s.running.Go(s.tendNode)
	})
}

// Close ends all workers. The source cannot be used again.
func (s *Source) Close() error {
	s.mu.Lock()
	s.cancel() // nothing is started after it
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// GPUs lists the GPUs and MIG instances that are, or were, there, as they are known to be at this
// moment. Only the first calls wait: until there is something to report of the GPUs of need, of every
// GPU if need is empty, or until a call of NVML that began with the source would count as hanging. The
// error is that no GPU is known, with the reason.
func (s *Source) GPUs(ctx context.Context, need ...string) ([]deviceplugin.GPU, error) {
	s.start()
	patience := time.NewTimer(time.Until(s.startedAt.Add(s.cfg.Hang + s.cfg.Hang/2)))
	defer patience.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for waiting := true; waiting && !s.complete(need); {
		news := s.news
		s.mu.Unlock()
		select {
		case <-news:
		case <-patience.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		case <-s.ctx.Done():
			waiting = false
		}
		s.mu.Lock()
	}
	if s.ctx.Err() != nil {
		return nil, errors.New("the GPU source is closed")
	}
	if len(s.units) == 0 && s.node.err != nil {
		return nil, s.node.err
	}
	if len(s.units) == 0 && s.node.life.phase != ready {
		return nil, errors.New("NVML is still being initialised")
	}
	devices := make([]Device, 0, len(s.units))
	for _, u := range s.units {
		if u.device.Name != "" { // a GPU that was never read has nothing to be published
			devices = append(devices, u.device)
		}
	}
	if len(need) == 0 { // otherwise not every GPU may have been read
		s.topology.learn(devices)
	}
	return facts{
		driver: s.node.DriverVersion, cuda: s.node.CUDAVersion,
		cliques: s.topology.cliques(devices), host: s.host, reason: s.reason,
	}.gpus(devices), nil
}

// reason is why a GPU or instance must not be used.
func (s *Source) reason(uuid string) string {
	if reason := s.machine.Reason(uuid); reason != "" {
		return reason
	}
	u := s.unit(uuid)
	switch {
	case u == nil:
	case u.late != "":
		return u.late
	case !u.settled:
		return "the GPU has not been read since the plugin started"
	}
	return ""
}

// Samples reads the load of the GPUs. A GPU that does not answer soon is left out.
func (s *Source) Samples(ctx context.Context) (map[string]deviceplugin.Sample, error) {
	s.start()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	s.mu.Lock()
	units := slices.Clone(s.units)
	s.mu.Unlock()
	out := map[string]deviceplugin.Sample{}
	for _, u := range units {
		u.readSoon()
	}
	for _, u := range units {
		for uuid, load := range s.loadSince(ctx, u, begin) {
			out[uuid] = sample(load)
		}
	}
	return out, nil
}

// Watch calls changed when something is known that may differ from what was known before.
func (s *Source) Watch(ctx context.Context, changed func()) {
	s.set(changed)
	<-ctx.Done()
	s.set(nil)
}

func (s *Source) set(changed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

// touch is called with mu held after something was learned: it keeps what is known of a GPU (nil for
// all), and passes the news on.
func (s *Source) touch(about *unit) {
	for _, u := range s.units {
		if about == nil || u == about {
			s.keep(u)
		}
	}
	close(s.news)
	s.news = make(chan struct{})
	if s.changed != nil {
		s.changed()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// complete says whether there is something to say of the GPUs of need, or of every GPU. That NVML is late for
// a GPU is enough for a list, but a reservation waits for what the first reading says.
func (s *Source) complete(need []string) bool {
	unsettled := func(u *unit) bool { return u == nil || !u.settled && (u.late == "" || len(need) > 0) }
	if len(need) > 0 && !slices.ContainsFunc(need, func(uuid string) bool { return unsettled(s.unit(uuid)) }) {
		return true
	}
	return (s.node.err != nil || s.node.listed) && !slices.ContainsFunc(s.units, unsettled)
}

// keep writes down what is known of a GPU.
func (s *Source) keep(u *unit) {
	k := kept{Boot: s.host.boot(), Driver: s.host.driverLoad(), Device: u.device.static(), Health: map[string]health.Saved{}}
	if k.Device.Name == "" {
		return
	}
	for _, id := range u.device.ids() {
		k.Health[id] = s.machine.Save(id)
	}
	err := s.store.save(k)
	s.say(&u.keepSaid, err, "cannot keep the faults of a GPU: a restart of the plugin will forget them", "gpu", u.device.UUID, "directory", s.cfg.Dir)
	s.metrics.keeps.Set(boolean(!slices.ContainsFunc(s.units, func(u *unit) bool { return u.keepSaid != "" })))
}

// say logs an error once, until it is another one or none.
func (s *Source) say(said *string, err error, text string, args ...any) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	if now != *said && now != "" {
		s.log.Warn(text, append(args, "error", now)...)
	}
	*said = now
}

// unit is the unit of a GPU, also by the UUID of one of its MIG instances.
func (s *Source) unit(uuid string) *unit {
	for _, u := range s.units {
		if u.device.UUID == uuid || slices.ContainsFunc(u.device.Instances, func(in Instance) bool { return in.UUID == uuid }) {
			return u
		}
	}
	return nil
}

// event takes in what the driver reported to a worker of the node.
func (s *Source) event(by *process, e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.XID == 0 {
		by.waited, by.eventsErr = true, nil
		if e.Err != "" {
			by.eventsErr = errors.New(e.Err)
		}
		if s.node.proc == nil || by == s.node.proc {
			s.eventsWork(by.eventsErr)
		}
		return
	}
	// While a worker is replaced both workers report every event.
	now := time.Now()
	if before, ok := s.recent[e]; ok && before.by != by && !isClosed(before.by.gone) && now.Sub(before.at) < 2*time.Second {
		return
	}
	for key, h := range s.recent {
		if now.Sub(h.at) > time.Minute {
			delete(s.recent, key)
		}
	}
	s.recent[e] = heard{by, now}
	matters := false
	if e.GPU == "" { // the driver does not say whose it is
		for _, u := range s.units {
			matters = s.xid(u.device, e) || matters
		}
	} else if u := s.unit(e.GPU); u != nil {
		matters = s.xid(u.device, e)
	} else { // it was faster than the GPU's name
		matters = s.xid(Device{UUID: e.GPU}, e)
	}
	// A program that fails over and over must not make the plugin look over
	// and over.
	if matters {
		s.touch(nil)
		for _, u := range s.units {
			if e.GPU == "" || e.GPU == u.device.UUID {
				u.readSoon()
			}
		}
	}
}

// xid judges an XID of a GPU and says whether it can change anything. What needs
// no reset and is one MIG instance's stays that instance's.
func (s *Source) xid(d Device, e Event) bool {
	if slices.Contains(s.cfg.Ignored, d.UUID) {
		return false
	}
	target := d.UUID
	for _, in := range d.Instances {
		if in.GI == e.GI && in.CI == e.CI && s.cfg.Health.Policy[e.XID].Action != health.UntilReset {
			target = in.UUID
		}
	}
	rule := s.machine.XID(target, e.XID, s.cfg.Clock())
	s.metrics.xids.WithLabelValues(d.UUID, fmt.Sprint(e.XID), rule.Action.String()).Inc()
	level := hclog.Warn
	if rule.Action == health.Ignore {
		level = hclog.Info
	}
	s.log.Log(level, "XID", "gpu", target, "xid", e.XID, "meaning", rule.Meaning, "action", rule.Action.String())
	return rule.Action != health.Ignore
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
