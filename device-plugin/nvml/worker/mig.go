package worker

import (
	"fmt"
	"math"
	"strings"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// instances reads a GPU's MIG instances. Where that fails it returns the
// function that did.
func (r *Reader) instances(dev nv.Device, d *nvml.Device) (string, nv.Return) {
	count := 0
	ret := r.call("nvmlDeviceGetMaxMigDeviceCount", func() (ret nv.Return) {
		count, ret = dev.GetMaxMigDeviceCount()
		return ret
	})
	if ret != nv.SUCCESS && !absent(ret) {
		return "nvmlDeviceGetMaxMigDeviceCount", ret
	}
	for i := range count {
		mig, ret := r.instance(dev, i)
		in, symbol := nvml.Instance{Number: i, GI: -1, CI: -1}, "nvmlDeviceGetMigDeviceHandleByIndex"
		if ret == nv.SUCCESS {
			symbol, ret = r.describe(mig, d.MemoryBytes, &in)
		}
		switch {
		case ret == nv.SUCCESS && in.UUID != "":
			d.Instances = append(d.Instances, in)
		case ret == nv.SUCCESS, absent(ret), ret == nv.ERROR_NOT_FOUND, ret == nv.ERROR_INVALID_ARGUMENT:
			// There are gaps between the instances, and this one may have
			// been destroyed meanwhile.
		default:
			return symbol, ret
		}
	}
	return "", nv.SUCCESS
}

// instance is the handle of a GPU's MIG instance number i.
func (r *Reader) instance(dev nv.Device, i int) (mig nv.Device, ret nv.Return) {
	ret = r.call("nvmlDeviceGetMigDeviceHandleByIndex", func() (ret nv.Return) {
		mig, ret = dev.GetMigDeviceHandleByIndex(i)
		return ret
	})
	return mig, ret
}

// describe reads a MIG instance of a GPU with that much memory. Where that
// fails it returns the function that did.
func (r *Reader) describe(mig nv.Device, total uint64, in *nvml.Instance) (string, nv.Return) {
	var name string
	var attrs nv.DeviceAttributes
	for _, step := range []struct {
		symbol string
		read   func() nv.Return
	}{
		{"nvmlDeviceGetUUID", func() (ret nv.Return) { in.UUID, ret = mig.GetUUID(); return ret }},
		{"nvmlDeviceGetName", func() (ret nv.Return) { name, ret = mig.GetName(); return ret }},
		{"nvmlDeviceGetGpuInstanceId", func() (ret nv.Return) { in.GI, ret = mig.GetGpuInstanceId(); return ret }},
		{"nvmlDeviceGetComputeInstanceId", func() (ret nv.Return) { in.CI, ret = mig.GetComputeInstanceId(); return ret }},
		{"nvmlDeviceGetAttributes_v2", func() (ret nv.Return) { attrs, ret = mig.GetAttributes(); return ret }},
	} {
		if ret := r.call(step.symbol, step.read); ret != nv.SUCCESS && !absent(ret) {
			return step.symbol, ret
		}
	}
	in.MemoryBytes = attrs.MemorySizeMB << 20
	if _, profile, ok := strings.Cut(name, " MIG "); ok {
		in.Profile = profile
	} else {
		in.Profile = profileName(attrs, total)
	}
	return "", nv.SUCCESS
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
