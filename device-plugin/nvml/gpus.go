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

// GPUs is what a source without a history publishes of a look. root is where
// /sys and /proc are.
func (l Look) GPUs(root string) []deviceplugin.GPU {
	var t topology
	t.learn(l.Devices)
	return facts{
		driver: l.DriverVersion, cuda: l.CUDAVersion, cliques: t.cliques(l.Devices), host: host{root: root},
		reason: func(string) string { return "" },
	}.gpus(l.Devices)
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

// sample puts a load into the units of the plugin's statistics.
func sample(l Load) deviceplugin.Sample {
	s := deviceplugin.Sample{
		UtilizationPercent:       number(l.UtilizationPercent),
		MemoryUtilizationPercent: number(l.MemoryUtilizationPercent),
		TemperatureCelsius:       number(l.TemperatureCelsius),
		CoreClockMHz:             number(l.CoreClockMHz),
		MemoryClockMHz:           number(l.MemoryClockMHz),
	}
	if l.MemoryUsedBytes != nil {
		n := mib(*l.MemoryUsedBytes)
		s.MemoryUsedMiB = &n
	}
	if l.PowerMilliwatts != nil {
		n := int64(math.Round(float64(*l.PowerMilliwatts) / 1000))
		s.PowerWatts = &n
	}
	return s
}

func number(v *uint32) *int64 {
	if v == nil {
		return nil
	}
	n := int64(*v)
	return &n
}
