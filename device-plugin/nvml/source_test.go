package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/proclog"
)

func TestFingerprintThroughTheRealLoader(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.name=NVIDIA L4", "gpu1.mem=23034")
	root := t.TempDir()
	dir := filepath.Join(root, "sys/bus/pci/devices/0000:1b:00.0")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "numa_node"), []byte("1\n"), 0o644))
	s := source(t, lib.Path, func(c *nvml.Config) { c.Root = root })
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus, 2)
	i := slices.IndexFunc(gpus, func(g deviceplugin.GPU) bool { return g.UUID == gpu0 })
	require.Equal(t, deviceplugin.GPU{
		UUID: gpu0, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeCapability: 9, Architecture: "hopper",
		DriverVersion: "570.86.15", CUDAVersion: "12.8", PowerLimitWatts: 700, CoreClockMHz: 1980, MemoryClockMHz: 2619,
		PCIBusID: "00000000:1B:00.0", NUMANode: "1", DeviceNodes: "/dev/nvidia0",
		BAR1MiB: 131072, PCIBandwidthMBps: 65536, DisplayState: "0", PersistenceMode: "1",
	}, gpus[i])
	require.Equal(t, "NVIDIA L4", gpus[1-i].Model)
	require.Empty(t, gpus[1-i].NUMANode)

	n := func(v int64) *int64 { return &v }
	require.Equal(t, deviceplugin.Sample{
		MemoryUsedMiB: n(1024), MemoryFreeMiB: n(80535), BAR1UsedMiB: n(10), UtilizationPercent: n(37), MemoryUtilizationPercent: n(21),
		EncoderPercent: n(3), DecoderPercent: n(4), PowerWatts: n(120), TemperatureCelsius: n(41), CoreClockMHz: n(345), MemoryClockMHz: n(2000),
		ECCErrorsL1: n(1), ECCErrorsL2: n(2), ECCErrorsMemory: n(3),
	}, samples(t, s, gpu0, gpu1)[gpu0])
	lib.Set("gpu0.limit=500000")
	until(t, "the power limit to follow the operator", func() bool {
		gpus, err := s.GPUs(t.Context())
		require.NoError(t, err)
		return gpus[i].PowerLimitWatts == 500
	})
}

// The readings that DCGM's exporter has by default, in base units.
func TestMetricsOfReadings(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("gpu0.throttle=0x24", "gpu0.ecc=5", "gpu0.remap=1", "gpu0.sram=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	for name, want := range map[string]float64{
		"uncorrectable_errors": 5, "remap_pending": 1, "remap_failed": 0, "sram_threshold_exceeded": 1, "remapped_rows_correctable": 2, "remapped_rows_uncorrectable": 1,
		"energy_joules_total": 123.456, "memory_temperature_celsius": 55, "pcie_replays_total": 6,
		"pcie_sent_bytes_total": 5e9, "pcie_received_bytes_total": 7000, "nvlink_sent_bytes_total": 1000 << 10, "nvlink_received_bytes_total": 2000 << 10,
	} {
		require.InDelta(t, want, value(t, s, "remuda_device_"+name), 1e-9, name)
	}
	throttled := map[string]float64{}
	for _, m := range series(t, s, "remuda_device_clocks_throttled") {
		throttled[m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{"power_cap": 1, "thermal": 1, "hw_slowdown": 0, "hw_thermal": 0, "hw_power_brake": 0, "sync_boost": 0}, throttled)
	lib.Set("gpu0.lost=1")
	until(t, "the readings to be absent and not old", func() bool { return count(t, s, "remuda_device_energy_joules_total") == 0 })
}

// A GPU that the operator ignores gets no worker and no series.
func TestIgnoredGPU(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Ignored = []string{gpu1} })
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	require.Equal(t, 1, count(t, s, "remuda_device_reading_seconds"))
	require.Len(t, workers(t, lib.Path), 2, "the node's and one GPU's")
}

// Every function but the required ones may be missing: then what it tells is
// unknown, and nothing else happens.
func TestOldLibrary(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t, "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCudaComputeCapability",
		"nvmlDeviceGetArchitecture", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetNvLinkState",
		"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo",
		"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
		"nvmlDeviceGetDisplayMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEncoderUtilization",
		"nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieReplayCounter",
		"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetDetailedEccErrors",
		"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2")
	s := source(t, lib.Path, nil)
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []deviceplugin.GPU{{UUID: gpu0, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559,
		DriverVersion: "570.86.15", PCIBusID: "00000000:1B:00.0"}}, gpus)
	sample := samples(t, s, gpu0)[gpu0]
	require.Nil(t, sample.PowerWatts)
	require.NotNil(t, sample.MemoryUsedMiB)
	require.Zero(t, value(t, s, "remuda_device_xid_events"))
}

