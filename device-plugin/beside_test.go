package deviceplugin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	deviceproto "github.com/hashicorp/nomad/plugins/device/proto"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/devicetest"
	"remuda/internal/testkit/loopback"
)

// watched is a source that reports changes.
type watched struct {
	devicetest.Source
	changes chan struct{}
}

func (w *watched) Watch(ctx context.Context, changed func()) {
	for {
		select {
		case <-w.changes:
			changed()
		case <-ctx.Done():
			return
		}
	}
}

// A source that reports a change is looked at once, not a period later.
func TestFingerprintFollowsChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &watched{changes: make(chan struct{})}
		src.Set(h100("GPU-1", ""))
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := configured(t, src, `fingerprint_period = "1h"`).Fingerprint(ctx)
		require.NoError(t, err)
		<-ch
		begin := time.Now()
		src.Set(sick(h100("GPU-1", ""), "XID 79"))
		src.changes <- struct{}{}
		require.Equal(t, map[string]string{"GPU-1#0": "XID 79", "GPU-1#1": "XID 79"}, health(<-ch))
		require.Zero(t, time.Since(begin))
		cancel()
		_, open := <-ch
		require.False(t, open, "and the watch has ended")
	})
}

func TestFingerprintOfMIGAndOverrides(t *testing.T) {
	src := &devicetest.Source{}
	a, b := h100("MIG-a", "0000:01:00.0"), h100("MIG-b", "0000:01:00.0")
	for _, g := range []*deviceplugin.GPU{&a, &b} {
		g.Parent, g.MIGProfile, g.Model, g.NUMANode = "GPU-1", "1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1"
	}
	c, d := h100("GPU-2", "0000:02:00.0"), h100("GPU-3", "0000:03:00.0")
	c.NUMANode, d.NUMANode = "0", "1"
	hidden := h100("MIG-x", "0000:09:00.0")
	hidden.Parent = "GPU-9"
	src.Set(a, b, c, d, h100("GPU-4", "0000:04:00.0"), hidden)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := configured(t, src, `
		gms_socket_dir  = ""
		ignored_gpu_ids = ["GPU-9"]
		gpu {
			id    = "GPU-1"
			seats = 1
		}
		gpu {
			id    = "MIG-b"
			seats = 3
		}
		gpu {
			id            = "GPU-4"
			nvlink_clique = "mine"
		}`).Fingerprint(ctx)
	require.NoError(t, err)
	resp := <-ch
	require.Len(t, resp.Devices, 3)
	whole, clique, mig := resp.Devices[0], resp.Devices[1], resp.Devices[2]
	require.Equal(t, "NVIDIA H100 80GB HBM3", whole.Name)
	require.Len(t, whole.Devices, 4)
	require.NotContains(t, whole.Attributes, "numa_node", "its GPUs differ")
	require.NotContains(t, whole.Attributes, "pci_bus_id")
	require.NotContains(t, whole.Attributes, "mig_profile")
	require.Equal(t, structs.NewBoolAttribute(false), whole.Attributes["gms"])
	require.Equal(t, "NVIDIA H100 80GB HBM3 (clique mine)", clique.Name)
	require.Equal(t, structs.NewStringAttribute("0000:04:00.0"), clique.Attributes["pci_bus_id"])
	require.Equal(t, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", mig.Name)
	require.Equal(t, structs.NewStringAttribute("1g.10gb"), mig.Attributes["mig_profile"])
	require.Equal(t, structs.NewIntAttribute(1, ""), mig.Attributes["numa_node"])
	require.Equal(t, structs.NewStringAttribute("0000:01:00.0"), mig.Attributes["pci_bus_id"])
	var ids []string
	for _, d := range mig.Devices {
		ids = append(ids, d.ID)
	}
	require.Equal(t, []string{"MIG-a#0", "MIG-b#0", "MIG-b#1", "MIG-b#2"}, ids)
}

// gms serves one runtime state at a socket, over and over.
func gms(t *testing.T, path string, reply wire.Message) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			raw, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c := wire.NewConn(raw)
			if _, _, err := c.Read(1<<16, false); err == nil {
				_ = c.Write(reply, -1)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

func TestGMSInStatisticsAndMetrics(t *testing.T) {
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	gms(t, filepath.Join(dir, "gms_GPU-1_weights.sock"), &wire.GetRuntimeStateResponse{
		State: wire.StateRO, ROSessionCount: 2, Committed: true, AllocationCount: 12})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gms_GPU-1_kv_cache.sock"), nil, 0o600))
	addr := loopback.Free(t)

	src := &devicetest.Source{}
	broken := sick(h100("GPU-2", "0000:02:00.0"), "XID 79")
	src.Set(h100("GPU-1", "0000:01:00.0"), broken)
	n := func(v int64) *int64 { return &v }
	src.SetSamples(map[string]deviceplugin.Sample{"GPU-1": {MemoryUsedMiB: n(1024), UtilizationPercent: n(50), MemoryUtilizationPercent: n(25),
		PowerWatts: n(300), TemperatureCelsius: n(60), CoreClockMHz: n(1000), MemoryClockMHz: n(2000)}})
	p := configured(t, src, fmt.Sprintf("gms_socket_dir = %q\nmetrics = %q", dir, addr))
	ctx, cancel := context.WithCancel(t.Context())
	fp, err := p.Fingerprint(ctx)
	require.NoError(t, err)
	<-fp
	stats, err := p.Stats(ctx, time.Hour)
	require.NoError(t, err)
	one := (<-stats).Groups[0].InstanceStats["GPU-1#1"].Stats
	require.EqualValues(t, 25, *one.Attributes["Memory utilization"].IntNumeratorVal)
	require.EqualValues(t, 1000, *one.Attributes["Core clock"].IntNumeratorVal)
	tags := one.Nested["GMS"].Nested
	require.Equal(t, "RO", *tags["weights"].Attributes["Lock"].StringVal)
	require.EqualValues(t, 2, *tags["weights"].Attributes["Readers"].IntNumeratorVal)
	require.EqualValues(t, 12, *tags["weights"].Attributes["Allocations"].IntNumeratorVal)
	require.True(t, *tags["weights"].Attributes["Committed"].BoolVal)
	require.Contains(t, *tags["kv_cache"].Attributes["Error"].StringVal, "refused")

	_, err = p.Reserve([]string{"GPU-1#0"})
	require.NoError(t, err)
	_, err = p.Reserve(nil)
	require.Error(t, err)
	var page string
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		page = string(raw)
		return err == nil && resp.StatusCode == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond)
	for _, want := range []string{
		"remuda_device_readable 1\n", `remuda_device_healthy{gpu="GPU-1"} 1`, `remuda_device_healthy{gpu="GPU-2"} 0`, `remuda_device_seats{gpu="GPU-1"} 2`,
		`remuda_device_memory_used_bytes{gpu="GPU-1"} 1.073741824e+09`, `remuda_device_utilization_ratio{gpu="GPU-1"} 0.5`,
		`remuda_device_power_watts{gpu="GPU-1"} 300`, `remuda_device_core_clock_hertz{gpu="GPU-1"} 1e+09`,
		`remuda_device_gms_up{gpu="GPU-1",tag="weights"} 1`, `remuda_device_gms_up{gpu="GPU-1",tag="kv_cache"} 0`,
		`remuda_device_gms_readers{gpu="GPU-1",tag="weights"} 2`,
		`remuda_device_reservations_total{outcome="granted"} 1`, `remuda_device_reservations_total{outcome="refused"} 1`,
		`model="NVIDIA H100 80GB HBM3"`,
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, `remuda_device_power_watts{gpu="GPU-2"}`)
	cancel()
	for range fp {
	}
	_, err = http.Get("http://" + addr + "/metrics")
	require.Error(t, err, "the endpoint ends with the stream")
}

// A message that is no UTF-8 cannot be sent over gRPC: the stream would end, and
// Nomad would drop every GPU for good.
func TestNothingButUTF8ReachesNomad(t *testing.T) {
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	gms(t, filepath.Join(dir, "gms_GPU-1_weights.sock"), &wire.GetRuntimeStateResponse{State: "R\xffO"})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gms_GPU-1_\xff.sock"), nil, 0o600))
	codec := encoding.GetCodecV2(grpcproto.Name) // what gRPC sends with
	sendable := func(m any) {
		t.Helper()
		_, err := codec.Marshal(m)
		require.NoError(t, err)
	}
	src := &devicetest.Source{}
	bad := sick(h100("GPU-2", ""), "said \xff")
	bad.Model, bad.DriverVersion = "H\xff", "5\xff"
	src.Set(h100("GPU-1", ""), bad)
	src.SetSamples(map[string]deviceplugin.Sample{"GPU-1": {}, "GPU-2": {}})
	p := configured(t, src, fmt.Sprintf("gms_socket_dir = %q\nfingerprint_period = \"100ms\"", dir))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fp, err := p.Fingerprint(ctx)
	require.NoError(t, err)
	valid := func(resp *device.FingerprintResponse) {
		t.Helper()
		for _, g := range resp.Devices {
			sendable(&deviceproto.DeviceGroup{DeviceName: g.Name, Attributes: structs.ConvertStructAttributeMap(g.Attributes)})
			for _, d := range g.Devices {
				sendable(&deviceproto.DetectedDevice{ID: d.ID, HealthDescription: d.HealthDesc})
			}
		}
	}
	valid(<-fp)
	stats, err := p.Stats(ctx, time.Hour)
	require.NoError(t, err)
	for _, g := range (<-stats).Groups {
		for _, s := range g.InstanceStats {
			sendable(structs.ConvertStructStatObject(s.Stats))
		}
	}
	src.Fail(errors.New("the driver printed \xff"))
	failed := <-fp
	require.Contains(t, health(failed)["GPU-1#0"], "the driver printed ?")
	valid(failed)
}

// An address that is taken costs the metrics, and nothing else.
func TestMetricsAddressIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	src := &devicetest.Source{}
	src.Set(h100("GPU-1", ""))
	ctx, cancel := context.WithCancel(t.Context())
	ch, err := configured(t, src, fmt.Sprintf("metrics = %q", taken.Addr())).Fingerprint(ctx)
	require.NoError(t, err)
	require.Len(t, health(<-ch), 2)
	cancel()
	_, open := <-ch
	require.False(t, open)
}
