package nvml_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/fakenvml"
)

func TestCliques(t *testing.T) {
	t.Parallel()
	dev := func(uuid, model, bus string, links ...nvml.Link) nvml.Device {
		return nvml.Device{UUID: uuid, Name: model, PCIBusID: bus, Links: links}
	}
	to := func(bus string) nvml.Link { return nvml.Link{Remote: bus} }
	sw := nvml.Link{Switch: true}
	for _, tc := range []struct {
		name    string
		devices []nvml.Device
		want    map[string]string
	}{
		{"no NVLink", []nvml.Device{dev("a", "L4", "0000:01:00.0"), dev("b", "L4", "0000:02:00.0")}, map[string]string{"a": "", "b": ""}},
		{"one switch", []nvml.Device{dev("a", "H", "0000:01:00.0", sw), dev("b", "H", "0000:02:00.0", sw)}, map[string]string{"a": "", "b": ""}},
		{"one bridge", []nvml.Device{dev("a", "A", "0000:01:00.0", to("00000000:02:00.0")), dev("b", "A", "0000:02:00.0", to("00000000:01:00.0"))},
			map[string]string{"a": "", "b": ""}},
		{"two bridges", []nvml.Device{
			dev("a", "A", "00000000:3B:00.0", to("00000000:5E:00.0")), dev("b", "A", "00000000:5E:00.0", to("00000000:3B:00.0")),
			dev("c", "A", "00000000:AF:00.0", to("00000000:D8:00.0")), dev("d", "A", "00000000:D8:00.0", to("00000000:AF:00.0"))},
			map[string]string{"a": "0000:3b:00.0", "b": "0000:3b:00.0", "c": "0000:af:00.0", "d": "0000:af:00.0"}},
		{"a bridge with its other GPU missing keeps its name", []nvml.Device{
			dev("b", "A", "00000000:5E:00.0", to("00000000:3B:00.0")), dev("c", "A", "00000000:AF:00.0", to("00000000:D8:00.0"))},
			map[string]string{"b": "0000:3b:00.0", "c": "0000:af:00.0"}},
		{"a pair and a single", []nvml.Device{
			dev("a", "A", "0000:01:00.0", to("0000:02:00.0")), dev("b", "A", "0000:02:00.0", to("0000:01:00.0")), dev("c", "A", "0000:03:00.0")},
			map[string]string{"a": "0000:01:00.0", "b": "0000:01:00.0", "c": ""}},
		{"another model is another matter", []nvml.Device{
			dev("a", "A", "0000:01:00.0", to("0000:02:00.0")), dev("b", "A", "0000:02:00.0"), dev("c", "L4", "0000:03:00.0")},
			map[string]string{"a": "", "b": "", "c": ""}},
		{"two domains across nodes", []nvml.Device{
			{UUID: "a", Name: "G", PCIBusID: "0000:01:00.0", Fabric: "f.1"}, {UUID: "b", Name: "G", PCIBusID: "0000:02:00.0", Fabric: "f.2"}},
			map[string]string{"a": "0000:01:00.0", "b": "0000:02:00.0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := map[string]string{}
			for _, g := range (nvml.Look{Devices: tc.devices}).GPUs(t.TempDir()) {
				got[g.UUID] = g.Clique
			}
			require.Equal(t, tc.want, got)
		})
	}
}

// A group that is renamed loses the seats of running allocations.
func TestCliquesSurviveLossesAndLinks(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=4", "gpu0.peer=1", "gpu1.peer=0", "gpu2.peer=3", "gpu3.peer=2")
	s := source(t, lib.Path, nil)
	cliques := func() map[string]string {
		gpus, err := s.GPUs(t.Context())
		require.NoError(t, err)
		out := map[string]string{}
		for _, g := range gpus {
			out[g.UUID] = g.Clique
		}
		return out
	}
	want := map[string]string{gpu0: "0000:1b:00.0", gpu1: "0000:1b:00.0", fakenvml.UUID(2): "0000:3b:00.0", fakenvml.UUID(3): "0000:3b:00.0"}
	require.Equal(t, want, cliques())
	lib.Set("gpu0.lost=1")
	require.Equal(t, want, cliques())
	lib.Set("count=3", "gpu0.lost=", "gpu0.peer=", "gpu1.peer=", "gpu2.peer=")
	for _, pid := range workers(t, lib.Path) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	until(t, "the last GPU to be gone", func() bool { return strings.Contains(look(t, s)[fakenvml.UUID(3)], "lost") })
	require.Equal(t, want, cliques(), "with fewer GPUs and no links at all")
}