func TestWhatCannotBeLoaded(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	require.NoError(t, os.WriteFile(empty, nil, 0o644))
	for _, tc := range []struct {
		name, path string
		want       []string
	}{
		{"no file", "/nonexistent/libnvidia-ml.so.1", []string{"load NVML", "/nonexistent/libnvidia-ml.so.1", "No such file"}},
		{"no library", empty, []string{"load NVML", "file too short"}},
		{"another library", fakenvml.Build(t, "nvmlInit_v2", "nvmlDeviceGetUUID").Path, []string{"lacks nvmlInit_v2, nvmlDeviceGetUUID"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := source(t, tc.path, nil)
			for range 2 {
				_, err := s.GPUs(t.Context())
				for _, want := range tc.want {
					require.ErrorContains(t, err, want)
				}
			}
			samples, err := s.Samples(t.Context())
			require.NoError(t, err)
			require.Empty(t, samples)
			require.Zero(t, value(t, s, "remuda_device_nvml_up"))
		})
	}
}

// A driver that comes and goes. Only one that was really loaded anew has reset a GPU.
func TestFollowsTheDriver(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Hide()
	root := t.TempDir()
	module := filepath.Join(root, "sys/module/nvidia")
	require.NoError(t, os.MkdirAll(module, 0o755))
	s := source(t, lib.Path, func(c *nvml.Config) { c.Root = root })
	_, err := s.GPUs(t.Context())
	require.ErrorContains(t, err, "No such file")
	lib.Set("init=9")
	lib.Show()
	until(t, "the driver to be missed", func() bool { _, err = s.GPUs(t.Context()); return errors.Is(err, nvml.ErrNoDriver) })
	require.Equal(t, 1, strings.Count(err.Error(), "driver"), "%v: said once", err)
	lib.Set("init=")
	until(t, "a GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 1 })
	become(t, s, map[string]string{gpu0: ""})

	sick := func() {
		t.Helper()
		lib.XID(0, 119)
		become(t, s, map[string]string{gpu0: "XID 119"})
	}
	sick()
	for _, away := range []string{"18", "9"} { // exchanged under the workers; not loaded
		want := map[string]string{"18": "different versions", "9": "not loaded"}[away]
		lib.Set("fail="+away, "init="+away)
		become(t, s, map[string]string{gpu0: want})
		require.Contains(t, look(t, s)[gpu0], "XID 119")
		lib.Set("fail=", "init=") // and that was taken back: nothing was loaded anew
		until(t, "the GPU to be read again", func() bool { return !strings.Contains(look(t, s)[gpu0], want) })
		readings(t, s, gpu0)
		require.Contains(t, look(t, s)[gpu0], "XID 119", "no proof of a reset")
	}
	require.NoError(t, os.Rename(module, module+"-gone")) // keeps its number, so that the next one gets another
	require.NoError(t, os.Mkdir(module, 0o755))
	become(t, s, map[string]string{gpu0: ""})
	sick()
	lib.Set("driver=580.1")
	become(t, s, map[string]string{gpu0: ""})
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	require.Equal(t, "580.1", gpus[0].DriverVersion)
}

func TestXIDs(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
	lib.XID(1, 31)
	until(t, "the XID to be counted", func() bool { return count(t, s, "remuda_device_xid_total") == 1 })
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s), "a program's fault")
	lib.Set("gpu1.lost=1")
	lib.XID(1, 79)
	become(t, s, map[string]string{gpu0: "", gpu1: "XID 79: the GPU has fallen off the bus"})

	// The GPU stays off the bus: the driver does not list it any more.
	lib.Set("count=1")
	before := starts(t, s)
	until(t, "NVML to be initialised anew a few times", func() bool { return starts(t, s) > before+3 })
	require.Contains(t, look(t, s)[gpu1], "XID 79")
	lib.Set("count=2", "gpu1.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	// And it is registered for its XIDs again.
	until(t, "an XID of the GPU that is back", func() bool {
		lib.XID(1, 120)
		return strings.Contains(look(t, s)[gpu1], "XID 120")
	})
}

