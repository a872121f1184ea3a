package deviceplugin

import (
	"context"
	"strings"
)

// Source is where GPUs come from: NVIDIA's management library on a real node,
// the simulation on a laptop. Both methods may be called from several
// goroutines at once and must return soon after their context is done.
type Source interface {
	// GPUs lists the GPUs that are present now, the unhealthy ones included, as they are known at this
	// moment: a source that follows its GPUs by itself must not wait for them, except in the first calls,
	// and then only for those of need, or for all if need is empty. An error says that nothing could be learned this time; the plugin then
	// reports the GPUs it knew as unhealthy and asks again a period later.
	GPUs(ctx context.Context, need ...string) ([]GPU, error)
	// Samples reads the present load of the GPUs, by UUID. A GPU that is
	// missing from the map has no statistics this time.
	Samples(ctx context.Context) (map[string]Sample, error)
}

// Watcher is a Source that hears of changes by itself, so that a GPU that
// breaks gets no more work at once and not at the next look.
type Watcher interface {
	// Watch calls changed, which returns at once, whenever the next GPUs may
	// differ from the last. It returns once ctx is done.
	Watch(ctx context.Context, changed func())
}

// GPU is one physical (or simulated) GPU, or one MIG instance of a GPU.
// Everything in it but Unhealthy stays the same until the operator changes it,
// so that two fingerprints of an unchanged node are equal.
type GPU struct {
	// UUID is NVIDIA's name for the GPU, as "GPU-6b5fa173-5fa6-2d38-54fe-d64c1fe4fe10",
	// or for the MIG instance, as "MIG-…".
	UUID string
	// Parent is the UUID of the GPU that a MIG instance is a part of, and
	// MIGProfile its profile, as "1g.10gb". Both are empty for a whole GPU.
	Parent     string
	MIGProfile string
	// Model is the product name as the driver gives it, for example
	// "NVIDIA H100 80GB HBM3".
	Model string
	// Clique labels the set of GPUs of this model that NVLink joins on this
	// node. Leave it empty where all of them are joined or none is, because a
	// clique becomes part of the device group's name (see GroupName). It must
	// be derived from what does not change while GPUs come and go: a group
	// that is renamed loses the seats that running allocations hold.
	Clique string
	// MemoryMiB is the size of the GPU's memory.
	MemoryMiB int64
	// ComputeCapability is CUDA's, for example 9.0; 0 where it is unknown.
	ComputeCapability float64
	// Architecture is the lower-case name of the chip's generation, as "hopper".
	Architecture string
	// DriverVersion and CUDAVersion are the versions of the kernel driver and
	// of the newest CUDA that it supports, as "570.86.15" and "12.8".
	DriverVersion string
	CUDAVersion   string
	// BAR1MiB is the size of the memory that is mapped through PCIe; 0 where unknown.
	BAR1MiB int64
	// PCIBandwidthMBps is the bandwidth of the fastest PCIe link that GPU and slot
	// can have, in MB/s; 0 where unknown.
	PCIBandwidthMBps int64
	// DisplayState and PersistenceMode are "1" and "0": whether a display is
	// connected, and whether the driver stays loaded without programs. Empty where unknown.
	DisplayState    string
	PersistenceMode string
	// PowerLimitWatts is the enforced power limit, not the present draw.
	PowerLimitWatts int64
	// CoreClockMHz and MemoryClockMHz are the highest clocks, not the present ones.
	CoreClockMHz   int64
	MemoryClockMHz int64
	// PCIBusID is the bus ID in any of the forms in use; the plugin publishes
	// it in the form of sysfs. Empty where there is none.
	PCIBusID string
	// NUMANode is the number of the NUMA node that the GPU is attached to, as
	// sysfs writes it; empty where there is none.
	NUMANode string
	// DeviceNodes are the paths of the GPU's own device files, as
	// "/dev/nvidia3", separated by commas.
	DeviceNodes string
	// Seats is how many seats this GPU offers; 0 means the plugin's setting.
	Seats int
	// Simulated marks a GPU that exists in the simulation only. Tasks get no
	// mounts and no device nodes for it.
	Simulated bool
	// Unhealthy is the reason why the GPU must not be used, empty while it is
	// healthy.
	Unhealthy string
}

// Sample is the load of one GPU at one moment. A nil field is one that the
// source could not read.
type Sample struct {
	// MemoryUsedMiB is the memory in use, and MemoryFreeMiB what programs can still have: some belongs
	// to the driver.
	MemoryUsedMiB *int64
	MemoryFreeMiB *int64
	// BAR1UsedMiB is how much of the memory that is mapped through PCIe is in use.
	BAR1UsedMiB *int64
	// EncoderPercent and DecoderPercent are the shares of the last sample period
	// during which the video encoders and decoders were busy.
	EncoderPercent *int64
	DecoderPercent *int64
	// ECCErrorsL1, ECCErrorsL2 and ECCErrorsMemory are corrected errors since the last reset.
	ECCErrorsL1     *int64
	ECCErrorsL2     *int64
	ECCErrorsMemory *int64
	// UtilizationPercent is the share of the last sample period during which
	// the GPU was busy, 0 to 100.
	UtilizationPercent *int64
	// MemoryUtilizationPercent is the share of that period during which the
	// GPU's memory was read or written.
	MemoryUtilizationPercent *int64
	// PowerWatts is the present draw.
	PowerWatts *int64
	// CoreClockMHz and MemoryClockMHz are the clocks at this moment.
	CoreClockMHz   *int64
	MemoryClockMHz *int64
	// TemperatureCelsius is the temperature of the chip.
	TemperatureCelsius *int64
}

// GroupName is the name of the Nomad device group that a GPU of this model and
// NVLink clique belongs to: the model, and for a clique the model followed by
// " (clique <label>)".
//
// Nomad identifies a group by vendor, type and name alone and keeps one of two
// groups that share them (DeviceAccounter in nomad/structs/devices.go), so a
// clique has to be part of the name. The model by itself stays available as
// the attribute "model".
func GroupName(model, clique string) string {
	if model == "" {
		model = "unknown"
	}
	if clique == "" {
		return model
	}
	return model + " (clique " + clique + ")"
}

// SysfsBusID puts a PCI bus ID into the form that sysfs uses and by which
// Nomad matches devices to NUMA nodes: lower case and a domain of four digits,
// as "0000:3b:00.0". NVML gives eight digits, upper case and NUL padding.
func SysfsBusID(id string) string {
	id = strings.ToLower(strings.TrimSpace(strings.TrimRight(id, "\x00")))
	domain, rest, ok := strings.Cut(id, ":")
	if !ok {
		return id
	}
	if !strings.Contains(rest, ":") { // "3b:00.0": the domain was left out
		return "0000:" + id
	}
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + rest
}
