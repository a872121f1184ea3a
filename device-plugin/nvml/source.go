// Package nvml is the source of real GPUs for the device plugin: it reads them
// through NVIDIA's management library and follows their health.
//
// It guarantees that whatever NVML or the driver does costs the plugin nothing
// but an error for that moment. NVML lives in a process of its own (package
// worker), which is started when it is needed, killed when it does not answer
// in time, and started again; this package links nothing of NVIDIA's. A GPU
// that was there once and is not any more is lost and stays published as
// unhealthy; only MIG instances, which people make and unmake, come and go.
//
// One limit is the driver's: while a worker runs it has the GPUs open, and
// `nvidia-smi --gpu-reset` refuses a GPU that is open. To reset a single GPU,
// drain the node and stop Nomad first.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/health"
)

// Config is what a Source needs.
type Config struct {
	// Logger gets one line for each XID and each worker. Required.
	Logger hclog.Logger
	// Command starts a worker. Required.
	Command []string
	// Health judges XIDs and readings. Required.
	Health health.Config
	// Timeout is how long NVML may take for one answer; DefaultTimeout if 0.
	Timeout time.Duration
	// StartTimeout is how long it may take to be initialised and to find the
	// GPUs; DefaultStartTimeout if 0.
	StartTimeout time.Duration
	// Rediscover is how often a worker is replaced while a GPU is lost: a GPU
	// that comes back is found only by an NVML that is initialised anew. It is
	// also the least time between two replacements because GPUs come and go.
	// DefaultRediscover if 0.
	Rediscover time.Duration
	// Root is where /sys and /proc are; "/" if empty.
	Root string
	// Clock is time.Now if nil.
	Clock func() time.Time
}

// Defaults of Config.
const (
	// DefaultTimeout is far above what a loaded driver takes (some 100 ms on a
	// node with eight GPUs), and below the time that the plugin gives a source.
	DefaultTimeout = 5 * time.Second
	// DefaultStartTimeout is for a large node without the persistence daemon,
	// where the driver wakes one GPU after the other, each for seconds.
	DefaultStartTimeout = 2 * time.Minute
	// DefaultRediscover costs a lost GPU's node one short process each time.
	DefaultRediscover = 30 * time.Second
)

// Source is a node's real GPUs. It is safe for concurrent use.
type Source struct {
	cfg  Config
	log  hclog.Logger
	host host

	// turn holds one value while nobody changes what follows.
	turn     chan struct{}
	proc     *process
	usable   bool      // whether proc may be asked
	starting *starting // a start that is under way, nil if none is
	started  time.Time // when the last start began
	listed   string    // which GPUs the driver had when proc was started
	// undead are workers that were killed and are not gone.
	undead []*process
	reload bool // the driver was seen to be gone since the last start
	// announced says that nothing has gone wrong since the log last said that
	// NVML is initialised.
	announced bool

	// mu guards what follows; it is never held across a call of NVML.
	mu       sync.Mutex
	machine  *health.Machine
	topology topology
	driver   string // the version of the last look
	// known are the devices that were ever seen, in the order of their first
	// sight, as they were when they were last read.
	known   []Device
	lost    bool // some device is lost or cannot be named
	unnamed string
	missing string
	changed func() // nil while nobody watches

	up       prometheus.Gauge
	starts   prometheus.Counter
	xids     *prometheus.CounterVec
	ecc      *prometheus.GaugeVec
	pending  *prometheus.GaugeVec
	nameless prometheus.Gauge
}

var (
	_ deviceplugin.Source  = (*Source)(nil)
	_ deviceplugin.Watcher = (*Source)(nil)
	_ prometheus.Collector = (*Source)(nil)
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
	if cfg.Timeout < 0 || cfg.StartTimeout < 0 || cfg.Rediscover < 0 {
		errs = append(errs, errors.New("NVML source: Timeout, StartTimeout and Rediscover must not be negative"))
	}
	machine, err := health.New(cfg.Health)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = DefaultStartTimeout
	}
	if cfg.Rediscover == 0 {
		cfg.Rediscover = DefaultRediscover
	}
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	s := &Source{
		cfg:     cfg,
		log:     cfg.Logger.Named("nvml"),
		host:    host{root: cfg.Root},
		turn:    make(chan struct{}, 1),
		machine: machine,
		up: prometheus.NewGauge(prometheus.GaugeOpts{Name: "remuda_device_nvml_up",
			Help: "1 if NVML responded to the last request."}),
		starts: prometheus.NewCounter(prometheus.CounterOpts{Name: "remuda_device_nvml_starts_total",
			Help: "Processes started to initialise NVML."}),
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "remuda_device_xid_total",
			Help: "XIDs that the driver reported, by the action taken."}, []string{"gpu", "xid", "action"}),
		ecc: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "remuda_device_uncorrectable_errors",
			Help: "Uncorrectable memory errors since the GPU's last reset."}, []string{"gpu"}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "remuda_device_remap_pending",
			Help: "1 if a bad memory row will be replaced at the GPU's next reset."}, []string{"gpu"}),
	}
	s.nameless = prometheus.NewGauge(prometheus.GaugeOpts{Name: "remuda_device_nvml_unnamed",
		Help: "GPUs that the driver lists without a UUID, which are not published."})
	s.turn <- struct{}{}
	return s, nil
}

