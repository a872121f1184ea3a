package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/nvml"
)

func TestAgree(t *testing.T) {
	const uuid, used = "GPU-1", uint64(10 << 30)
	for name, tc := range map[string]struct {
		change func(d *nvml.Device, used *uint64)
		want   string // error, none where empty
	}{
		"the same":              {func(*nvml.Device, *uint64) {}, ""},
		"the driver's own part": {func(d *nvml.Device, used *uint64) { d.MemoryBytes += 2 << 30; *used += 1 << 30 }, ""},
		"another size":          {func(d *nvml.Device, _ *uint64) { d.MemoryBytes = 40 << 30 }, "GPU-1 has 40 GiB by NVML and 80 GiB by CUDA"},
		"no size":               {func(d *nvml.Device, _ *uint64) { d.MemoryBytes = 0 }, "GPU-1 has 0 B by NVML"},
		"another name":          {func(d *nvml.Device, _ *uint64) { d.Name = "L4" }, `GPU-1 is "L4" by NVML and "H100" by CUDA`},
		"another use":           {func(_ *nvml.Device, used *uint64) { *used = 20 << 30 }, "20 GiB are in use on GPU-1 by NVML and 10 GiB by CUDA"},
		"a lost GPU":            {func(d *nvml.Device, _ *uint64) { d.Lost = true }, "GPU-1 is unhealthy: lost true"},
		"another GPU":           {func(d *nvml.Device, _ *uint64) { d.UUID = "GPU-2" }, "CUDA shows GPU-1, which NVML does not"},
		"an instance": {func(d *nvml.Device, _ *uint64) {
			*d = nvml.Device{UUID: "GPU-2", Instances: []nvml.Instance{{UUID: uuid, MemoryBytes: 80 << 30}}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, load := nvml.Device{UUID: uuid, Name: "H100", MemoryBytes: 80 << 30}, used
			tc.change(&d, &load)
			report := nvml.Report{Look: nvml.Look{Devices: []nvml.Device{d, {UUID: "GPU-3"}}}, Load: map[string]nvml.Load{uuid: {MemoryUsedBytes: &load}}}
			s, err := agree(report, []cuda.Device{{UUID: uuid, Name: "H100", Memory: 80 << 30}}, uuid, used)
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			require.Contains(t, s.text, "2 GPUs; ")
		})
	}
	_, err := agree(nvml.Report{Look: nvml.Look{Devices: []nvml.Device{{UUID: uuid, MemoryBytes: 1}}}}, []cuda.Device{{UUID: uuid, Memory: 1}}, uuid, 0)
	require.EqualError(t, err, "NVML does not report how much memory of GPU-1 is in use")
}

// TestNoNVML: the check fails with the linker's reason.
func TestNoNVML(t *testing.T) {
	r := &run{cfg: config{bin: bin(t), backend: backendCUDA, nvmlLibrary: "/nonexistent/libnvidia-ml.so.1"}, report: &Report{}, log: io.Discard}
	r.checkAgreement(t.Context())
	require.Equal(t, "1 device plugin fail\n", results(*r.report))
	require.Contains(t, r.report.Rows[0].Seen, "/nonexistent/libnvidia-ml.so.1: cannot open shared object file")
}