// An XID is published without any reading: here none would ever end.
func TestXIDNeedsNoReading(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	changed := watch(t, s)
	lib.Set("gpu1.hang=*")
	lib.XID(1, 119)
	changed()
	become(t, s, map[string]string{gpu0: "", gpu1: "XID 119"})
	require.NotContains(t, look(t, s)[gpu1], "hangs", "that is noticed after 20 s")
	lib.XID(1, 140)
	until(t, "the next one to be counted", func() bool { return count(t, s, "remuda_device_xid_total") == 2 })
	require.Contains(t, look(t, s)[gpu1], "XID 119", "the first one is the cause")
}

func TestLostWithoutXID(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("gpu0.lost=1")
	become(t, s, map[string]string{gpu0: "lost", gpu1: ""})
	require.NotContains(t, samples(t, s, gpu1), gpu0)
	lib.Set("gpu0.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

func TestCounters(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("gpu0.ecc=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "from before the plugin's time")
	lib.Set("gpu0.ecc=3")
	become(t, s, map[string]string{gpu0: "uncorrectable memory errors"})
	readings(t, s, gpu0)
	require.NotEmpty(t, look(t, s)[gpu0], "no XID explains them, and nothing says that there was a reset")
	lib.Set("gpu0.ecc=")
	become(t, s, map[string]string{gpu0: ""})
	lib.Set("gpu0.recovery=1")
	become(t, s, map[string]string{gpu0: "reset the GPU"})
	lib.Set("gpu0.recovery=0")
	become(t, s, map[string]string{gpu0: ""})
	lib.Set("gpu0.remapfailed=1")
	become(t, s, map[string]string{gpu0: "must be replaced"})
	lib.Set("gpu0.remapfailed=", "gpu0.error=999")
	become(t, s, map[string]string{gpu0: "unknown error"})
	require.Contains(t, look(t, s)[gpu0], "must be replaced", "and the cause stays")
	lib.Set("gpu0.error=")
	become(t, s, map[string]string{gpu0: ""})
}

func TestMIG(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu0.mig=2")
	root := t.TempDir()
	caps := filepath.Join(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi7")
	require.NoError(t, os.MkdirAll(filepath.Join(caps, "ci0"), 0o755))
	for path, minor := range map[string]int{"access": 66, "ci0/access": 67} {
		require.NoError(t, os.WriteFile(filepath.Join(caps, path), fmt.Appendf(nil, "DeviceFileMinor: %d\nDeviceFileMode: 292\n", minor), 0o444))
	}
	s := source(t, lib.Path, func(c *nvml.Config) { c.Root = root })
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus, 3)
	i := slices.IndexFunc(gpus, func(g deviceplugin.GPU) bool { return g.UUID == fakenvml.MIGUUID(0, 0) })
	in := gpus[i]
	require.Equal(t, gpu0, in.Parent)
	require.Equal(t, "1g.10gb", in.MIGProfile)
	require.Equal(t, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", in.Model)
	require.EqualValues(t, 9856, in.MemoryMiB)
	require.Zero(t, in.PowerLimitWatts)
	require.Equal(t, "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67", in.DeviceNodes)
	sample := samples(t, s, in.UUID)[in.UUID]
	require.EqualValues(t, 1024, *sample.MemoryUsedMiB)
	require.Nil(t, sample.UtilizationPercent)

	a, b := fakenvml.MIGUUID(0, 0), fakenvml.MIGUUID(0, 1)
	lib.Set("gpu0.lost=1")
	become(t, s, map[string]string{a: "lost", b: "lost", gpu1: ""}) // the instances share the GPU's fate
	lib.Set("gpu0.lost=", "gpu0.mig=1")
	become(t, s, map[string]string{a: "", gpu1: ""})
	lib.Set("gpu0.mig=0")
	become(t, s, map[string]string{gpu1: ""}) // a split GPU without instances offers nothing
}

// What needs no reset is the instance's whose program caused it.
func TestXIDsOfInstances(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("gpu0.mig=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	a, b := fakenvml.MIGUUID(0, 0), fakenvml.MIGUUID(0, 1)
	lib.XID(0, 4242, 8, 0)
	become(t, s, map[string]string{a: "", b: "XID 4242"})
	lib.XID(0, 95, 7, 0)
	become(t, s, map[string]string{a: "XID 95", b: "XID 95"})
}

// The log and a metric say that XIDs are not seen, once.
func TestEventsThatFail(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.register=999")
	log := &proclog.Buffer{}
	s := source(t, lib.Path, func(c *nvml.Config) { c.Logger = log.Logger() })
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
	watched := func() map[string]float64 {
		out := map[string]float64{}
		for _, m := range series(t, s, "remuda_device_xid_events") {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
		return out
	}
	require.Equal(t, map[string]float64{gpu0: 1, gpu1: 0}, watched())
	lib.Set("gpu1.register=")
	until(t, "it to be tried again", func() bool { return watched()[gpu1] == 1 })
	require.Equal(t, 1, strings.Count(log.String(), "the driver reports no XIDs for this GPU"))
	lib.Set("wait=999")
	until(t, "the wait to fail", func() bool { return value(t, s, "remuda_device_nvml_events_up") == 0 })
	before := starts(t, s)
	until(t, "several more workers", func() bool { return starts(t, s) >= before+3 })
	require.Equal(t, 1, strings.Count(log.String(), "cannot wait for XIDs"), "%s", log)
	lib.Set("wait=")
	until(t, "the wait to work", func() bool { return value(t, s, "remuda_device_nvml_events_up") == 1 })
}

// Faults outlive the plugin, and end by proof only: here by a reboot and by the operator's word.
func TestFaultsAreKept(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	dir, root := filepath.Join(t.TempDir(), "health"), t.TempDir()
	boot := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(boot), 0o755))
	require.NoError(t, os.WriteFile(boot, []byte("one\n"), 0o644))
	log := &proclog.Buffer{}
	again := func() *nvml.Source {
		t.Helper()
		return source(t, lib.Path, func(c *nvml.Config) {
			c.Dir, c.Root = dir, root
			c.Logger = log.Logger()
		})
	}
	s := again()
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.XID(0, 48)
	lib.XID(0, 48)
	become(t, s, map[string]string{gpu0: "XID 48", gpu1: ""})
	require.NoError(t, s.Close())
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	file := filepath.Join(dir, gpu0+".json")
	info, err = os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	s = again()
	require.Contains(t, look(t, s)[gpu0], "XID 48", "the first look after a restart")
	readings(t, s, gpu0)
	require.Contains(t, look(t, s)[gpu0], "XID 48")
	require.NoError(t, os.Remove(file))
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	require.Contains(t, log.String(), "the operator removed the GPU's file")
	lib.XID(0, 48)
	become(t, s, map[string]string{gpu0: "XID 48", gpu1: ""})
	require.NoError(t, s.Close())

	require.NoError(t, os.WriteFile(boot, []byte("two\n"), 0o644))
	s = again()
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.Set("gpu0.ecc=4")
	require.NoError(t, s.Close())
	s = again()
	become(t, s, map[string]string{gpu0: "uncorrectable", gpu1: ""}) // counted while no plugin ran
	require.NoError(t, s.Close())

	// A damaged file is a warning, and no reason to stop.
	for _, bad := range []string{"", "{", "[]", `{"device":{"uuid":"GPU-other"}}`, strings.Repeat("x", 1<<20), `{"device":{"uuid":"` + gpu0 + `"},"health":{"` + gpu0 + `":{"faults":[{"kind":"?"}],"relapses":-1}}}`} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		s = again()
		become(t, s, map[string]string{gpu0: "", gpu1: ""})
		require.NoError(t, s.Close())
	}
	require.Contains(t, log.String(), "kept faults of a GPU are lost: "+file)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	s = again()
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	until(t, "the metric to say so", func() bool { return value(t, s, "remuda_device_faults_kept") == 0 })
	require.Equal(t, 1, strings.Count(log.String(), "cannot keep the faults of a GPU"), log)
}

func TestUninitialised(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("fail=1") // NVML has forgotten that it was initialised
	become(t, s, map[string]string{gpu0: "not initialised"})
	lib.Set("fail=")
	become(t, s, map[string]string{gpu0: ""})
	lib.Set("fail=999")
	become(t, s, map[string]string{gpu0: "unknown error"})
}

// GPUs that never could be named are no GPUs, and the others are.
func TestUnnamed(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu0.lost=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu1: ""}, look(t, s))
	require.EqualValues(t, 1, value(t, s, "remuda_device_nvml_unnamed"))
	lib.Set("gpu0.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

func TestWorkersEndWithTheirSource(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	require.NoError(t, s.Close())
	require.Empty(t, workers(t, lib.Path))
	_, err := s.GPUs(t.Context())
	require.ErrorContains(t, err, "closed")
}

func TestNewNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, err := nvml.New(nvml.Config{Hang: -1, Retry: -1})
	for _, want := range []string{"Logger", "Command", "Hang", "Retry", "Policy"} {
		require.ErrorContains(t, err, want)
	}
}