// GPUs lists the GPUs and MIG instances that are, or were, there.
func (s *Source) GPUs(ctx context.Context) ([]deviceplugin.GPU, error) {
	m, err := s.ask(ctx, OpLook, true)
	if err != nil {
		s.up.Set(0)
		return nil, err
	}
	s.up.Set(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.observe(*m.Look), nil
}

// Samples reads the load of the GPUs.
func (s *Source) Samples(ctx context.Context) (map[string]deviceplugin.Sample, error) {
	m, err := s.ask(ctx, OpLoad, false)
	if err != nil {
		return nil, err
	}
	out := make(map[string]deviceplugin.Sample, len(m.Load))
	for uuid, load := range m.Load {
		out[uuid] = sample(load)
	}
	return out, nil
}

// Watch calls changed when the driver reports something that matters.
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

// observe takes in a look and returns what to publish.
func (s *Source) observe(look Look) []deviceplugin.GPU {
	now := s.cfg.Clock()
	if s.driver != "" && s.driver != look.DriverVersion {
		s.machine.Reloaded()
	}
	s.driver = look.DriverVersion
	s.lost = len(look.Unnamed) > 0
	s.nameless.Set(float64(len(look.Unnamed)))
	seen := map[string]bool{}
	for _, d := range look.Devices {
		seen[d.UUID] = true
		i := s.index(d.UUID)
		first := i < 0
		if first {
			s.known = append(s.known, d)
			i = len(s.known) - 1
			if !d.Events {
				s.log.Warn("the driver reports no XIDs for this GPU: its health depends on its counters only", "gpu", d.UUID)
			}
		}
		if d.Lost || d.Err != "" {
			// A GPU that does not answer cannot say how it is split.
			d.MIG, d.Instances = s.known[i].MIG, s.known[i].Instances
		}
		if d.empty() && (first || !s.known[i].empty()) {
			s.log.Warn("the GPU is in MIG mode without instances: it offers no seats", "gpu", d.UUID)
		}
		s.known[i] = d
	}
	instances := map[string]bool{}
	for i := range s.known {
		d := &s.known[i]
		if !seen[d.UUID] {
			// Lost counts as proof of a reset once it is over, so a GPU is that
			// only if the driver says so, and not because it has no name now.
			d.Lost, d.Err = len(look.Unnamed) == 0 || look.UnnamedLost, ""
			if !d.Lost {
				d.Err = "the driver lists a GPU without a UUID: " + strings.Join(look.Unnamed, "; ")
			}
		}
		s.lost = s.lost || d.Lost
		reading := health.Reading{Lost: d.Lost, Err: d.Err, Uncorrected: d.Uncorrected, RemapFailed: d.RemapFailed, Recovery: d.Recovery}
		s.machine.Observe(d.UUID, reading, now)
		for _, in := range d.Instances {
			instances[in.UUID] = true
			s.machine.Observe(in.UUID, health.Reading{Lost: d.Lost, Err: d.Err}, now)
		}
		if d.Uncorrected != nil {
			s.ecc.WithLabelValues(d.UUID).Set(float64(*d.Uncorrected))
		}
		s.pending.WithLabelValues(d.UUID).Set(boolean(d.RemapPending))
	}
	s.machine.Forget(func(id string) bool { return instances[id] || s.index(id) >= 0 })
	s.topology.learn(s.known)
	s.complain(look)
	return facts{
		driver: look.DriverVersion, cuda: look.CUDAVersion,
		cliques: s.topology.cliques(s.known), host: s.host, reason: s.machine.Reason,
	}.gpus(s.known)
}

// empty says that a device is known to be in MIG mode without instances.
func (d Device) empty() bool { return d.MIG && len(d.Instances) == 0 }

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (s *Source) index(uuid string) int {
	for i, d := range s.known {
		if d.UUID == uuid {
			return i
		}
	}
	return -1
}

// complain logs what NVML cannot do, once for each change.
func (s *Source) complain(look Look) {
	if text := fmt.Sprint(look.Unnamed); text != s.unnamed {
		s.unnamed = text
		if len(look.Unnamed) > 0 {
			s.log.Warn("NVML lists GPUs without a UUID", "gpus", look.Unnamed)
		}
	}
	if text := fmt.Sprint(look.Missing); text != s.missing {
		s.missing = text
		if len(look.Missing) > 0 {
			s.log.Info("NVML lacks functions: the values that they return are unknown", "functions", look.Missing)
		}
	}
}

// event takes in what the driver reported.
func (s *Source) event(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	matters := e.XID == 0
	if !matters {
		switch i := s.index(e.GPU); {
		case e.GPU == "": // the driver does not say whose it is
			for _, d := range s.known {
				matters = s.xid(d, e) || matters
			}
		case i < 0: // it was faster than the first look
			matters = s.xid(Device{UUID: e.GPU}, e)
		default:
			matters = s.xid(s.known[i], e)
		}
	}
	// A program that fails over and over must not make the plugin look over
	// and over.
	if matters && s.changed != nil {
		s.changed()
	}
}

// xid judges an XID of a GPU and says whether it can change anything. What needs
// no reset and is one MIG instance's stays that instance's.
func (s *Source) xid(d Device, e Event) bool {
	target := d.UUID
	for _, in := range d.Instances {
		if in.GI == e.GI && in.CI == e.CI && s.cfg.Health.Policy[e.XID].Action != health.UntilReset {
			target = in.UUID
		}
	}
	rule := s.machine.XID(target, e.XID, s.cfg.Clock())
	s.xids.WithLabelValues(d.UUID, fmt.Sprint(e.XID), rule.Action.String()).Inc()
	level := hclog.Warn
	if rule.Action == health.Ignore {
		level = hclog.Info
	}
	s.log.Log(level, "XID", "gpu", target, "xid", e.XID, "meaning", rule.Meaning, "action", rule.Action.String())
	return rule.Action != health.Ignore
}

// Describe and Collect make the Source a Prometheus collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.collectors() {
		c.Collect(ch)
	}
}

func (s *Source) collectors() []prometheus.Collector {
	return []prometheus.Collector{s.up, s.starts, s.xids, s.ecc, s.pending, s.nameless}
}
