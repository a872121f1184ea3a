package nvml_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
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
		os.Exit(worker.Main(os.Args[2]))
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
		Timeout:    20 * time.Second, // a loaded machine is no fault
		Rediscover: time.Millisecond,
		Root:       t.TempDir(),
	}
	cfg.Health.GoodReadings = 2
	cfg.Health.StormCount = 1000 // see watch
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

// until looks until probe is content.
func until(t *testing.T, what string, probe func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !probe() {
		require.True(t, time.Now().Before(deadline), "not within 2m: %s", what)
		time.Sleep(5 * time.Millisecond)
	}
}

// count is how many series of a metric a source has.
func count(t *testing.T, s *nvml.Source, name string) int {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(s))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return len(f.GetMetric())
		}
	}
	return 0
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
	want := deviceplugin.GPU{
		UUID: gpu0, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeCapability: 9, Architecture: "hopper",
		DriverVersion: "570.86.15", CUDAVersion: "12.8", PowerLimitWatts: 700, CoreClockMHz: 1980, MemoryClockMHz: 2619,
		PCIBusID: "00000000:1B:00.0", NUMANode: "1", DeviceNodes: "/dev/nvidia0",
	}
	require.Equal(t, want, gpus[0])
	require.Len(t, gpus, 2)
	require.Equal(t, "NVIDIA L4", gpus[1].Model)
	require.Empty(t, gpus[1].NUMANode)

	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1024, *samples[gpu0].MemoryUsedMiB)
	require.EqualValues(t, 37, *samples[gpu0].UtilizationPercent)
	require.EqualValues(t, 21, *samples[gpu0].MemoryUtilizationPercent)
	require.EqualValues(t, 120, *samples[gpu0].PowerWatts)
	require.EqualValues(t, 41, *samples[gpu0].TemperatureCelsius)
	require.EqualValues(t, 345, *samples[gpu0].CoreClockMHz)
	require.EqualValues(t, 2000, *samples[gpu0].MemoryClockMHz)
	require.Len(t, samples, 2)
}

// Every function but the required ones may be missing: then what it tells is
// unknown, and nothing else happens.
func TestOldLibrary(t *testing.T) {
	lib := fakenvml.Build(t, "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCudaComputeCapability",
		"nvmlDeviceGetArchitecture", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetNvLinkState",
		"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo",
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
			_, err := s.Samples(t.Context())
			require.ErrorContains(t, err, "not initialised")
		})
	}
}

// A driver that comes and goes, and one that is exchanged for another.
func TestFollowsTheDriver(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Hide()
	s := source(t, lib.Path, nil)
	_, err := s.GPUs(t.Context())
	require.ErrorContains(t, err, "No such file")
	lib.Show()
	lib.Set("init=9")
	_, err = s.GPUs(t.Context())
	require.ErrorIs(t, err, nvml.ErrNoDriver)
	require.ErrorContains(t, err, "the NVIDIA driver is not loaded")
	lib.Set("init=")
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))

	// A GPU that needs a reset has had one when the driver was loaded anew.
	wait := watch(t, s, lib)
	lib.XID(0, 119)
	wait()
	require.Contains(t, look(t, s)[gpu0], "XID 119")
	lib.Set("fail=18", "init=18") // the driver was exchanged under a running worker
	_, err = s.GPUs(t.Context())
	require.ErrorContains(t, err, "different versions")
	lib.Set("fail=", "init=") // and the exchange was taken back: nothing was loaded anew
	for range 4 {
		require.Contains(t, look(t, s)[gpu0], "XID 119", "a library that did not fit is no proof of a reset")
	}
	lib.Set("fail=18", "init=18")
	_, err = s.GPUs(t.Context())
	require.ErrorContains(t, err, "different versions")
	lib.Set("fail=", "init=", "driver=580.1")
	gpus, err := s.GPUs(t.Context())
	require.NoError(t, err)
	require.Equal(t, "580.1", gpus[0].DriverVersion)
	require.Contains(t, gpus[0].Unhealthy, "XID 119")
	require.Empty(t, look(t, s)[gpu0], "the second good reading")
}

