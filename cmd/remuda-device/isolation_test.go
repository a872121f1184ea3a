package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/built"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/loopback"
)

// gpuNode is a plugin process on a fake NVML, as Nomad sees it.
type gpuNode struct {
	t       *testing.T
	pid     int
	plugin  device.DevicePlugin
	stream  <-chan *device.FingerprintResponse
	metrics string
	seen    map[string]string // the last published reason of each GPU, "" for a healthy one
}

// startNode starts the plugin; state is the directory in which it keeps faults.
func startNode(t *testing.T, bin string, lib *fakenvml.Library, state string) *gpuNode {
	t.Helper()
	client, p := launch(t, bin)
	n := &gpuNode{t: t, pid: client.ReattachConfig().Pid, plugin: p, metrics: loopback.Free(t), seen: map[string]string{}}
	require.NoError(t, configure(t, p, fmt.Sprintf(`
		fingerprint_period = "200ms"
		seats              = 1
		nvml_library       = %q
		health_dir         = %q

		metrics            = %q`, lib.Path, state, n.metrics)))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := p.Fingerprint(ctx)
	require.NoError(t, err)
	n.stream = stream
	return n
}

// until waits until the reason of each GPU has what want names, a part of it or "" for a healthy
// GPU. GPUs that want does not name must be healthy in every publication on the way.
func (n *gpuNode) until(count int, want map[int]string) {
	n.t.Helper()
	deadline := time.After(time.Minute)
	for {
		good := len(n.seen) == count
		for i := range count {
			reason, listed := n.seen[fakenvml.UUID(i)]
			part := want[i]
			good = good && listed && (part == "") == (reason == "") && strings.Contains(reason, part)
		}
		if good {
			return
		}
		select {
		case resp := <-n.stream:
			require.NoError(n.t, resp.Error)
			n.seen = map[string]string{}
			for _, g := range resp.Devices {
				for _, d := range g.Devices {
					n.seen[strings.TrimSuffix(d.ID, "#0")] = d.HealthDesc
				}
			}
			for i := range count {
				if _, named := want[i]; !named {
					require.Empty(n.t, n.seen[fakenvml.UUID(i)], "GPU %d suffers from another one's fault", i)
				}
			}
		case <-deadline:
			n.t.Fatalf("want %v in %v", want, n.seen)
		}
	}
}

// reserve reserves a seat of GPU 0.
func (n *gpuNode) reserve() {
	n.t.Helper()
	_, err := n.plugin.Reserve([]string{fakenvml.UUID(0) + "#0"})
	require.NoError(n.t, err)
}

// quickest is how long the quickest of a few reservations takes: the machine may be busy.
func (n *gpuNode) quickest() time.Duration {
	n.t.Helper()
	best := time.Hour
	for range 5 {
		begin := time.Now()
		n.reserve()
		best = min(best, time.Since(begin))
	}
	return best
}

