package nvml_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/health"
	"remuda/device-plugin/nvml"
	"remuda/device-plugin/nvml/worker"
	"remuda/internal/testkit/fakenvml"
)

// TestMain makes the test's own binary the worker, as the plugin's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-nvml-worker" {
		gpu := ""
		if len(os.Args) > 4 { // behind -nvml-gpu
			gpu = os.Args[4]
		}
		os.Exit(worker.Main(os.Args[2], gpu))
	}
	flag.Parse()
	os.Exit(m.Run())
}

// source is a Source over the fake library, quick enough for tests.
func source(t *testing.T, library string, change func(*nvml.Config)) *nvml.Source {
	t.Helper()
	cfg := nvml.Config{
		Logger:     hclog.NewNullLogger(),
		Command:    []string{os.Args[0], "-nvml-worker", library},
		Health:     health.DefaultConfig(),
		Period:     10 * time.Millisecond,
		Hang:       20 * time.Second, // a loaded machine is no fault
		Retry:      10 * time.Millisecond,
		Rediscover: 50 * time.Millisecond,
		Root:       t.TempDir(),
	}
	cfg.Health.GoodReadings = 2
	cfg.Health.StormCount = 1000
	if change != nil {
		change(&cfg)
	}
	s, err := nvml.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// look lists the GPUs' health by UUID; it fails the test on an error.
func look(t *testing.T, s *nvml.Source) map[string]string {
	t.Helper()
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	out := map[string]string{}
	for _, g := range gpus {
		out[g.UUID] = g.Unhealthy
	}
	return out
}

// until waits until probe is content.
func until(t *testing.T, what string, probe func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !probe() {
		require.True(t, time.Now().Before(deadline), "not within 2m: %s", what)
		time.Sleep(5 * time.Millisecond)
	}
}

// become waits until the GPUs are those of want, each with the part of a reason that it has there,
// healthy if that is empty.
func become(t *testing.T, s *nvml.Source, want map[string]string) {
	t.Helper()
	var got map[string]string
	deadline := time.Now().Add(2 * time.Minute)
	for {
		got = look(t, s)
		good := len(got) == len(want)
		for uuid, part := range want {
			reason, there := got[uuid]
			good = good && there && (part == "") == (reason == "") && strings.Contains(reason, part)
		}
		if good {
			return
		}
		require.True(t, time.Now().Before(deadline), "want %v, got %v", want, got)
		time.Sleep(5 * time.Millisecond)
	}
}

// readings waits until a GPU was read a few times more.
func readings(t *testing.T, s *nvml.Source) {
	t.Helper()
	for range 6 {
		_, err := s.Samples(t.Context())
		require.NoError(t, err)
	}
}

// series are those of a metric of a source.
func series(t *testing.T, s *nvml.Source, name string) []*dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(s))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// count is how many series of a metric a source has.
func count(t *testing.T, s *nvml.Source, name string) int {
	t.Helper()
	return len(series(t, s, name))
}

// value is that of the first series of a metric.
func value(t *testing.T, s *nvml.Source, name string) float64 {
	t.Helper()
	all := series(t, s, name)
	require.NotEmpty(t, all, name)
	return all[0].GetGauge().GetValue() + all[0].GetCounter().GetValue()
}

var gpu0, gpu1 = fakenvml.UUID(0), fakenvml.UUID(1)

func TestFingerprintThroughTheRealLoader(t *testing.T) {
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
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.Len(t, samples, 2)
	require.Equal(t, deviceplugin.Sample{
		MemoryUsedMiB: n(1024), MemoryFreeMiB: n(80535), BAR1UsedMiB: n(10), UtilizationPercent: n(37), MemoryUtilizationPercent: n(21),
		EncoderPercent: n(3), DecoderPercent: n(4), PowerWatts: n(120), TemperatureCelsius: n(41), CoreClockMHz: n(345), MemoryClockMHz: n(2000),
		ECCErrorsL1: n(1), ECCErrorsL2: n(2), ECCErrorsMemory: n(3),
	}, samples[gpu0])
	lib.Set("gpu0.limit=500000")
	until(t, "the power limit to follow the operator", func() bool {
		gpus, err := s.GPUs(t.Context())
		require.NoError(t, err)
		return gpus[i].PowerLimitWatts == 500
	})
}

