package deviceplugin

import (
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"remuda/device-plugin/ledger"
)

// Names of the statistics of a device. They are the ones of NVIDIA's own
// plugin, which Nomad's UI and people's dashboards know.
const (
	StatMemory      = "Memory state"
	StatUtilization = "GPU utilization"
	StatPower       = "Power usage"
	StatTemperature = "Temperature"
	StatMemoryBusy  = "Memory utilization"
	StatBAR1        = "BAR1 buffer state"
	StatEncoder     = "Encoder utilization"
	StatDecoder     = "Decoder utilization"
	StatECCL1       = "ECC L1 errors"
	StatECCL2       = "ECC L2 errors"
	StatECCMemory   = "ECC memory errors"
	// StatCoreClock and StatMemoryClock are this plugin's own.
	StatCoreClock   = "Core clock"
	StatMemoryClock = "Memory clock"
	// StatGMS holds, nested by tag, what the GPU memory service has on the
	// seat's GPU. It is absent where there is no socket for the GPU.
	StatGMS = "GMS"
	// StatSimulated is true on simulated GPUs and absent on real ones.
	StatSimulated = "Simulated"
)

// stats lays samples out as Nomad's device statistics. Every seat of a GPU
// shows the whole GPU's load, because the seats share it and the hardware does
// not split it. The summary is the memory in use. GPUs without a sample are
// left out.
func (m measurement) stats(at time.Time) []*device.DeviceGroupStats {
	byName := map[string]*device.DeviceGroupStats{}
	out := []*device.DeviceGroupStats{}
	for _, g := range m.inv.gpus {
		sample, ok := m.samples[g.UUID]
		if !ok {
			continue
		}
		name := GroupName(g.Model, g.Clique)
		group := byName[name]
		if group == nil {
			group = &device.DeviceGroupStats{
				Vendor:        Vendor,
				Type:          Type,
				Name:          name,
				InstanceStats: map[string]*device.DeviceStats{},
			}
			byName[name] = group
			out = append(out, group)
		}
		for i := range g.Seats {
			group.InstanceStats[Seat{GPU: g.UUID, Index: i}.String()] = seatStats(g, sample, m.ledger[g.UUID], at)
		}
	}
	return out
}

func seatStats(g GPU, s Sample, gms []ledger.State, at time.Time) *device.DeviceStats {
	memory := stat(s.MemoryUsedMiB, g.MemoryMiB, "MiB", "Memory in use on the whole GPU / its memory")
	attrs := map[string]*structs.StatValue{
		StatMemory: memory,
		StatUtilization: stat(s.UtilizationPercent, 0, "%",
			"Share of the last sample period during which the GPU was busy"),
		StatPower:       stat(s.PowerWatts, g.PowerLimitWatts, "W", "Power draw / power limit"),
		StatTemperature: stat(s.TemperatureCelsius, 0, "C", "Temperature of the GPU"),
		StatMemoryBusy: stat(s.MemoryUtilizationPercent, 0, "%",
			"Share of the last sample period during which memory was read or written"),
		StatBAR1: stat(s.BAR1UsedMiB, g.BAR1MiB, "MiB", "Memory mapped through PCIe in use / its size"),
		StatEncoder: stat(s.EncoderPercent, 0, "%",
			"Share of the last sample period during which the video encoders were busy"),
		StatDecoder: stat(s.DecoderPercent, 0, "%",
			"Share of the last sample period during which the video decoders were busy"),
		StatECCL1:       stat(s.ECCErrorsL1, 0, "#", "Corrected errors of the L1 caches since the last reset"),
		StatECCL2:       stat(s.ECCErrorsL2, 0, "#", "Corrected errors of the L2 cache since the last reset"),
		StatECCMemory:   stat(s.ECCErrorsMemory, 0, "#", "Corrected errors of the memory since the last reset"),
		StatCoreClock:   stat(s.CoreClockMHz, g.CoreClockMHz, "MHz", "Core clock now / highest"),
		StatMemoryClock: stat(s.MemoryClockMHz, g.MemoryClockMHz, "MHz", "Memory clock now / highest"),
	}
	if g.Simulated {
		yes := true
		attrs[StatSimulated] = &structs.StatValue{BoolVal: &yes, Desc: "The GPU is simulated"}
	}
	return &device.DeviceStats{
		Summary:   memory,
		Stats:     &structs.StatObject{Attributes: attrs, Nested: gmsStats(gms)},
		Timestamp: at,
	}
}

// gmsStats lays the ledger of one GPU out, nil where there is none.
func gmsStats(states []ledger.State) map[string]*structs.StatObject {
	if len(states) == 0 {
		return nil
	}
	text := func(v, desc string) *structs.StatValue { return &structs.StatValue{StringVal: &v, Desc: desc} }
	count := func(v uint64, desc string) *structs.StatValue {
		n := int64(min(v, 1<<62))
		return &structs.StatValue{IntNumeratorVal: &n, Desc: desc}
	}
	truth := func(v bool, desc string) *structs.StatValue { return &structs.StatValue{BoolVal: &v, Desc: desc} }
	byTag := map[string]*structs.StatObject{}
	for _, s := range states {
		if s.Err != "" {
			byTag[s.Tag] = &structs.StatObject{Attributes: map[string]*structs.StatValue{"Error": text(s.Err, "Why no state is known")}}
			continue
		}
		byTag[s.Tag] = &structs.StatObject{Attributes: map[string]*structs.StatValue{
			"Lock":            text(s.Lock, "State of the layout's lock"),
			"Committed":       truth(s.Committed, "Whether the layout can be read"),
			"Writer":          truth(s.Writer, "Whether a session writes"),
			"Readers":         count(s.Readers, "Sessions that read"),
			"Waiting writers": count(s.Waiting, "Writers that wait"),
			"Allocations":     count(s.Allocations, "Allocations of the layout"),
		}}
	}
	return map[string]*structs.StatObject{StatGMS: {Nested: byTag}}
}

// stat is a value that may be unknown, out of a maximum where there is one.
func stat(v *int64, of int64, unit, desc string) *structs.StatValue {
	out := &structs.StatValue{Unit: unit, Desc: desc}
	if v == nil {
		unknown := "N/A"
		out.StringVal = &unknown
		return out
	}
	n := *v
	out.IntNumeratorVal = &n
	if of > 0 {
		out.IntDenominatorVal = &of
	}
	return out
}
