package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/device-plugin/ledger"
)

// metricsRetry is how long an address that is taken is left alone. A plugin
// that Nomad replaces may hold it for a moment.
const metricsRetry = 5 * time.Second

// scrapeTimeout bounds what a scrape asks the GPUs: below the 10 s after which
// Prometheus gives up, so that the rest is still seen while a driver hangs.
const scrapeTimeout = 2 * time.Second

// serveMetrics serves /metrics until ctx ends. An address that cannot be had is
// logged and tried again: it is no reason to give up the GPUs.
func (p *Plugin) serveMetrics(ctx context.Context, settings Settings, source Source) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.reservations, &collector{p: p})
	if c, ok := source.(prometheus.Collector); ok {
		registry.MustRegister(c)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: metricsLog{p}}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	for ctx.Err() == nil {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", settings.Metrics)
		if err == nil {
			p.log.Info("serving metrics", "address", listener.Addr().String())
			if err = server.Serve(listener); errors.Is(err, http.ErrServerClosed) {
				return
			}
		}
		if ctx.Err() == nil {
			p.log.Warn("cannot serve metrics", "address", settings.Metrics, "error", err, "next_try", metricsRetry)
		}
		select {
		case <-time.After(metricsRetry):
		case <-ctx.Done():
		}
	}
}

// metricsLog passes what promhttp complains of to the plugin's log.
type metricsLog struct{ p *Plugin }

func (l metricsLog) Println(v ...any) { l.p.log.Warn("metrics", "error", fmt.Sprint(v...)) }

func newReservations() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "remuda_device_reservations_total",
		Help: "Reservations that Nomad requested, by outcome."}, []string{"outcome"})
}

func outcome(err error) string {
	if err != nil {
		return "refused"
	}
	return "granted"
}

// A metric's description.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("remuda_device_"+name, help, labels, nil)
}

var (
	descReadable = describe("readable", "1 if the last read of the GPUs succeeded.")
	descInfo     = describe("info", "Attributes of a GPU or MIG instance; always 1.", "gpu", "model", "group", "parent", "mig_profile",
		"pci_bus_id", "driver_version", "cuda_version", "simulated")
	descHealthy     = describe("healthy", "1 if a GPU is offered to tasks.", "gpu")
	descUnhealthy   = describe("unhealthy_info", "Why a GPU is not offered to tasks; always 1, and absent for a healthy GPU.", "gpu", "reason")
	descMemoryFree  = describe("memory_free_bytes", "Memory that programs can still have on a GPU.", "gpu")
	descBAR1Used    = describe("bar1_used_bytes", "Memory in use of what is mapped through PCIe.", "gpu")
	descEncoder     = describe("encoder_utilization_ratio", "Share of the last sample period during which a GPU's video encoders were busy.", "gpu")
	descDecoder     = describe("decoder_utilization_ratio", "Share of the last sample period during which a GPU's video decoders were busy.", "gpu")
	descSeats       = describe("seats", "Seats that a GPU offers.", "gpu")
	descMemory      = describe("memory_bytes", "Size of a GPU's memory.", "gpu")
	descPowerLimit  = describe("power_limit_watts", "A GPU's power limit.", "gpu")
	descMemoryUsed  = describe("memory_used_bytes", "Memory in use on a GPU.", "gpu")
	descUtilization = describe("utilization_ratio", "Share of the last sample period during which a GPU was busy.", "gpu")
	descMemoryBusy  = describe("memory_utilization_ratio", "Share of the last sample period during which a GPU's memory was read or written.", "gpu")
	descPower       = describe("power_watts", "A GPU's power draw.", "gpu")
	descTemperature = describe("temperature_celsius", "A GPU's temperature.", "gpu")
	descCoreClock   = describe("core_clock_hertz", "A GPU's present core clock.", "gpu")
	descMemoryClock = describe("memory_clock_hertz", "A GPU's present memory clock.", "gpu")

	descGMSUp          = describe("gms_up", "Whether the GPU memory service's socket answers.", "gpu", "tag")
	descGMSCommitted   = describe("gms_committed", "Whether the GPU memory service holds a committed layout.", "gpu", "tag")
	descGMSWriters     = describe("gms_writers", "Sessions of the GPU memory service that write.", "gpu", "tag")
	descGMSReaders     = describe("gms_readers", "Sessions of the GPU memory service that read.", "gpu", "tag")
	descGMSWaiting     = describe("gms_waiting_writers", "Writers that are waiting for the GPU memory service's lock.", "gpu", "tag")
	descGMSAllocations = describe("gms_allocations", "Allocations of the GPU memory service's layout.", "gpu", "tag")
)