// The readings that DCGM's exporter has by default, in base units.
func TestMetricsOfReadings(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("gpu0.throttle=0x24", "gpu0.ecc=5", "gpu0.remap=1")
	s := source(t, lib.Path, nil)
	look(t, s)
	for name, want := range map[string]float64{
		"uncorrectable_errors": 5, "remap_pending": 1, "remap_failed": 0, "remapped_rows_correctable": 2, "remapped_rows_uncorrectable": 1,
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
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.Nil(t, samples[gpu0].PowerWatts)
	require.NotNil(t, samples[gpu0].MemoryUsedMiB)
	require.Zero(t, value(t, s, "remuda_device_xid_events"))
}

func TestWhatCannotBeLoaded(t *testing.T) {
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
		readings(t, s)
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
	starts := value(t, s, "remuda_device_nvml_starts_total")
	until(t, "NVML to be initialised anew a few times", func() bool { return value(t, s, "remuda_device_nvml_starts_total") > starts+3 })
	require.Contains(t, look(t, s)[gpu1], "XID 79")
	lib.Set("count=2", "gpu1.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	// And it is registered for its XIDs again.
	time.Sleep(100 * time.Millisecond)
	until(t, "an XID of the GPU that is back", func() bool {
		lib.XID(1, 120)
		return strings.Contains(look(t, s)[gpu1], "XID 120")
	})
}

// An XID is published without any reading: here none would ever end.
func TestXIDNeedsNoReading(t *testing.T) {
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

// watch returns a function that waits until the source says that something changed.
func watch(t *testing.T, s *nvml.Source) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("no change was reported")
		}
	}
}

