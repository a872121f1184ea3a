package deviceplugin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/testkit/devicetest"
)

func TestReserve(t *testing.T) {
	src := &devicetest.Source{}
	three := h100("GPU-3", "0000:03:00.0")
	three.Seats = 1
	src.Set(h100("GPU-b", "0000:01:00.0"), h100("GPU-a", "0000:02:00.0"), three,
		sick(h100("GPU-sick", "0000:04:00.0"), "XID 79: fallen off the bus"), h100("GPU-ignored", ""))
	p := configured(t, src, `
		ignored_gpu_ids = ["GPU-ignored"]`)
	for _, tc := range []struct {
		name     string
		ids      []string
		gpus     string
		seats    string
		wantErrs []string
	}{
		{name: "one seat", ids: []string{"GPU-a#1"}, gpus: "GPU-a", seats: "GPU-a#1"},
		{name: "two seats of one GPU", ids: []string{"GPU-a#1", "GPU-a#0"}, gpus: "GPU-a", seats: "GPU-a#0,GPU-a#1"},
		{name: "in the order of the bus", ids: []string{"GPU-3#0", "GPU-a#0", "GPU-b#1"},
			gpus: "GPU-b,GPU-a,GPU-3", seats: "GPU-b#1,GPU-a#0,GPU-3#0"},
		{name: "nothing", wantErrs: []string{"no device IDs", "1.11.1"}},
		{name: "empty ID", ids: []string{""}, wantErrs: []string{`invalid seat ID ""`}},
		{name: "malformed", ids: []string{"GPU-a"}, wantErrs: []string{`"GPU-a"`, "must be <GPU-UUID>#<seat>"}},
		{name: "unknown GPU", ids: []string{"GPU-x#0"}, wantErrs: []string{"GPU-x#0", "unknown GPU"}},
		{name: "ignored GPU", ids: []string{"GPU-ignored#0"}, wantErrs: []string{"GPU-ignored#0", "unknown GPU"}},
		{name: "seat beyond the GPU's", ids: []string{"GPU-3#1"}, wantErrs: []string{"GPU-3#1", "seats are 0 to 0"}},
		{name: "twice", ids: []string{"GPU-a#0", "GPU-a#0"}, wantErrs: []string{"duplicate seat GPU-a#0"}},
		{name: "unhealthy", ids: []string{"GPU-sick#0"}, wantErrs: []string{"GPU-sick#0", "XID 79"}},
		{name: "one bad among good", ids: []string{"GPU-a#0", "GPU-x#0"}, wantErrs: []string{"GPU-x#0"}},
		{name: "every bad one is named", ids: []string{"GPU-x#0", "bad", "GPU-sick#1"},
			wantErrs: []string{"GPU-x#0", `"bad"`, "GPU-sick#1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, err := p.Reserve(tc.ids)
			if tc.wantErrs != nil {
				require.ErrorIs(t, err, deviceplugin.ErrReserve)
				require.Nil(t, res)
				require.NotContains(t, err.Error(), "\n")
				for _, want := range tc.wantErrs {
					require.ErrorContains(t, err, want)
				}
				return
			}
			require.NoError(t, err)
			require.Equal(t, map[string]string{
				"NVIDIA_VISIBLE_DEVICES": tc.gpus,
				"CUDA_VISIBLE_DEVICES":   tc.gpus,
				"REMUDA_GPU_UUIDS":       tc.gpus,
				"REMUDA_SEATS":           tc.seats,
				"REMUDA_CDI_DEVICES":     "nvidia.com/gpu=" + strings.ReplaceAll(tc.gpus, ",", ",nvidia.com/gpu="),
				"GMS_SOCKET_DIR":         "/run/remuda",
			}, res.Envs)
			require.Empty(t, res.Mounts)
			require.Empty(t, res.Devices)
		})
	}
}

func TestReserveGMSSocketDir(t *testing.T) {
	src := &devicetest.Source{}
	src.Set(h100("GPU-1", ""))
	res, err := configured(t, src, `gms_socket_dir = "/srv/gms"`).Reserve([]string{"GPU-1#0"})
	require.NoError(t, err)
	require.Equal(t, "/srv/gms", res.Envs["GMS_SOCKET_DIR"])
	res, err = configured(t, src, `gms_socket_dir = ""`).Reserve([]string{"GPU-1#0"})
	require.NoError(t, err)
	require.NotContains(t, res.Envs, "GMS_SOCKET_DIR")
}

