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
	"strings"
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

// sourceTimeout bounds one call of a Source.
const sourceTimeout = 10 * time.Second

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

	// look is held during a look at the source, so that an older answer never
	// overwrites a newer one. It guards problems, which is what was logged last
	// of the source's answers.
	look     sync.Mutex
	problems string

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
		fault = unreadable(err)
		now = known.allUnhealthy(fault)
		if fault != faultBefore {
			p.log.Error("cannot read the GPUs: the known ones stay published as unhealthy", "error", err,
				"known", len(known.gpus), "next_try", settings.FingerprintPeriod)
		}
	} else {
		var problems []error
		now, problems = newInventory(gpus, settings)
		if text := fmt.Sprint(problems); text != p.problems {
			p.problems = text
			for _, problem := range problems {
				p.log.Warn("invalid response of the GPU source", "error", problem)
			}
		}
		known = now
		for _, c := range changes(before, now) {
			level, why := hclog.Info, []any{}
			if c.reason != "" {
				level, why = hclog.Warn, []any{"reason", c.reason}
			}
			if c.was != "" {
				why = []any{"was", c.was}
			}
			p.log.Log(level, c.what, append([]any{"gpu", c.gpu.UUID, "model", c.gpu.Model, "seats", c.gpu.Seats,
				"pci_bus_id", c.gpu.PCIBusID}, why...)...)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.seen, p.fault = known, now, fault
	return now
}

// unreadable is the reason against every GPU while the source fails.
func unreadable(err error) string { return "the GPUs cannot be read: " + oneLine(err) }

// faulty tells whether the GPUs could not be read the last time.
func (p *Plugin) faulty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault != ""
}

// Reserve hands seats to a task. It decides from what the source knows at this
// moment, so that a GPU that broke gets no new task and no task waits for a GPU
// that hangs; a plugin that Nomad had to restart learns the task's GPUs first.
// Reservations do not wait for each other, nor for a look.
func (p *Plugin) Reserve(ids []string) (*device.ContainerReservation, error) {
	settings, source, err := p.configured()
	if err != nil {
		return nil, err
	}
	inv, fault := p.present(settings, source, ids)
	res, err := inv.reserve(ids, handoverOf(settings))
	p.reservations.WithLabelValues(outcome(err)).Inc()
	if err != nil && fault != "" && !strings.Contains(err.Error(), fault) {
		err = fmt.Errorf("%w (%s)", err, fault)
	}
	if err != nil {
		p.log.Warn("reservation rejected", "ids", ids, "error", err)
		return nil, err
	}
	p.log.Info("reserved", "seats", res.Envs[EnvSeats], "gpus", res.Envs[EnvGPUs])
	return res, nil
}

// present is what the source knows at this moment of the GPUs of seats, and why
// it could not be asked, empty if it could.
func (p *Plugin) present(settings Settings, source Source, ids []string) (inventory, string) {
	var uuids []string
	for _, id := range ids {
		if seat, err := ParseSeat(id); err == nil {
			uuids = append(uuids, seat.GPU)
		}
	}
	if len(uuids) == 0 {
		return inventory{}, ""
	}
	asking, cancel := context.WithTimeout(context.Background(), sourceTimeout)
	defer cancel()
	gpus, err := source.GPUs(asking, uuids...)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.known.allUnhealthy(unreadable(err)), unreadable(err)
	}
	inv, _ := newInventory(gpus, settings)
	return inv, ""
}

// Stats streams the load of every seat's GPU, once at the start and then every
// interval. GPUs that cannot be sampled are left out: Nomad shows what came last,
// so an old value must not stay there. The stream ends with ctx.
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
		msg := ""
		if err != nil {
			msg = err.Error()
		}
		if msg != "" && msg != failing {
			p.log.Warn("cannot sample the GPUs", "error", err, "next_try", interval)
		}
		failing = msg
		select {
		case out <- &device.StatsResponse{Groups: groups}:
		case <-ctx.Done():
			return
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
