package worker

import (
	"errors"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// Load reads the load of every GPU and MIG instance that answers, by UUID.
func (r *Reader) Load() (map[string]nvml.Load, error) {
	out := map[string]nvml.Load{}
	for _, h := range r.devices {
		load, ret := r.load(h.dev)
		if err := fault("nvmlDeviceGetMemoryInfo", ret); errors.Is(err, errReinit) {
			return nil, err
		} else if err != nil {
			continue
		}
		out[h.static.UUID] = load
		mig := false
		r.try("nvmlDeviceGetMigMode", func() nv.Return {
			current, _, ret := h.dev.GetMigMode()
			mig = ret == nv.SUCCESS && current == nv.DEVICE_MIG_ENABLE
			return ret
		})
		if !mig {
			continue
		}
		count := 0
		r.try("nvmlDeviceGetMaxMigDeviceCount", func() (ret nv.Return) {
			count, ret = h.dev.GetMaxMigDeviceCount()
			return ret
		})
		for i := range count {
			part, ret := r.instance(h.dev, i)
			if ret != nv.SUCCESS {
				continue
			}
			uuid := ""
			r.try("nvmlDeviceGetUUID", func() (ret nv.Return) { uuid, ret = part.GetUUID(); return ret })
			used := uint64(0)
			if r.enter("nvmlDeviceGetMemoryInfo", func() nv.Return {
				mem, ret := part.GetMemoryInfo()
				used = mem.Used
				return ret
			}) == nv.SUCCESS && uuid != "" {
				// What else is known belongs to the GPU as a whole.
				out[uuid] = nvml.Load{MemoryUsedBytes: &used, TemperatureCelsius: load.TemperatureCelsius,
					CoreClockMHz: load.CoreClockMHz, MemoryClockMHz: load.MemoryClockMHz}
			}
		}
	}
	return out, nil
}

// load reads one GPU. Its return code is that of the one reading that every
// GPU must be able to give.
func (r *Reader) load(dev nv.Device) (nvml.Load, nv.Return) {
	var l nvml.Load
	ret := r.enter("nvmlDeviceGetMemoryInfo", func() nv.Return {
		mem, ret := dev.GetMemoryInfo()
		if ret == nv.SUCCESS {
			l.MemoryUsedBytes = &mem.Used
		}
		return ret
	})
	if ret != nv.SUCCESS && !absent(ret) {
		return l, ret
	}
	// The second version tells what programs use from what the driver keeps.
	r.try("nvmlDeviceGetMemoryInfo_v2", func() nv.Return {
		mem, ret := dev.GetMemoryInfo_v2()
		if ret == nv.SUCCESS {
			l.MemoryUsedBytes = &mem.Used
		}
		return ret
	})
	r.try("nvmlDeviceGetUtilizationRates", func() nv.Return {
		u, ret := dev.GetUtilizationRates()
		if ret == nv.SUCCESS {
			l.UtilizationPercent, l.MemoryUtilizationPercent = &u.Gpu, &u.Memory
		}
		return ret
	})
	one := func(symbol string, into **uint32, read func() (uint32, nv.Return)) {
		r.try(symbol, func() nv.Return {
			v, ret := read()
			if ret == nv.SUCCESS {
				*into = &v
			}
			return ret
		})
	}
	one("nvmlDeviceGetPowerUsage", &l.PowerMilliwatts, dev.GetPowerUsage)
	one("nvmlDeviceGetTemperature", &l.TemperatureCelsius, func() (uint32, nv.Return) { return dev.GetTemperature(nv.TEMPERATURE_GPU) })
	one("nvmlDeviceGetClockInfo", &l.CoreClockMHz, func() (uint32, nv.Return) { return dev.GetClockInfo(nv.CLOCK_SM) })
	one("nvmlDeviceGetClockInfo", &l.MemoryClockMHz, func() (uint32, nv.Return) { return dev.GetClockInfo(nv.CLOCK_MEM) })
	return l, nv.SUCCESS
}
