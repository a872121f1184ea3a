// Package deviceplugin is the Nomad device plugin of remuda: it publishes the
// seats of every GPU as Nomad devices, hands them to tasks, and streams their
// health and load.
//
// It guarantees that a passing fault costs no device: Nomad drops a plugin for
// good after one error in its fingerprint stream, so the stream never carries
// one. GPUs that cannot be read are reported unhealthy, with the reason, until
// they can be read again. A reservation is refused, never bent: what Nomad
// asks for is known, healthy and asked for once, or the task does not start.
//
// Where GPUs come from is behind Source. Fingerprint, reservation and
// statistics are pure functions over an inventory of what a Source listed;
// Plugin is the thin face that Nomad talks to.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/internal/version"
)

// Name is the plugin's name and the name that its file must have in Nomad's
// plugin_dir.
const Name = "remuda-device"

// sourceTimeout bounds one call of a Source. A driver that hangs is a fault of
// its GPUs, not of the node.
const sourceTimeout = 10 * time.Second

// A reservation looks up to reserveTries times at GPUs that cannot be read, as
// long as that is told quickly: a driver that hangs must not hold up every task
// of the node, one after the other.
const (
	reserveTries = 4
	reserveRetry = 500 * time.Millisecond
)

// Config is what a Plugin needs.
type Config struct {
	// Logger gets one line for each decision. Required.
	Logger hclog.Logger
	// Open turns settings into a Source. Its error joins one error for each
	// bad field; it must not start anything. Required.
	Open func(Settings, hclog.Logger) (Source, error)
}

// Plugin is the device plugin. It does nothing until Nomad has configured it
// with SetConfig. It is safe for concurrent use.
type Plugin struct {
	log  hclog.Logger
	open func(Settings, hclog.Logger) (Source, error)
	// reservations counts them by outcome.
	reservations *prometheus.CounterVec

	// look serialises looks at the source, so that an older answer never
	// overwrites a newer one.
	look sync.Mutex

	// mu guards what follows; it is never held across a call of the source.
	mu       sync.Mutex
	settings Settings
	source   Source    // nil until SetConfig has succeeded
	known    inventory // what the last look that succeeded found
	seen     inventory // what is published: known, or all of it unhealthy
	fault    string    // why the last look failed, empty if it succeeded
}

var _ device.DevicePlugin = (*Plugin)(nil)

// New makes a Plugin.
func New(cfg Config) (*Plugin, error) {
	var errs []error
	if cfg.Logger == nil {
		errs = append(errs, errors.New("device plugin: Logger must be set"))
	}
	if cfg.Open == nil {
		errs = append(errs, errors.New("device plugin: Open must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Plugin{log: cfg.Logger.Named(Name), open: cfg.Open, reservations: newReservations()}, nil
}

// PluginInfo tells Nomad what this plugin is.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{device.ApiVersion010},
		PluginVersion:     version.String(),
		Name:              Name,
	}, nil
}

// ConfigSchema is the schema of the plugin's config block.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return configSpec, nil }

// SetConfig checks and takes the configuration. Its error names every bad
// field at once; Nomad then refuses to start.
func (p *Plugin) SetConfig(c *base.Config) error {
	settings, err := decodeSettings(c.PluginConfig)
	source, openErr := p.open(settings, p.log)
	if err := errors.Join(err, openErr); err != nil {
		return fmt.Errorf("plugin %q config: %s", Name, oneLine(err))
	}
	p.mu.Lock()
	before := p.source
	p.settings, p.source, p.fault = settings, source, ""
	p.known, p.seen = inventory{}, inventory{}
	p.mu.Unlock()
	if c, ok := before.(io.Closer); ok {
		if err := c.Close(); err != nil {
			p.log.Warn("cannot close the GPU source of the previous configuration", "error", err)
		}
	}
	return nil
}

// errNotConfigured is what a Nomad that skipped SetConfig would see.
var errNotConfigured = errors.New("the plugin is not configured: call SetConfig first")

// Fingerprint streams the device groups: once at the start, and again whenever
// a GPU, its health or an attribute changes. The channel closes when ctx ends
// and at no other time.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	settings, source, err := p.configured()
	if err != nil {
		return nil, err
	}
	out := make(chan *device.FingerprintResponse)
	go func() {
		defer close(out)
		var beside sync.WaitGroup
		defer beside.Wait()
		changed := make(chan struct{}, 1)
		if w, ok := source.(Watcher); ok {
			beside.Go(func() {
				w.Watch(ctx, func() {
					select {
					case changed <- struct{}{}:
					default: // a look is due already
					}
				})
			})
		}
		if settings.Metrics != "" {
			beside.Go(func() { p.serveMetrics(ctx, settings, source) })
		}
		p.fingerprint(ctx, settings, changed, out)
	}()
	return out, nil
}

func (p *Plugin) configured() (Settings, Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.source == nil {
		return Settings{}, nil, errNotConfigured
	}
	return p.settings, p.source, nil
}

