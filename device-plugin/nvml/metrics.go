package nvml

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those that belong to NVML; what the plugin has of any source it exports itself.
type metrics struct {
	up, events, nameless, keeps prometheus.Gauge
	starts                      prometheus.Counter
	xids, faults                *prometheus.CounterVec
	watched                     *prometheus.GaugeVec
}

func newMetrics() metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "remuda_device_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "remuda_device_" + name, Help: help}, labels)
	}
	return metrics{
		up:       gauge("nvml_up", "1 if NVML can be used on this node."),
		events:   gauge("nvml_events_up", "1 if the plugin can wait for XIDs."),
		nameless: gauge("nvml_unnamed", "GPUs that the driver lists and whose UUID cannot be read."),
		keeps:    gauge("faults_kept", "1 if the last write of every GPU's faults to health_dir succeeded."),
		starts: prometheus.NewCounter(prometheus.CounterOpts{Name: "remuda_device_nvml_starts_total",
			Help: "Processes started to initialise NVML, for the node or one of its GPUs."}),
		faults: counters("nvml_faults_total", "Failures of NVML for a GPU, by cause: hang, slow, crash, error.", "gpu", "cause"),
		xids:   counters("xid_total", "XIDs that the driver reported, by the action taken.", "gpu", "xid", "action"),
		watched: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "remuda_device_xid_events",
			Help: "1 if the driver reports the GPU's XIDs to the plugin."}, []string{"gpu"}),
	}
}

func (m metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.up, m.events, m.nameless, m.keeps, m.starts, m.faults, m.xids, m.watched}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("remuda_device_"+name, help, append([]string{"gpu"}, labels...), nil)
}

// reading is a value of the last reading.
type reading struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	scale float64
	of    func(*unit) *uint64
}

const kib = 1 << 10

// readings are those that DCGM's exporter has as well, in base units.
var readings = []reading{
	{describe("uncorrectable_errors", "Uncorrectable memory errors since the GPU's last reset."), prometheus.GaugeValue, 1,
		func(u *unit) *uint64 { return u.device.Uncorrected }},
	{describe("remapped_rows_correctable", "Memory rows replaced because of correctable errors."), prometheus.GaugeValue, 1,
		func(u *unit) *uint64 { return u.device.RemappedCorrectable }},
	{describe("remapped_rows_uncorrectable", "Memory rows replaced because of uncorrectable errors."), prometheus.GaugeValue, 1,
		func(u *unit) *uint64 { return u.device.RemappedUncorrectable }},
	{describe("energy_joules_total", "Energy that the GPU has used since the driver was loaded."), prometheus.CounterValue, 1e-3,
		func(u *unit) *uint64 { return u.own().EnergyMillijoules }},
	{describe("memory_temperature_celsius", "Temperature of the GPU's memory."), prometheus.GaugeValue, 1,
		func(u *unit) *uint64 { return u.own().MemoryCelsius }},
	{describe("pcie_replays_total", "Packets that were sent again over PCIe."), prometheus.CounterValue, 1,
		func(u *unit) *uint64 { return u.own().PCIeReplays }},
	{describe("pcie_sent_bytes_total", "Bytes that the GPU has sent over PCIe."), prometheus.CounterValue, 1,
		func(u *unit) *uint64 { return u.own().PCIeSentBytes }},
	{describe("pcie_received_bytes_total", "Bytes that the GPU has received over PCIe."), prometheus.CounterValue, 1,
		func(u *unit) *uint64 { return u.own().PCIeReceivedBytes }},
	{describe("nvlink_sent_bytes_total", "Bytes that the GPU has sent over all NVLinks."), prometheus.CounterValue, kib,
		func(u *unit) *uint64 { return u.own().NVLinkSentKiB }},
	{describe("nvlink_received_bytes_total", "Bytes that the GPU has received over all NVLinks."), prometheus.CounterValue, kib,
		func(u *unit) *uint64 { return u.own().NVLinkReceivedKiB }},
}

// own is the load of the GPU as a whole.
func (u *unit) own() Load { return u.load[u.device.UUID] }

var (
	descPending   = describe("remap_pending", "1 if a bad memory row will be replaced at the GPU's next reset.")
	descFailed    = describe("remap_failed", "1 if the GPU has no spare memory rows left.")
	descSRAM      = describe("sram_threshold_exceeded", "1 if the GPU's SRAM has had more uncorrectable errors than NVIDIA's field diagnostic passes.")
	descSeconds   = describe("reading_seconds", "How long the last reading of a GPU took.")
	descThrottled = describe("clocks_throttled", "1 if a reason keeps the GPU's clocks down.", "reason")
	descCall      = describe("nvml_call_seconds", "How long a call of NVML for a GPU has not returned, from 0.8 s on. It counts as hanging after 5 s.", "call")
	descWorker    = describe("nvml_worker", "1 for the phase of the process that reads the GPU: absent, starting, ready, faulted.", "phase")
)

// longCall is from when on a call is shown, and its GPU given to no task: a busy driver needs some 100 ms, and
// within a second it is to be known which call does not return.
const longCall = 800 * time.Millisecond

// throttles are NVML's reasons for low clocks (nvmlClocksEventReason…), by bit. An idle GPU and clocks
// that were set on purpose are no throttling.
var throttles = []struct {
	bit  uint64
	name string
}{
	{0x4, "power_cap"}, {0x8, "hw_slowdown"}, {0x10, "sync_boost"}, {0x20, "thermal"}, {0x40, "hw_thermal"}, {0x80, "hw_power_brake"},
}

// Describe implements prometheus.Collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.metrics.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{descPending, descFailed, descSRAM, descSeconds, descThrottled, descWorker, descCall} {
		ch <- d
	}
	for _, r := range readings {
		ch <- r.desc
	}
}

// Collect implements prometheus.Collector. What cannot be read at the moment is absent.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.collectors() {
		c.Collect(ch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{u.device.UUID}, labels...)...)
		}
		for p := absent; p <= faulted; p++ {
			send(descWorker, prometheus.GaugeValue, boolean(u.life.phase == p), fmt.Sprint(p))
		}
		if u.proc != nil {
			if call, since := u.proc.call(0); since >= longCall {
				send(descCall, prometheus.GaugeValue, since.Seconds(), call)
			}
		}
		if u.load == nil {
			continue
		}
		send(descSeconds, prometheus.GaugeValue, u.device.Seconds)
		send(descPending, prometheus.GaugeValue, boolean(u.device.RemapPending))
		send(descFailed, prometheus.GaugeValue, boolean(u.device.RemapFailed))
		if u.device.SRAMExceeded != nil {
			send(descSRAM, prometheus.GaugeValue, boolean(*u.device.SRAMExceeded))
		}
		for _, r := range readings {
			if v := r.of(u); v != nil {
				send(r.desc, r.kind, float64(*v)*r.scale)
			}
		}
		if bits := u.own().Throttle; bits != nil {
			for _, t := range throttles {
				send(descThrottled, prometheus.GaugeValue, boolean(*bits&t.bit != 0), t.name)
			}
		}
	}
}