// watch returns a function that waits until the source says that something
// changed.
func watch(t *testing.T, s *nvml.Source, lib *fakenvml.Library) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 100), make(chan struct{})
	go func() { defer close(done); s.Watch(ctx, func() { changed <- struct{}{} }) }()
	t.Cleanup(func() { cancel(); <-done })
	// A single warning changes nothing, and tells when Watch has begun.
	for begun := false; !begun; {
		lib.XID(0, 92)
		select {
		case <-changed:
			begun = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	for drained := false; !drained; {
		select {
		case <-changed:
		case <-time.After(time.Second):
			drained = true
		}
	}
	return func() {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("no change was reported")
		}
	}
}

func TestXIDs(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
	lib.XID(1, 31)
	until(t, "the XID to be counted", func() bool { return count(t, s, "remuda_device_xid_total") == 1 })
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s), "a program's fault")
	wait := watch(t, s, lib)
	lib.XID(1, 79)
	lib.Set("gpu1.lost=1")
	wait()
	health := look(t, s)
	require.Empty(t, health[gpu0])
	require.Contains(t, health[gpu1], "XID 79: the GPU has fallen off the bus")

	// The GPU stays off the bus: the driver does not list it any more.
	lib.Set("count=1")
	for range 3 {
		require.Contains(t, look(t, s)[gpu1], "XID 79")
	}
	lib.Set("count=2", "gpu1.lost=")
	until(t, "the GPU to be healthy again", func() bool { return look(t, s)[gpu1] == "" })
}

func TestLostWithoutXID(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("gpu0.lost=1")
	require.Contains(t, look(t, s)[gpu0], "lost")
	require.Empty(t, look(t, s)[gpu1])
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.NotContains(t, samples, gpu0)
	require.Contains(t, samples, gpu1)
	lib.Set("gpu0.lost=")
	require.Contains(t, look(t, s)[gpu0], "lost", "one good reading is not enough")
	until(t, "the GPU to be back", func() bool { return look(t, s)[gpu0] == "" })
}

func TestCounters(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("gpu0.ecc=3")
	require.Contains(t, look(t, s)[gpu0], "uncorrectable memory errors")
	look(t, s)
	require.Empty(t, look(t, s)[gpu0])
	lib.Set("gpu0.recovery=1")
	require.Contains(t, look(t, s)[gpu0], "reset the GPU")
	lib.Set("gpu0.recovery=0")
	look(t, s)
	require.Empty(t, look(t, s)[gpu0])
	lib.Set("gpu0.remapfailed=1")
	require.Contains(t, look(t, s)[gpu0], "must be replaced")
	lib.Set("gpu0.remapfailed=", "gpu0.error=999")
	look(t, s)
	require.Contains(t, look(t, s)[gpu0], "must be replaced")
	lib.Set("gpu0.error=")
	until(t, "all to be well", func() bool { return look(t, s)[gpu0] == "" })
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
	in := gpus[0]
	require.Equal(t, fakenvml.MIGUUID(0, 0), in.UUID)
	require.Equal(t, gpu0, in.Parent)
	require.Equal(t, "1g.10gb", in.MIGProfile)
	require.Equal(t, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", in.Model)
	require.EqualValues(t, 9856, in.MemoryMiB)
	require.Zero(t, in.PowerLimitWatts)
	require.Equal(t, "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67", in.DeviceNodes)
	require.Equal(t, gpu1, gpus[2].UUID)
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1024, *samples[in.UUID].MemoryUsedMiB)
	require.Nil(t, samples[in.UUID].UtilizationPercent)

	lib.Set("gpu0.lost=1")
	health := look(t, s)
	require.Contains(t, health[fakenvml.MIGUUID(0, 0)], "lost", "the instances share the GPU's fate")
	require.Contains(t, health[fakenvml.MIGUUID(0, 1)], "lost")
	require.Empty(t, health[gpu1])
	lib.Set("gpu0.lost=", "gpu0.mig=1")
	until(t, "one instance to be left", func() bool { return len(look(t, s)) == 2 })
	lib.Set("gpu0.mig=0")
	require.Equal(t, map[string]string{gpu1: ""}, look(t, s), "a split GPU without instances offers nothing")
}

