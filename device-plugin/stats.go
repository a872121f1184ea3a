package deviceplugin

import (
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Names of the statistics of a device. They are the ones of NVIDIA's own
// plugin, which Nomad's UI and people's dashboards know.
const (
	StatMemory      = "Memory state"
	StatUtilization = "GPU utilization"
	StatPower       = "Power usage"
	StatTemperature = "Temperature"
	// StatSimulated is true on simulated GPUs and absent on real ones.
	StatSimulated = "Simulated"
)

// stats lays samples out as Nomad's device statistics. Every seat of a GPU
// shows the whole GPU's load, because the seats share it and the hardware does
// not split it. The summary is the memory in use. GPUs without a sample are
// left out.
func (inv inventory) stats(samples map[string]Sample, at time.Time) []*device.DeviceGroupStats {
	byName := map[string]*device.DeviceGroupStats{}
	out := []*device.DeviceGroupStats{}
	for _, g := range inv.gpus {
		sample, ok := samples[g.UUID]
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
			group.InstanceStats[Seat{GPU: g.UUID, Index: i}.String()] = seatStats(g, sample, at)
		}
	}
	return out
}

func seatStats(g GPU, s Sample, at time.Time) *device.DeviceStats {
	memory := stat(s.MemoryUsedMiB, g.MemoryMiB, "MiB", "Memory in use on the whole GPU / its memory")
	attrs := map[string]*structs.StatValue{
		StatMemory: memory,
		StatUtilization: stat(s.UtilizationPercent, 0, "%",
			"Share of the last sample period during which the GPU was busy"),
		StatPower:       stat(s.PowerWatts, g.PowerLimitWatts, "W", "Power draw / power limit"),
		StatTemperature: stat(s.TemperatureCelsius, 0, "C", "Temperature of the GPU"),
	}
	if g.Simulated {
		yes := true
		attrs[StatSimulated] = &structs.StatValue{BoolVal: &yes, Desc: "The GPU is simulated"}
	}
	return &device.DeviceStats{
		Summary:   memory,
		Stats:     &structs.StatObject{Attributes: attrs},
		Timestamp: at,
	}
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