// collector reads the plugin's state at each scrape. It declares no metrics
// beforehand, because which there are depends on the GPUs.
type collector struct{ p *Plugin }

// Describe sends nothing: the collector is unchecked.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	scaled := func(d *prometheus.Desc, v *int64, scale float64, gpu string) {
		if v != nil {
			gauge(d, float64(*v)*scale, gpu)
		}
	}
	now, err := c.p.measure(ctx)
	gauge(descReadable, flag(!c.p.faulty()))
	if err != nil {
		c.p.log.Debug("no GPU samples for a scrape", "error", err)
	}
	for _, g := range now.inv.gpus {
		gauge(descInfo, 1, g.UUID, g.Model, GroupName(g.Model, g.Clique), g.Parent, g.MIGProfile, g.PCIBusID,
			g.DriverVersion, g.CUDAVersion, fmt.Sprint(g.Simulated))
		gauge(descHealthy, flag(g.Unhealthy == ""), g.UUID)
		if g.Unhealthy != "" {
			gauge(descUnhealthy, 1, g.UUID, g.Unhealthy)
		}
		gauge(descSeats, float64(g.Seats), g.UUID)
		gauge(descMemory, float64(g.MemoryMiB)*(1<<20), g.UUID)
		if g.PowerLimitWatts > 0 {
			gauge(descPowerLimit, float64(g.PowerLimitWatts), g.UUID)
		}
		s := now.samples[g.UUID]
		scaled(descMemoryUsed, s.MemoryUsedMiB, 1<<20, g.UUID)
		scaled(descMemoryFree, s.MemoryFreeMiB, 1<<20, g.UUID)
		scaled(descBAR1Used, s.BAR1UsedMiB, 1<<20, g.UUID)
		scaled(descEncoder, s.EncoderPercent, 0.01, g.UUID)
		scaled(descDecoder, s.DecoderPercent, 0.01, g.UUID)
		scaled(descUtilization, s.UtilizationPercent, 0.01, g.UUID)
		scaled(descMemoryBusy, s.MemoryUtilizationPercent, 0.01, g.UUID)
		scaled(descPower, s.PowerWatts, 1, g.UUID)
		scaled(descTemperature, s.TemperatureCelsius, 1, g.UUID)
		scaled(descCoreClock, s.CoreClockMHz, 1e6, g.UUID)
		scaled(descMemoryClock, s.MemoryClockMHz, 1e6, g.UUID)
		for _, l := range now.ledger[g.UUID] {
			gauge(descGMSUp, flag(l.Err == ""), l.GPU, l.Tag)
			if l.Err != "" {
				continue
			}
			gauge(descGMSCommitted, flag(l.Committed), l.GPU, l.Tag)
			gauge(descGMSWriters, flag(l.Writer), l.GPU, l.Tag)
			gauge(descGMSReaders, float64(l.Readers), l.GPU, l.Tag)
			gauge(descGMSWaiting, float64(l.Waiting), l.GPU, l.Tag)
			gauge(descGMSAllocations, float64(l.Allocations), l.GPU, l.Tag)
		}
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// measurement is what statistics and metrics are made of.
type measurement struct {
	inv     inventory
	samples map[string]Sample
	ledger  map[string][]ledger.State // by GPU
}

// measure reads the load of the GPUs and the ledger of the GPU memory service,
// side by side. Its error is that of the GPUs; what else there is comes with it.
func (p *Plugin) measure(ctx context.Context) (measurement, error) {
	p.mu.Lock()
	source, inv, dir := p.source, p.seen, p.settings.GMSSocketDir
	p.mu.Unlock()
	m := measurement{inv: inv, ledger: map[string][]ledger.State{}}
	asked := make(chan []ledger.State, 1)
	go func() {
		var states []ledger.State
		if dir != "" {
			var err error
			if states, err = ledger.Read(ctx, dir); err != nil {
				p.log.Debug("cannot read the GMS sockets", "error", err)
			}
		}
		asked <- states
	}()
	samples, err := source.Samples(ctx)
	for _, state := range <-asked {
		m.ledger[state.GPU] = append(m.ledger[state.GPU], state)
	}
	if err != nil {
		return m, fmt.Errorf("sample GPUs: %w", err)
	}
	m.samples = samples
	return m, nil
}