func (p *Plugin) fingerprint(ctx context.Context, settings Settings, changed <-chan struct{}, out chan<- *device.FingerprintResponse) {
	tick := time.NewTicker(settings.FingerprintPeriod)
	defer tick.Stop()
	var last []*device.DeviceGroup
	for first := true; ; first = false {
		inv := p.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		groups := inv.groups(settings.GMSSocketDir != "")
		if first || !reflect.DeepEqual(groups, last) {
			p.log.Info("publishing devices", "gpus", len(inv.gpus), "groups", len(groups), "first", first)
			if len(groups) == 0 && !p.faulty() {
				p.log.Warn("this node has no GPUs to publish: check the driver with \"remuda device doctor\", and ignored_gpu_ids; or configure a simulate block")
			}
			select {
			case out <- device.NewFingerprint(groups...):
			case <-ctx.Done():
				return
			}
			last = groups
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// refresh looks at the source and returns what is there now. Where the source
// fails it returns what was there before, all of it unhealthy. A look that was
// cut short by ctx changes nothing.
func (p *Plugin) refresh(ctx context.Context) inventory {
	p.look.Lock()
	defer p.look.Unlock()
	p.mu.Lock()
	source, settings, known, before, faultBefore := p.source, p.settings, p.known, p.seen, p.fault
	p.mu.Unlock()

	looking, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	gpus, err := source.GPUs(looking)
	if ctx.Err() != nil {
		return before
	}
	var now inventory
	var fault string
	if err != nil {
		fault = "the GPUs cannot be read: " + oneLine(err)
		now = known.allUnhealthy(fault)
		if fault != faultBefore {
			p.log.Error("cannot read the GPUs: the known ones stay published as unhealthy", "error", err,
				"known", len(known.gpus), "next_try", settings.FingerprintPeriod)
		}
	} else {
		var problems []error
		now, problems = newInventory(gpus, settings)
		for _, problem := range problems {
			p.log.Warn("invalid response of the GPU source", "error", problem)
		}
		known = now
		for _, c := range changes(before, now) {
			p.log.Info(c.what, "gpu", c.gpu.UUID, "model", c.gpu.Model, "seats", c.gpu.Seats,
				"pci_bus_id", c.gpu.PCIBusID, "reason", c.reason)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.seen, p.fault = known, now, fault
	return now
}

// faulty tells whether the GPUs could not be read the last time.
func (p *Plugin) faulty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault != ""
}

// reservable takes a fresh look at the GPUs. A look that fails is repeated a few
// times, because Nomad does not repeat a refused reservation: it fails the task.
func (p *Plugin) reservable() (inv inventory, settings Settings, fault string) {
	begin := time.Now()
	for try := 1; ; try++ {
		inv = p.refresh(context.Background())
		p.mu.Lock()
		settings, fault = p.settings, p.fault
		p.mu.Unlock()
		if fault == "" || try == reserveTries || time.Since(begin) >= sourceTimeout {
			return inv, settings, fault
		}
		time.Sleep(reserveRetry)
	}
}

// Reserve hands seats to a task. It takes a fresh look at the GPUs first, so
// that a GPU that broke a moment ago gets no new task, and so that a plugin
// that Nomad had to restart knows its GPUs at once.
func (p *Plugin) Reserve(ids []string) (*device.ContainerReservation, error) {
	if _, _, err := p.configured(); err != nil {
		return nil, err
	}
	inv, settings, fault := p.reservable()
	res, err := inv.reserve(ids, handoverOf(settings))
	p.reservations.WithLabelValues(outcome(err)).Inc()
	if err != nil && fault != "" {
		err = fmt.Errorf("%w (%s)", err, fault)
	}
	if err != nil {
		p.log.Warn("reservation rejected", "ids", ids, "error", err)
		return nil, err
	}
	p.log.Info("reserved", "seats", res.Envs[EnvSeats], "gpus", res.Envs[EnvGPUs])
	return res, nil
}

// Stats streams the load of every seat's GPU, once at the start and then every
// interval. A sample that fails is logged and left out; the stream goes on and
// ends with ctx.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *device.StatsResponse, error) {
	if _, _, err := p.configured(); err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = time.Second
	}
	out := make(chan *device.StatsResponse)
	go func() {
		defer close(out)
		p.stats(ctx, interval, out)
	}()
	return out, nil
}

func (p *Plugin) stats(ctx context.Context, interval time.Duration, out chan<- *device.StatsResponse) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	failing := ""
	for {
		groups, err := p.sample(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failing = ""
			select {
			case out <- &device.StatsResponse{Groups: groups}:
			case <-ctx.Done():
				return
			}
		} else if msg := err.Error(); msg != failing {
			failing = msg
			p.log.Warn("cannot sample the GPUs", "error", err, "next_try", interval)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Plugin) sample(ctx context.Context) ([]*device.DeviceGroupStats, error) {
	sampling, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	m, err := p.measure(sampling)
	if err != nil {
		return nil, err
	}
	return m.stats(time.Now()), nil
}
