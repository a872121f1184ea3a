package worker

import (
	"encoding/binary"
	"math"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// loads reads the load of a GPU and of its MIG instances, by UUID.
func (r *Reader) loads(dev nv.Device, d nvml.Device) map[string]nvml.Load {
	whole := r.load(dev)
	out := map[string]nvml.Load{d.UUID: whole}
	for i := range d.Instances {
		part, ret := r.instance(dev, d.Instances[i].Number)
		if ret != nv.SUCCESS {
			continue
		}
		if r.enter("nvmlDeviceGetMemoryInfo", func() nv.Return {
			mem, ret := part.GetMemoryInfo()
			if ret == nv.SUCCESS {
				// What else is known belongs to the GPU as a whole.
				out[d.Instances[i].UUID] = nvml.Load{MemoryUsedBytes: &mem.Used, MemoryFreeBytes: &mem.Free,
					TemperatureCelsius: whole.TemperatureCelsius, CoreClockMHz: whole.CoreClockMHz, MemoryClockMHz: whole.MemoryClockMHz}
			}
			return ret
		}) != nv.SUCCESS {
			continue // it was destroyed meanwhile
		}
	}
	return out
}

// load reads one GPU.
func (r *Reader) load(dev nv.Device) nvml.Load {
	var l nvml.Load
	_ = r.enter("nvmlDeviceGetMemoryInfo", func() nv.Return {
		mem, ret := dev.GetMemoryInfo()
		if ret == nv.SUCCESS {
			l.MemoryUsedBytes, l.MemoryFreeBytes = &mem.Used, &mem.Free
		}
		return ret
	})
	// The second version tells what programs use from what the driver keeps.
	r.try("nvmlDeviceGetMemoryInfo_v2", func() nv.Return {
		mem, ret := dev.GetMemoryInfo_v2()
		if ret == nv.SUCCESS {
			l.MemoryUsedBytes, l.MemoryFreeBytes = &mem.Used, &mem.Free
		}
		return ret
	})
	r.try("nvmlDeviceGetBAR1MemoryInfo", func() nv.Return {
		m, ret := dev.GetBAR1MemoryInfo()
		if ret == nv.SUCCESS {
			l.BAR1UsedBytes = &m.Bar1Used
		}
		return ret
	})
	r.try("nvmlDeviceGetUtilizationRates", func() nv.Return {
		u, ret := dev.GetUtilizationRates()
		if ret == nv.SUCCESS {
			l.UtilizationPercent, l.MemoryUtilizationPercent = wide(u.Gpu), wide(u.Memory)
		}
		return ret
	})
	r.try("nvmlDeviceGetDetailedEccErrors", func() nv.Return {
		e, ret := dev.GetDetailedEccErrors(nv.MEMORY_ERROR_TYPE_CORRECTED, nv.VOLATILE_ECC)
		if ret == nv.SUCCESS {
			l.CorrectedL1, l.CorrectedL2, l.CorrectedMemory = &e.L1Cache, &e.L2Cache, &e.DeviceMemory
		}
		return ret
	})
	one := func(symbol string, into **uint64, read func() (uint64, nv.Return)) {
		r.try(symbol, func() nv.Return {
			v, ret := read()
			if ret == nv.SUCCESS {
				*into = &v
			}
			return ret
		})
	}
	narrow := func(read func() (uint32, nv.Return)) func() (uint64, nv.Return) {
		return func() (uint64, nv.Return) { v, ret := read(); return uint64(v), ret }
	}
	one("nvmlDeviceGetPowerUsage", &l.PowerMilliwatts, narrow(dev.GetPowerUsage))
	one("nvmlDeviceGetTemperature", &l.TemperatureCelsius, narrow(func() (uint32, nv.Return) { return dev.GetTemperature(nv.TEMPERATURE_GPU) }))
	one("nvmlDeviceGetClockInfo", &l.CoreClockMHz, narrow(func() (uint32, nv.Return) { return dev.GetClockInfo(nv.CLOCK_SM) }))
	one("nvmlDeviceGetClockInfo", &l.MemoryClockMHz, narrow(func() (uint32, nv.Return) { return dev.GetClockInfo(nv.CLOCK_MEM) }))
	one("nvmlDeviceGetEncoderUtilization", &l.EncoderPercent, narrow(func() (uint32, nv.Return) { v, _, ret := dev.GetEncoderUtilization(); return v, ret }))
	one("nvmlDeviceGetDecoderUtilization", &l.DecoderPercent, narrow(func() (uint32, nv.Return) { v, _, ret := dev.GetDecoderUtilization(); return v, ret }))
	one("nvmlDeviceGetTotalEnergyConsumption", &l.EnergyMillijoules, dev.GetTotalEnergyConsumption)
	one("nvmlDeviceGetPcieReplayCounter", &l.PCIeReplays, func() (uint64, nv.Return) { v, ret := dev.GetPcieReplayCounter(); return uint64(max(v, 0)), ret })
	one("nvmlDeviceGetCurrentClocksThrottleReasons", &l.Throttle, dev.GetCurrentClocksThrottleReasons)
	r.fields(dev, map[field]**uint64{
		{nv.FI_DEV_MEMORY_TEMP, 0}:                      &l.MemoryCelsius,
		{nv.FI_DEV_PCIE_COUNT_TX_BYTES, 0}:              &l.PCIeSentBytes,
		{nv.FI_DEV_PCIE_COUNT_RX_BYTES, 0}:              &l.PCIeReceivedBytes,
		{nv.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks}: &l.NVLinkSentKiB,
		{nv.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks}: &l.NVLinkReceivedKiB,
	})
	return l
}

func wide(v uint32) *uint64 { n := uint64(v); return &n }

// field is a value that NVML has no function for, of a part of the GPU.
type field struct{ id, scope uint32 }

// allLinks asks for the sum over all NVLinks.
const allLinks = math.MaxUint32

// fields reads fields that are whole numbers; those that the GPU lacks stay nil.
func (r *Reader) fields(dev nv.Device, into map[field]**uint64) {
	values := make([]nv.FieldValue, 0, len(into))
	for f := range into {
		values = append(values, nv.FieldValue{FieldId: f.id, ScopeId: f.scope})
	}
	r.try("nvmlDeviceGetFieldValues", func() nv.Return {
		ret := dev.GetFieldValues(values)
		for _, v := range values {
			if ret != nv.SUCCESS || nv.Return(v.NvmlReturn) != nv.SUCCESS {
				continue
			}
			var n uint64
			switch nv.ValueType(v.ValueType) {
			case nv.VALUE_TYPE_UNSIGNED_INT:
				n = uint64(binary.NativeEndian.Uint32(v.Value[:]))
			case nv.VALUE_TYPE_UNSIGNED_LONG, nv.VALUE_TYPE_UNSIGNED_LONG_LONG:
				n = binary.NativeEndian.Uint64(v.Value[:])
			default:
				continue
			}
			*into[field{v.FieldId, v.ScopeId}] = &n
		}
		return ret
	})
}