// page is the metrics page.
func (n *gpuNode) page() string {
	n.t.Helper()
	resp, err := http.Get("http://" + n.metrics + "/metrics")
	require.NoError(n.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(n.t, err)
	return string(raw)
}

// What goes wrong with one of four GPUs stays with that GPU: a hang, a crash and an exit of NVML,
// in a reading and in a sample, while the plugin runs and before it starts. The others are
// published as healthy all the time, and a reservation on them is granted within a second.
func TestTroubleOfOneGPUStaysWithIt(t *testing.T) {
	bin := built.Copy(t, "remuda-device")
	for _, tc := range []struct{ name, rule, want string }{
		{"a hang", "gpu3.hang=nvmlDeviceGetMemoryInfo", "NVML hangs in nvmlDeviceGetMemoryInfo"},
		{"a hang in every call", "gpu3.hang=*", "NVML hangs in nvmlDeviceGet"},
		{"a hang in a sample", "gpu3.hang=nvmlDeviceGetPowerUsage", "NVML hangs in nvmlDeviceGetPowerUsage"},
		{"a crash", "gpu3.crash=nvmlDeviceGetMemoryInfo", "NVML crashes in nvmlDeviceGetMemoryInfo: SIGSEGV"},
		{"a crash in a sample", "gpu3.abort=nvmlDeviceGetTemperature", "NVML crashes in nvmlDeviceGetTemperature: SIGABRT"},
		{"an exit", "gpu3.exit=nvmlDeviceGetMemoryInfo", "told to exit in nvmlDeviceGetMemoryInfo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			lib := fakenvml.Build(t)
			lib.Set("count=4")
			state := filepath.Join(t.TempDir(), "health")
			n := startNode(t, bin, lib, state)
			n.until(4, nil)
			key, _, _ := strings.Cut(tc.rule, "=")
			lib.Set(tc.rule)
			require.Less(t, n.quickest(), time.Second, "also before the trouble is noticed")
			n.until(4, map[int]string{3: tc.want})
			require.Less(t, n.quickest(), time.Second)
			require.NotContains(t, n.seen[fakenvml.UUID(3)], "0x", "no pieces of a stack trace")
			_, err := n.plugin.Reserve([]string{fakenvml.UUID(3) + "#0"})
			require.ErrorContains(t, err, tc.want)
			page := n.page()
			require.Contains(t, page, fmt.Sprintf("remuda_device_healthy{gpu=%q} 0", fakenvml.UUID(3)))
			require.Contains(t, page, fmt.Sprintf("remuda_device_unhealthy_info{gpu=%q,reason=%q} 1", fakenvml.UUID(3), n.seen[fakenvml.UUID(3)]))
			require.NotContains(t, page, fmt.Sprintf("remuda_device_power_watts{gpu=%q}", fakenvml.UUID(3)), "a value that cannot be read is absent")
			require.Contains(t, page, fmt.Sprintf("remuda_device_power_watts{gpu=%q}", fakenvml.UUID(0)))

			// Another plugin starts in that state, and knows the GPU from its predecessor's files.
			require.NoError(t, syscall.Kill(n.pid, syscall.SIGKILL))
			n = startNode(t, bin, lib, state)
			begin := time.Now()
			n.reserve()
			require.Less(t, time.Since(begin), nvml.DefaultHang, "it waits for its own GPU only")
			n.until(4, map[int]string{3: tc.want})
			lib.Set(key + "=")
			n.until(4, map[int]string{3: ""})
		})
	}
}

// From an XID, from the moment at which readings crash, and from the beginning of a call that does not return, to
// the GPU's health in the stream to Nomad: less than a second. Each is tried with several GPUs, and the quickest counts, because the machine may be busy.
func TestFaultsArePublishedWithinASecond(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=9")
	n := startNode(t, built.Copy(t, "remuda-device"), lib, filepath.Join(t.TempDir(), "health"))
	n.until(9, nil)
	want := map[int]string{}
	quickest := func(gpus []int, reason string, cause func(gpu int)) time.Duration {
		best := time.Hour
		for _, gpu := range gpus {
			want[gpu] = reason
			begin := time.Now()
			cause(gpu)
			n.until(9, want)
			best = min(best, time.Since(begin))
		}
		return best
	}
	xid := quickest([]int{0, 1, 2}, "XID 79", func(gpu int) { lib.XID(gpu, 79) })
	crash := quickest([]int{3, 4, 5}, "NVML crashes in nvmlDeviceGetMemoryInfo: SIGSEGV", func(gpu int) {
		lib.Set(fmt.Sprintf("gpu%d.crash=nvmlDeviceGetMemoryInfo", gpu))
	})
	late := quickest([]int{6, 7, 8}, "NVML has not returned from nvmlDeviceGetTemperature", func(gpu int) {
		lib.Set(fmt.Sprintf("gpu%d.hang=", gpu-1), fmt.Sprintf("gpu%d.hang=nvmlDeviceGetTemperature", gpu))
		if gpu > 6 {
			delete(want, gpu-1) // before it counts as hanging
		}
	})
	t.Logf("XID: %s, crash: %s, late: %s", xid, crash, late)
	require.Less(t, xid, time.Second)
	require.Less(t, crash, time.Second, "the period of 0.2 s and two processes")
	require.Less(t, late, 1200*time.Millisecond, "the period of 0.2 s before the call")
}

