package deviceplugin_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/devicetest"
)

func TestReserve(t *testing.T) {
	src := &devicetest.Source{}
	three := h100("GPU-3", "0000:03:00.0")
	three.Seats = 1
	src.Set(h100("GPU-b", "0000:01:00.0"), h100("GPU-a", "0000:02:00.0"), three,
		sick(h100("GPU-sick", "0000:04:00.0"), "XID 79: fallen off the bus"), h100("GPU-ignored", ""))
	p := configured(t, src, `ignored_gpu_ids = ["GPU-ignored"]`)
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
		{name: "empty ID", ids: []string{""}, wantErrs: []string{`bad seat ID ""`}},
		{name: "malformed", ids: []string{"GPU-a"}, wantErrs: []string{`"GPU-a"`, "want <GPU-UUID>#<seat>"}},
		{name: "unknown GPU", ids: []string{"GPU-x#0"}, wantErrs: []string{"GPU-x#0", "no such GPU"}},
		{name: "ignored GPU", ids: []string{"GPU-ignored#0"}, wantErrs: []string{"GPU-ignored#0", "no such GPU"}},
		{name: "seat beyond the GPU's", ids: []string{"GPU-3#1"}, wantErrs: []string{"GPU-3#1", "seats 0 to 0"}},
		{name: "twice", ids: []string{"GPU-a#0", "GPU-a#0"}, wantErrs: []string{"GPU-a#0", "twice"}},
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
				"GMS_SOCKET_DIR":         "/run/remuda/gms",
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
