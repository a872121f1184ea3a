package nvml_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	"remuda/internal/testkit/parallel"
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
	parallel.Raise("4")
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

// hangTime measures how long a call may take in a test in which one hangs: half a second, or five times as
// long as this machine needs to start a source. A worker that does not answer for so long is replaced, and
// on a loaded machine that must not happen to those that do not hang.
func hangTime(t *testing.T) time.Duration {
	t.Helper()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	begin := time.Now()
	look(t, s)
	took := time.Since(begin)
	require.NoError(t, s.Close())
	return max(500*time.Millisecond, 5*took)
}

// look lists the GPUs' health by UUID; it fails the test on an error.
func look(t *testing.T, s *nvml.Source) map[string]string {
	t.Helper()
	got, err := lookup(t, s)
	require.NoError(t, err)
	return got
}

func lookup(t *testing.T, s *nvml.Source) (map[string]string, error) {
	t.Helper()
	gpus, err := s.GPUs(t.Context())
	out := map[string]string{}
	for _, g := range gpus {
		out[g.UUID] = g.Unhealthy
	}
	return out, err
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
	deadline := time.Now().Add(2 * time.Minute)
	for {
		got, err := lookup(t, s)
		good := err == nil && len(got) == len(want)
		for uuid, part := range want {
			reason, there := got[uuid]
			good = good && there && (part == "") == (reason == "") && strings.Contains(reason, part)
		}
		if good {
			return
		}
		require.True(t, time.Now().Before(deadline), "want %v, got %v, %v", want, got, err)
		time.Sleep(5 * time.Millisecond)
	}
}

// samples waits until a sample has the GPUs and instances of uuids: one that a loaded machine does not read
// within sampleWait is absent.
func samples(t *testing.T, s *nvml.Source, uuids ...string) map[string]deviceplugin.Sample {
	t.Helper()
	var all map[string]deviceplugin.Sample
	until(t, fmt.Sprintf("a sample of %v", uuids), func() bool {
		var err error
		all, err = s.Samples(t.Context())
		require.NoError(t, err)
		return !slices.ContainsFunc(uuids, func(uuid string) bool { _, ok := all[uuid]; return !ok })
	})
	return all
}

// readings waits until GPUs were read a few times more.
func readings(t *testing.T, s *nvml.Source, uuids ...string) {
	t.Helper()
	for range 6 {
		samples(t, s, uuids...)
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

// total is the sum of the series of a counter.
func total(t *testing.T, s *nvml.Source, name string) int {
	t.Helper()
	sum := 0.0
	for _, m := range series(t, s, name) {
		sum += m.GetCounter().GetValue()
	}
	return int(sum)
}

// starts is how many workers were started.
func starts(t *testing.T, s *nvml.Source) int {
	t.Helper()
	return total(t, s, "remuda_device_nvml_starts_total")
}

// value is that of the first series of a metric.
func value(t *testing.T, s *nvml.Source, name string) float64 {
	t.Helper()
	all := series(t, s, name)
	require.NotEmpty(t, all, name)
	return all[0].GetGauge().GetValue() + all[0].GetCounter().GetValue()
}

var gpu0, gpu1 = fakenvml.UUID(0), fakenvml.UUID(1)

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