// Once a GPU is lost, or hangs, no statistics of it reach Nomad any more, and those of the others go on.
func TestNoOldStatisticsOfALostGPU(t *testing.T) {
	bin := built.Copy(t, "remuda-device")
	for rule, reason := range map[string]string{"gpu1.lost=1": "lost", "gpu1.hang=nvmlDeviceGetTemperature": "NVML hangs"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			lib := fakenvml.Build(t)
			lib.Set("count=2")
			n := startNode(t, bin, lib, filepath.Join(t.TempDir(), "health"))
			n.until(2, nil)
			stats, err := n.plugin.Stats(t.Context(), 100*time.Millisecond)
			require.NoError(t, err)
			has := func() (zero, one bool) {
				s := next(t, stats)
				require.NoError(t, s.Error)
				for _, g := range s.Groups {
					_, first := g.InstanceStats[fakenvml.UUID(0)+"#0"]
					_, second := g.InstanceStats[fakenvml.UUID(1)+"#0"]
					zero, one = zero || first, one || second
				}
				return zero, one
			}
			for one := false; !one; {
				_, one = has()
			}
			lib.Set(rule)
			n.until(2, map[int]string{1: reason})
			for range 3 { // sampled before, and on their way
				has()
			}
			others := 0
			for range 5 {
				zero, one := has()
				require.False(t, one)
				if zero { // a busy machine may be too slow for it
					others++
				}
			}
			require.NotZero(t, others)
		})
	}
}

// An XID that makes NVML hang is the reason that is published, at once and not after the hang
// was noticed, also after a restart of the plugin, until the driver's word proves a reset.
func TestXIDOutlivesHangAndRestart(t *testing.T) {
	bin := built.Copy(t, "remuda-device")
	lib := fakenvml.Build(t)
	lib.Set("count=4")
	state := filepath.Join(t.TempDir(), "health")
	n := startNode(t, bin, lib, state)
	n.until(4, nil)
	lib.Set("gpu3.hang=*")
	begin := time.Now()
	lib.XID(3, 119)
	n.until(4, map[int]string{3: "XID 119"})
	require.NotContains(t, n.seen[fakenvml.UUID(3)], "hangs", "published before the hang was noticed")
	t.Logf("published after %s", time.Since(begin))
	n.until(4, map[int]string{3: "NVML hangs"})
	require.Contains(t, n.seen[fakenvml.UUID(3)], "XID 119", "the first cause stays")
	lib.XID(3, 140)
	lib.Set("gpu3.hang=")
	require.NoError(t, syscall.Kill(n.pid, syscall.SIGKILL))
	n = startNode(t, bin, lib, state)
	n.until(4, map[int]string{3: "XID 119"})
	require.NotContains(t, n.seen[fakenvml.UUID(3)], "hangs")
	lib.Set("init=9", "fail=9") // not loaded for a moment: no proof of a reset
	n.until(4, map[int]string{0: "not loaded", 1: "not loaded", 2: "not loaded", 3: "XID 119"})
	lib.Set("init=", "fail=")
	n.until(4, map[int]string{0: "", 1: "", 2: "", 3: "XID 119"})
	lib.Set("gpu3.recovery=1")
	n.until(4, map[int]string{3: "XID 119"})
	time.Sleep(time.Second)
	lib.Set("gpu3.recovery=0")
	n.until(4, map[int]string{3: ""})
}
