package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/nvml"
	"remuda/internal/bytesize"
)

// memoryApart is how far NVML and CUDA may be apart about a GPU's memory, as a share
// of it: the driver keeps some for itself that CUDA does not count.
const memoryApart = 0.05

// checkAgreement compares what the device plugin reads from NVML with the CUDA driver.
func (r *run) checkAgreement(ctx context.Context) {
	const name, what = "1 device plugin", "the plugin's fingerprint and statistics agree with the CUDA driver"
	if r.cfg.backend == backendHost {
		r.skip(name, what, "the host backend has no GPU")
		return
	}
	_ = r.step(ctx, name, what, time.Minute, func(ctx context.Context) (seen, error) {
		args := []string{"-probe"}
		if r.cfg.nvmlLibrary != "" {
			args = append(args, "-nvml-library", r.cfg.nvmlLibrary)
		}
		raw, err := exec.CommandContext(ctx, r.program("remuda-device"), args...).Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return seen{}, fmt.Errorf("remuda-device -probe: %w: %s", err, exit.Stderr)
		}
		var report nvml.Report
		if err == nil {
			err = json.Unmarshal(raw, &report)
		}
		if err != nil {
			return seen{}, fmt.Errorf("remuda-device -probe: %w", err)
		}
		r.report.Driver, r.report.CUDA = report.Look.DriverVersion, report.Look.CUDAVersion
		devices, err := cuda.Devices(r.cfg.cudaLibrary)
		if err != nil {
			return seen{}, err
		}
		used, err := r.memoryInUse()
		if err != nil {
			return seen{}, err
		}
		return agree(report, devices, r.gpu, used)
	})
}

// agree compares all GPUs that CUDA shows, and the memory in use on one of them. NVML
// may know of more: CUDA_VISIBLE_DEVICES hides GPUs from CUDA alone.
func agree(report nvml.Report, devices []cuda.Device, gpu string, used uint64) (seen, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	apart := func(a, b, of uint64) bool {
		return of == 0 || float64(max(a, b)-min(a, b)) > memoryApart*float64(of)
	}
	found := map[string]nvml.Device{}
	for _, d := range report.Look.Devices {
		found[d.UUID] = d
		for _, i := range d.Instances { // with MIG, CUDA shows an instance
			found[i.UUID] = nvml.Device{UUID: i.UUID, MemoryBytes: i.MemoryBytes}
		}
	}
	var s seen
	for _, d := range devices {
		n, ok := found[d.UUID]
		switch {
		case !ok:
			bad("CUDA shows %s, which NVML does not", d.UUID)
			continue
		case n.Lost || n.Err != "":
			bad("%s is unhealthy: lost %t, error %q", d.UUID, n.Lost, n.Err)
		}
		if apart(n.MemoryBytes, d.Memory, d.Memory) {
			bad("%s has %s by NVML and %s by CUDA", d.UUID, bytesize.Text(int64(n.MemoryBytes)), bytesize.Text(int64(d.Memory)))
		}
		if n.Name != "" && n.Name != d.Name {
			bad("%s is %q by NVML and %q by CUDA", d.UUID, n.Name, d.Name)
		}
		if d.UUID != gpu {
			continue
		}
		load := report.Load[d.UUID].MemoryUsedBytes
		if load == nil {
			bad("NVML does not report how much memory of %s is in use", d.UUID)
			continue
		}
		if apart(*load, used, d.Memory) {
			bad("%s are in use on %s by NVML and %s by CUDA", bytesize.Text(int64(*load)), d.UUID, bytesize.Text(int64(used)))
		}
		s = note("%d GPUs; %s by NVML, %s by CUDA, %s and %s in use", len(report.Look.Devices),
			bytesize.Text(int64(n.MemoryBytes)), bytesize.Text(int64(d.Memory)), bytesize.Text(int64(*load)), bytesize.Text(int64(used)))
	}
	return s, errors.Join(errs...)
}
