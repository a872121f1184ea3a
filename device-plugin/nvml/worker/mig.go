package worker

import (
	"fmt"
	"math"
	"strings"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// instances reads a GPU's MIG instances.
func (r *Reader) instances(dev nv.Device, d *nvml.Device) []nvml.Instance {
	var out []nvml.Instance
	count := 0
	r.try("nvmlDeviceGetMaxMigDeviceCount", func() (ret nv.Return) {
		count, ret = dev.GetMaxMigDeviceCount()
		return ret
	})
	for i := range count {
		mig := r.instance(dev, i)
		if mig == nil {
			continue
		}
		in := nvml.Instance{GI: -1, CI: -1}
		name := ""
		r.try("nvmlDeviceGetUUID", func() (ret nv.Return) { in.UUID, ret = mig.GetUUID(); return ret })
		r.try("nvmlDeviceGetName", func() (ret nv.Return) { name, ret = mig.GetName(); return ret })
		r.try("nvmlDeviceGetGpuInstanceId", func() (ret nv.Return) { in.GI, ret = mig.GetGpuInstanceId(); return ret })
		r.try("nvmlDeviceGetComputeInstanceId", func() (ret nv.Return) { in.CI, ret = mig.GetComputeInstanceId(); return ret })
		var attrs nv.DeviceAttributes
		r.try("nvmlDeviceGetAttributes_v2", func() (ret nv.Return) { attrs, ret = mig.GetAttributes(); return ret })
		in.MemoryBytes = attrs.MemorySizeMB << 20
		if _, profile, ok := strings.Cut(name, " MIG "); ok {
			in.Profile = profile
		} else {
			in.Profile = profileName(attrs, d.MemoryBytes)
		}
		if in.UUID != "" {
			out = append(out, in)
		}
	}
	return out
}

func (r *Reader) instance(dev nv.Device, i int) nv.Device {
	var mig nv.Device
	if r.call("nvmlDeviceGetMigDeviceHandleByIndex", func() (ret nv.Return) {
		mig, ret = dev.GetMigDeviceHandleByIndex(i)
		return ret
	}) != nv.SUCCESS {
		return nil // there are gaps between the instances
	}
	return mig
}

// profileName names a MIG profile as NVIDIA's tools do: the slices of the GPU
// and the memory in GB, rounded to eighths of the GPU, as "1g.10gb"; a compute
// instance that is smaller than its GPU instance has its slices in front.
func profileName(a nv.DeviceAttributes, total uint64) string {
	if a.GpuInstanceSliceCount == 0 || total == 0 {
		return "unknown"
	}
	const gib = 1 << 30
	eighths := math.Ceil(float64(a.MemorySizeMB<<20)/float64(total)*8) / 8
	name := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, int(math.Round(eighths*float64((total+gib-1)/gib))))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount && a.ComputeInstanceSliceCount > 0 {
		name = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, name)
	}
	return name
}