// What containers get, by mode. GPU-0 is simulated, the MIG instances are two of
// one GPU and one of another.
func TestReserveForContainers(t *testing.T) {
	simulated, whole := h100("GPU-0", "0000:00:00.0"), h100("GPU-1", "0000:01:00.0")
	simulated.Simulated = true
	whole.DeviceNodes = "/dev/nvidia1"
	mig := func(uuid, parent string, caps string) deviceplugin.GPU {
		g := h100(uuid, "0000:02:00.0")
		g.Parent, g.MIGProfile, g.Model, g.DeviceNodes = parent, "1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "/dev/nvidia2,"+caps
		return g
	}
	src := &devicetest.Source{}
	src.Set(simulated, whole, h100("GPU-2", "0000:02:00.0"),
		mig("MIG-a", "GPU-x", "/dev/nvidia-caps/nvidia-cap3"), mig("MIG-b", "GPU-x", "/dev/nvidia-caps/nvidia-cap4"), mig("MIG-c", "GPU-y", ""))
	dir := t.TempDir()
	in := func(mode string) *deviceplugin.Plugin {
		return configured(t, src, fmt.Sprintf("gms_socket_dir = %q\ncontainers = %q", dir, mode))
	}
	mount := []*device.Mount{{TaskPath: dir, HostPath: dir, ReadOnly: true}}

	res, err := in("runtime").Reserve([]string{"GPU-1#0"})
	require.NoError(t, err)
	require.Equal(t, "GPU-1", res.Envs["NVIDIA_VISIBLE_DEVICES"])
	require.Equal(t, mount, res.Mounts)
	require.Empty(t, res.Devices)

	res, err = in("cdi").Reserve([]string{"MIG-a#0", "MIG-b#0"})
	require.NoError(t, err)
	require.Equal(t, "nvidia.com/gpu=MIG-a,nvidia.com/gpu=MIG-b", res.Envs["NVIDIA_VISIBLE_DEVICES"])
	require.Equal(t, "MIG-a,MIG-b", res.Envs["CUDA_VISIBLE_DEVICES"])
	require.Empty(t, res.Devices)

	res, err = in("nodes").Reserve([]string{"MIG-a#0", "MIG-b#1"})
	require.NoError(t, err)
	require.NotContains(t, res.Envs, "NVIDIA_VISIBLE_DEVICES", "it would make docker ask for the nvidia runtime")
	require.Equal(t, mount, res.Mounts)
	var nodes []string
	for _, d := range res.Devices {
		require.Equal(t, d.HostPath, d.TaskPath)
		require.Equal(t, "rw", d.CgroupPerms)
		nodes = append(nodes, d.HostPath)
	}
	require.Subset(t, nodes, []string{"/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"})
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(nodes))), len(nodes), "each once")

	res, err = in("nodes").Reserve([]string{"GPU-0#0"})
	require.NoError(t, err)
	require.Equal(t, "GPU-0", res.Envs["NVIDIA_VISIBLE_DEVICES"])
	require.Empty(t, res.Mounts, "a simulated GPU needs nothing of the host")
	require.Empty(t, res.Devices)
	require.NotContains(t, res.Envs, "REMUDA_CDI_DEVICES")

	for _, tc := range []struct {
		ids  []string
		want string
	}{
		{[]string{"GPU-0#0", "GPU-1#0"}, "simulated and real"},
		{[]string{"GPU-1#0", "MIG-a#0"}, "MIG instances and whole GPUs"},
		{[]string{"MIG-a#0", "MIG-c#0"}, "MIG instances of different GPUs"},
	} {
		_, err := in("runtime").Reserve(tc.ids)
		require.ErrorIs(t, err, deviceplugin.ErrReserve)
		require.ErrorContains(t, err, tc.want)
	}
}

