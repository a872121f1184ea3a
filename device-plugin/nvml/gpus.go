package nvml

import (
	"math"

	deviceplugin "remuda/device-plugin"
)

// facts are what GPUs are made of beside the devices themselves.
type facts struct {
	driver, cuda string
	cliques      map[string]string
	host         host
	// reason says why a GPU or instance must not be used.
	reason func(uuid string) string
}

// gpus lays devices out as what the plugin publishes: a GPU that is split into
// MIG instances is published as those, and as nothing while it has none.
func (f facts) gpus(devices []Device) []deviceplugin.GPU {
	var out []deviceplugin.GPU
	for _, d := range devices {
		g := deviceplugin.GPU{
			UUID:              d.UUID,
			Model:             d.Name,
			Clique:            f.cliques[d.UUID],
			MemoryMiB:         mib(d.MemoryBytes),
			ComputeCapability: capability(d.CCMajor, d.CCMinor),
			Architecture:      d.Architecture,
			DriverVersion:     f.driver,
			CUDAVersion:       f.cuda,
			PowerLimitWatts:   int64(math.Round(float64(d.PowerLimitMilliwatts) / 1000)),
			BAR1MiB:           mib(d.BAR1Bytes),
			PCIBandwidthMBps:  bandwidth(d.PCIeGeneration, d.PCIeWidth),
			DisplayState:      onOff(d.Display),
			PersistenceMode:   onOff(d.Persistence),
			CoreClockMHz:      int64(d.CoreClockMHz),
			MemoryClockMHz:    int64(d.MemoryClockMHz),
			PCIBusID:          d.PCIBusID,
			NUMANode:          f.host.numaNode(d.PCIBusID),
			DeviceNodes:       gpuNode(d.Minor),
			Unhealthy:         f.reason(d.UUID),
		}
		if !d.MIG {
			out = append(out, g)
			continue
		}
		for _, in := range d.Instances {
			part := g
			part.UUID, part.Parent, part.MIGProfile = in.UUID, d.UUID, in.Profile
			part.Model = d.Name + " MIG " + in.Profile
			part.MemoryMiB = mib(in.MemoryBytes)
			part.Clique = ""         // instances have no NVLink
			part.PowerLimitWatts = 0 // is shared with the other instances
			part.DeviceNodes = f.host.instanceNodes(d.Minor, in)
			if part.Unhealthy == "" {
				part.Unhealthy = f.reason(in.UUID)
			}
			out = append(out, part)
		}
	}
	return out
}

func mib(bytes uint64) int64 { return int64(bytes >> 20) }

// capability is a compute capability as a number: 12 and 0 are 12, 8 and 6 are
// 8.6. There never was a minor number above 9.
func capability(major, minor int) float64 {
	return math.Round(float64(major)*10+float64(minor)) / 10
}

// bandwidth is that of a PCIe link in MB/s. A lane of generation 3 has 985 MB/s, each generation doubles
// it; NVIDIA's own plugin takes 1024, and so constraints of jobs go by that.
func bandwidth(generation, width int) int64 {
	if generation < 1 || generation > 10 || width < 1 || width > 64 {
		return 0
	}
	return int64(width) << (7 + generation)
}

// onOff is a state as NVIDIA's own plugin writes it; empty where it is unknown.
func onOff(v *bool) string {
	switch {
	case v == nil:
		return ""
	case *v:
		return "1"
	}
	return "0"
}

// sample puts a load into the units of the plugin's statistics.
func sample(l Load) deviceplugin.Sample {
	s := deviceplugin.Sample{
		UtilizationPercent:       number(l.UtilizationPercent, 1),
		MemoryUtilizationPercent: number(l.MemoryUtilizationPercent, 1),
		EncoderPercent:           number(l.EncoderPercent, 1),
		DecoderPercent:           number(l.DecoderPercent, 1),
		TemperatureCelsius:       number(l.TemperatureCelsius, 1),
		CoreClockMHz:             number(l.CoreClockMHz, 1),
		MemoryClockMHz:           number(l.MemoryClockMHz, 1),
		MemoryUsedMiB:            number(l.MemoryUsedBytes, 1<<20),
		MemoryFreeMiB:            number(l.MemoryFreeBytes, 1<<20),
		BAR1UsedMiB:              number(l.BAR1UsedBytes, 1<<20),
		ECCErrorsL1:              number(l.CorrectedL1, 1),
		ECCErrorsL2:              number(l.CorrectedL2, 1),
		ECCErrorsMemory:          number(l.CorrectedMemory, 1),
	}
	if l.PowerMilliwatts != nil {
		n := int64(math.Round(float64(*l.PowerMilliwatts) / 1000))
		s.PowerWatts = &n
	}
	return s
}

func number(v *uint64, unit uint64) *int64 {
	if v == nil {
		return nil
	}
	n := int64(*v / unit)
	return &n
}