func TestLostWithoutXID(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("gpu0.lost=1")
	become(t, s, map[string]string{gpu0: "lost", gpu1: ""})
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.NotContains(t, samples, gpu0)
	require.Contains(t, samples, gpu1)
	lib.Set("gpu0.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

func TestCounters(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("gpu0.ecc=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "from before the plugin's time")
	lib.Set("gpu0.ecc=3")
	become(t, s, map[string]string{gpu0: "uncorrectable memory errors"})
	readings(t, s)
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
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1024, *samples[in.UUID].MemoryUsedMiB)
	require.Nil(t, samples[in.UUID].UtilizationPercent)

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

// A worker that somebody kills once is replaced, and the GPU stays healthy; the node's too.
func TestKilledWorker(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	for range 3 {
		before := workers(t, lib.Path)
		for _, pid := range before {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		until(t, "others to read the GPUs", func() bool {
			require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
			samples, err := s.Samples(t.Context())
			require.NoError(t, err)
			now := workers(t, lib.Path)
			return len(samples) == 2 && len(now) == 3 && !slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(before, pid) })
		})
	}
}

// workers are the processes that run on a library.
func workers(t *testing.T, library string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var pids []int
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && strings.Contains(string(raw), library) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A driver that hangs for the whole node is waited for; the GPUs that are known say so, and NVML goes on
// when it does. The first call waits no longer than a call may hang.
func TestHangingNVML(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("hang=nvmlInit_v2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.StartGiveUp = time.Second, 2*time.Second, 4*time.Second })
	until(t, "the call to be named", func() bool {
		_, err := s.GPUs(t.Context())
		require.Error(t, err)
		return strings.Contains(err.Error(), "NVML hangs in nvmlInit")
	})
	lib.Set("hang=")
	until(t, "a GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 1 })
	become(t, s, map[string]string{gpu0: ""})
	lib.Set("hang=nvmlSystemGetDriverVersion")
	until(t, "it to be noticed", func() bool { return value(t, s, "remuda_device_nvml_up") == 0 })
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "no call on the GPU hangs")
	lib.Set("hang=")
	until(t, "it to be over", func() bool { return value(t, s, "remuda_device_nvml_up") == 1 })
}

// A call that hangs takes its GPU only. When it returns the same process goes on.
func TestHangOfOneGPU(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp = time.Second, time.Hour })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	before := workers(t, lib.Path)
	lib.Set("gpu1.hang=nvmlDeviceGetTemperature")
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML hangs in nvmlDeviceGetTemperature"})
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.Contains(t, samples, gpu0)
	require.NotContains(t, samples, gpu1)
	lib.Set("gpu1.hang=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	require.ElementsMatch(t, before, workers(t, lib.Path))
}

// A GPU of which every call takes long, and none too long, is slow. It does not hang, and the others do
// not even notice.
func TestSlowGPU(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.slow=100")
	log := &lines{}
	s := source(t, lib.Path, func(c *nvml.Config) {
		c.Hang, c.GiveUp = 1200*time.Millisecond, time.Hour
		c.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
	})
	look(t, s)
	begin := time.Now()
	for range 50 {
		look(t, s)
	}
	require.Less(t, time.Since(begin), 25*1800*time.Millisecond, "only the first call waits for a GPU")
	until(t, "the slow GPU to be read", func() bool { return len(look(t, s)) == 2 })
	until(t, "it to be read again", func() bool { return strings.Contains(log.String(), "NVML is slow for this GPU") })
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
	require.NotContains(t, log.String(), "hangs")
	require.Len(t, workers(t, lib.Path), 3, "no process was replaced")
	slow, quick := 0.0, 0.0
	for _, m := range series(t, s, "remuda_device_reading_seconds") {
		slow, quick = max(slow, m.GetGauge().GetValue()), m.GetGauge().GetValue()+quick
	}
	require.Greater(t, slow, 1.2)
	require.Greater(t, slow, 2*(quick-slow))
}

// One that does not get through a reading at all is no use.
func TestGPUThatIsTooSlow(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp = 2*time.Second, 3*time.Second })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.Set("gpu1.slow=500")
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML is slow"})
	lib.Set("gpu1.slow=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A crash that repeats itself makes its GPU unhealthy with the second one in a row. The process is
// started again less and less often, and the log says so once.
func TestCrashOfOneGPU(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ rule, want string }{
		{"gpu1.crash=nvmlDeviceGetPowerUsage", "NVML crashes in nvmlDeviceGetPowerUsage: SIGSEGV: segmentation violation"},
		{"gpu1.abort=nvmlDeviceGetMemoryInfo", "NVML crashes in nvmlDeviceGetMemoryInfo: SIGABRT: abort"},
		{"gpu1.exit=nvmlDeviceGetName", "told to exit in nvmlDeviceGetName"},
	} {
		lib := fakenvml.Build(t)
		lib.Set("count=2")
		log := &lines{}
		s := source(t, lib.Path, func(c *nvml.Config) {
			c.Retry, c.Rediscover = 100*time.Millisecond, time.Minute
			c.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
		})
		become(t, s, map[string]string{gpu0: "", gpu1: ""})
		starts := value(t, s, "remuda_device_nvml_starts_total")
		lib.Set(tc.rule)
		if strings.Contains(tc.rule, "Name") { // called by a new worker only
			for _, pid := range workers(t, lib.Path) {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		become(t, s, map[string]string{gpu0: "", gpu1: tc.want})
		require.NotContains(t, look(t, s)[gpu1], "0x")
		time.Sleep(2 * time.Second) // 100, 200, 400, 800 ms
		require.LessOrEqual(t, value(t, s, "remuda_device_nvml_starts_total")-starts, 10.0)
		require.LessOrEqual(t, strings.Count(log.String(), "NVML fails for this GPU"), 3)
		require.NotZero(t, count(t, s, "remuda_device_nvml_faults_total"))
		require.NoError(t, s.Close())
	}
}

// A GPU that crashes the worker of the node when it is named is left out, and the others keep their
// XIDs.
func TestCrashWhileAGPUIsNamed(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.crash=nvmlDeviceRegisterEvents")
	log := &lines{}
	s := source(t, lib.Path, func(c *nvml.Config) {
		c.Rediscover = time.Minute
		c.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
	})
	until(t, "the other GPU", func() bool {
		gpus, err := s.GPUs(t.Context())
		return err == nil && len(gpus) == 1
	})
	until(t, "the XIDs of the other GPU", func() bool {
		lib.XID(0, 95)
		return strings.Contains(look(t, s)[gpu0], "XID 95")
	})
	require.Contains(t, log.String(), "NVML crashes in nvmlDeviceRegisterEvents of GPU 1: SIGSEGV")
	require.EqualValues(t, 1, value(t, s, "remuda_device_nvml_unnamed"))
}

// A GPU that hangs when it is named is asked for its name less and less often, and the others go on.
// Once it answers it is there.
func TestHangWhileAGPUIsNamed(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.hang=nvmlDeviceRegisterEvents")
	s := source(t, lib.Path, func(c *nvml.Config) {
		c.Rediscover, c.Hang, c.StartGiveUp = 200*time.Millisecond, 500*time.Millisecond, time.Hour
	})
	until(t, "the other GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 1 })
	until(t, "the GPU without a name", func() bool { return value(t, s, "remuda_device_nvml_unnamed") == 1 })
	starts := value(t, s, "remuda_device_nvml_starts_total")
	time.Sleep(3 * time.Second) // 200, 400, 800, 1600 ms
	require.LessOrEqual(t, value(t, s, "remuda_device_nvml_starts_total")-starts, 4.0)
	lib.XID(0, 95)
	until(t, "the XID of the other GPU", func() bool { return strings.Contains(look(t, s)[gpu0], "XID 95") })
	lib.Set("gpu1.hang=")
	until(t, "the GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 2 })
}

// XIDs that come while a GPU hangs, while its worker is replaced and while the node's is, are all seen.
func TestXIDsWhileWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.StartGiveUp = 500*time.Millisecond, time.Second, time.Second })
	until(t, "an answer on a busy machine", func() bool { _, err := s.GPUs(t.Context()); return err == nil })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	seen := func() int {
		n := 0.0
		for _, m := range series(t, s, "remuda_device_xid_total") {
			n += m.GetCounter().GetValue()
		}
		return int(n)
	}
	lib.Set("gpu1.hang=*")
	become(t, s, map[string]string{gpu0: "", gpu1: "hangs"})
	starts := value(t, s, "remuda_device_nvml_starts_total")
	sent := 0
	for value(t, s, "remuda_device_nvml_starts_total") < starts+4 {
		sent++
		lib.XID(0, 1000+sent) // no two are the same, so none is taken for another
		until(t, fmt.Sprintf("XID %d to be seen", sent), func() bool { return seen() == sent })
	}
	lib.XID(1, 119)
	until(t, "the XID of the GPU that hangs", func() bool { return strings.Contains(look(t, s)[gpu1], "XID 119") })
	lib.Set("gpu1.hang=")
	until(t, "it to answer again", func() bool { return !strings.Contains(look(t, s)[gpu1], "hangs") })
	readings(t, s)
	require.Contains(t, look(t, s)[gpu1], "XID 119", "and it does not get work as if nothing had been")
}

// The log and a metric say that XIDs are not seen, once.
func TestEventsThatFail(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.register=999")
	log := &lines{}
	s := source(t, lib.Path, func(c *nvml.Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: log}) })
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
	time.Sleep(500 * time.Millisecond) // several workers
	require.Equal(t, 1, strings.Count(log.String(), "cannot wait for XIDs"), "%s", log)
	lib.Set("wait=")
	until(t, "the wait to work", func() bool { return value(t, s, "remuda_device_nvml_events_up") == 1 })
}

// Faults outlive the plugin, and end by proof only: here by a reboot and by the operator's word.
func TestFaultsAreKept(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	dir, root := filepath.Join(t.TempDir(), "health"), t.TempDir()
	boot := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(boot), 0o755))
	require.NoError(t, os.WriteFile(boot, []byte("one\n"), 0o644))
	log := &lines{}
	again := func() *nvml.Source {
		t.Helper()
		return source(t, lib.Path, func(c *nvml.Config) {
			c.Dir, c.Root = dir, root
			c.Logger = hclog.New(&hclog.LoggerOptions{Output: log})
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
	readings(t, s)
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
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu0.lost=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu1: ""}, look(t, s))
	require.EqualValues(t, 1, value(t, s, "remuda_device_nvml_unnamed"))
	lib.Set("gpu0.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

func TestWorkersEndWithTheirSource(t *testing.T) {
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
	_, err := nvml.New(nvml.Config{Hang: -1, Retry: -1})
	for _, want := range []string{"Logger", "Command", "Hang", "Retry", "Policy"} {
		require.ErrorContains(t, err, want)
	}
}