// Nomad asks a plugin that it has just restarted for a reservation before it
// asks for a fingerprint, and a GPU may break between two fingerprints.
func TestReserveLooksAgain(t *testing.T) {
	src := &devicetest.Source{}
	src.Set(h100("GPU-1", ""))
	p := configured(t, src, "")
	_, err := p.Reserve([]string{"GPU-1#0"})
	require.NoError(t, err, "without any fingerprint before")
	src.Set(sick(h100("GPU-1", ""), "XID 79"))
	_, err = p.Reserve([]string{"GPU-1#0"})
	require.ErrorContains(t, err, "XID 79")
	src.Fail(errors.New("driver gone"))
	_, err = p.Reserve([]string{"GPU-1#0"})
	require.ErrorIs(t, err, deviceplugin.ErrReserve)
	src.Set(h100("GPU-1", ""))
	_, err = p.Reserve([]string{"GPU-1#0"})
	require.NoError(t, err)
	src.Fail(errors.New("driver gone"))
	_, err = p.Reserve([]string{"GPU-1#0"})
	require.ErrorContains(t, err, "driver gone")
}

// Whatever is asked for: an answer holds exactly the seats asked for, each GPU
// once, in one order; anything else is refused.
func TestReserveProperty(t *testing.T) {
	src := &devicetest.Source{}
	src.Set(h100("GPU-0", "0000:00:00.0"), h100("GPU-1", "0000:01:00.0"), sick(h100("GPU-2", "0000:02:00.0"), "sick"))
	p := configured(t, src, "")
	all := []string{"GPU-0#0", "GPU-0#1", "GPU-1#0", "GPU-1#1"}
	pool := append(slices.Clone(all), "GPU-2#0", "GPU-3#0", "GPU-0#2", "GPU-0", "")
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.SampledFrom(pool), 0, 5).Draw(t, "ids")
		good := len(ids) > 0
		for i, id := range ids {
			good = good && slices.Contains(all, id) && !slices.Contains(ids[:i], id)
		}
		res, err := p.Reserve(ids)
		if good != (err == nil) {
			t.Fatalf("Reserve(%q): %v", ids, err)
		}
		if err != nil {
			return
		}
		sorted := slices.Sorted(slices.Values(ids))
		if got := res.Envs["REMUDA_SEATS"]; got != strings.Join(sorted, ",") {
			t.Fatalf("Reserve(%q) gave seats %q", ids, got)
		}
		var gpus []string
		for _, id := range sorted {
			if gpu, _, _ := strings.Cut(id, "#"); !slices.Contains(gpus, gpu) {
				gpus = append(gpus, gpu)
			}
		}
		for _, name := range []string{"REMUDA_GPU_UUIDS", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} {
			if got := res.Envs[name]; got != strings.Join(gpus, ",") {
				t.Fatalf("Reserve(%q) gave %s=%q", ids, name, got)
			}
		}
	})
}

// Reservations do not wait for each other. A source that does not answer its first call is waited for
// once, by all of them together.
func TestReserveWhileTheDriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &devicetest.Source{}
		src.Hang()
		p := configured(t, src, "")
		begin := time.Now()
		var asking sync.WaitGroup
		for range 5 {
			asking.Go(func() {
				_, err := p.Reserve([]string{"GPU-1#0"})
				if !errors.Is(err, deviceplugin.ErrReserve) || strings.Count(err.Error(), "deadline") != 1 {
					t.Errorf("%v: want a refusal that has its reason once", err)
				}
			})
		}
		asking.Wait()
		require.LessOrEqual(t, time.Since(begin), 10*time.Second)
	})
}

// slowFirst is a source whose first calls wait for all GPUs, but not for those that the caller needs.
type slowFirst struct{ devicetest.Source }

func (s *slowFirst) GPUs(ctx context.Context, need ...string) ([]deviceplugin.GPU, error) {
	if len(need) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Source.GPUs(ctx, need...)
}

// A reservation does not wait for a look that waits for another GPU.
func TestReserveDuringTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &slowFirst{}
		src.Set(h100("GPU-1", ""))
		p := configured(t, src, "")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		synctest.Wait()
		begin := time.Now()
		_, err = p.Reserve([]string{"GPU-1#0"})
		require.NoError(t, err)
		require.Zero(t, time.Since(begin))
	})
}