// What needs no reset is the instance's whose program caused it.
func TestXIDsOfInstances(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("gpu0.mig=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	a, b := fakenvml.MIGUUID(0, 0), fakenvml.MIGUUID(0, 1)
	lib.XID(0, 4242, 8, 0)
	until(t, "the second instance to pause", func() bool { return look(t, s)[b] != "" })
	require.Empty(t, look(t, s)[a])
	lib.XID(0, 95, 7, 0)
	until(t, "the whole GPU to need a reset", func() bool { return strings.Contains(look(t, s)[b], "XID 95") })
	require.Contains(t, look(t, s)[a], "XID 95")
}

func TestKilledWorker(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	for range 3 {
		for _, pid := range workers(t, lib.Path) {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "another is started at once")
	}
	require.Len(t, workers(t, lib.Path), 1)
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

func TestHangingNVML(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, func(c *nvml.Config) { c.Timeout, c.StartTimeout = 3*time.Second, 3*time.Second })
	// A slow machine may take longer than the three seconds for a start.
	recovers := func() {
		t.Helper()
		until(t, "a good look", func() bool { _, err := s.GPUs(t.Context()); return err == nil })
		require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "it recovers")
	}
	recovers()
	for _, tc := range []struct{ function, want string }{
		{"nvmlDeviceGetMemoryInfo", "NVML hangs in nvmlDeviceGetMemoryInfo"},
		{"nvmlInit_v2", "NVML hangs in nvmlInit"},
	} {
		lib.Set("hang=" + tc.function)
		if tc.function == "nvmlInit_v2" {
			require.NoError(t, s.Close())
		}
		// A worker that a slow machine has not brought to the call in three
		// seconds cannot name it yet.
		until(t, tc.want, func() bool {
			_, err := s.GPUs(t.Context())
			require.Error(t, err)
			return strings.Contains(err.Error(), tc.want)
		})
		lib.Set("hang=")
		recovers()
	}
	lib.Set("hang=nvmlDeviceGetUtilizationRates")
	until(t, "a sample that names its call", func() bool {
		_, err := s.Samples(t.Context())
		recovers() // a look needs no load
		return err != nil && strings.Contains(err.Error(), "nvmlDeviceGetUtilizationRates")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	lib.Set("hang=nvmlDeviceGetMemoryInfo")
	_, err := s.GPUs(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the caller's patience counts")
}

// A node on which the driver takes long to wake its GPUs: a start outlives the
// patience of those who wait for it.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("hang=nvmlDeviceGetName")
	s := source(t, lib.Path, nil)
	var pids []int
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		_, err := s.GPUs(ctx)
		cancel()
		require.ErrorContains(t, err, "NVML is still being initialised")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		pids = append(pids, workers(t, lib.Path)...)
	}
	require.Len(t, pids, 3)
	require.Equal(t, []int{pids[0], pids[0], pids[0]}, pids, "one process all the time")
	lib.Set("hang=")
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	require.Equal(t, pids[:1], workers(t, lib.Path))
	require.NoError(t, s.Close())
	lib.Set("hang=nvmlInit_v2")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.GPUs(ctx)
	require.Error(t, err)
	require.NoError(t, s.Close(), "while it starts")
	require.Empty(t, workers(t, lib.Path))
}

func TestNVMLThatEndsItsProcess(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("exit=nvmlDeviceGetMemoryInfo")
	_, err := s.GPUs(t.Context())
	require.ErrorContains(t, err, "fake NVML: told to exit in nvmlDeviceGetMemoryInfo")
	lib.Set("exit=")
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
}

func TestUninitialised(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("fail=1") // NVML has forgotten that it was initialised
	_, err := s.GPUs(t.Context())
	require.ErrorContains(t, err, "not initialised")
	lib.Set("fail=")
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	lib.Set("fail=999")
	_, err = s.GPUs(t.Context())
	require.ErrorContains(t, err, "unknown error")
}

// GPUs that never could be named are no GPUs, and the others are.
func TestUnnamed(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu0.lost=1")
	s := source(t, lib.Path, nil)
	require.Equal(t, map[string]string{gpu1: ""}, look(t, s))
	lib.Set("gpu0.lost=")
	until(t, "the GPU to be found", func() bool { return len(look(t, s)) == 2 })
}

func TestWorkerEndsWithItsSource(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	require.NoError(t, s.Close())
	require.Empty(t, workers(t, lib.Path))
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := nvml.New(nvml.Config{Timeout: -1})
	for _, want := range []string{"Logger", "Command", "Timeout", "Policy"} {
		require.ErrorContains(t, err, want)
	}
}
