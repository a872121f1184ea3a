package gpu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/sim/gpu"
)

func n(i int) *int { return &i }

func list(t testing.TB, cfg gpu.Config) []deviceplugin.GPU {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.DefaultSeats == 0 {
		cfg.DefaultSeats = deviceplugin.DefaultSeats
	}
	cfg.MemoryDir = filepath.Join(t.TempDir(), "gpus")
	src, err := gpu.New(cfg)
	require.NoError(t, err)
	gpus, err := src.GPUs(t.Context())
	require.NoError(t, err)
	return gpus
}

func TestKnownModel(t *testing.T) {
	gpus := list(t, gpu.Config{Blocks: []deviceplugin.Simulate{{Model: "h100", Count: n(2)}}})
	want := deviceplugin.GPU{
		UUID:  "GPU-00000000-0000-4000-8000-000000000000",
		Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeCapability: 9, Architecture: "hopper",
		DriverVersion: "570.86.15", CUDAVersion: "12.8", PowerLimitWatts: 700, CoreClockMHz: 1980, MemoryClockMHz: 2619,
		PCIBusID: "f000:00:00.0", Seats: 8, Simulated: true,
	}
	require.Equal(t, want, gpus[0])
	want.UUID, want.PCIBusID = "GPU-00000000-0000-4000-8000-000000000001", "f000:01:00.0"
	require.Equal(t, want, gpus[1])
}

func TestEveryKnownModelIsComplete(t *testing.T) {
	require.Subset(t, gpu.Models(), []string{"A100", "B200", "H100", "H200", "L40S"})
	for _, short := range gpu.Models() {
		g := list(t, gpu.Config{Blocks: []deviceplugin.Simulate{{Model: short}}})[0]
		require.Equal(t, g, list(t, gpu.Config{Blocks: []deviceplugin.Simulate{{Model: g.Model}}})[0], "by its full name")
		require.True(t, strings.HasPrefix(g.Model, "NVIDIA "), g.Model)
		require.NotZero(t, g.MemoryMiB, short)
		require.NotZero(t, g.ComputeCapability, short)
		require.NotEmpty(t, g.Architecture, short)
		require.NotZero(t, g.PowerLimitWatts, short)
		require.NotZero(t, g.CoreClockMHz, short)
		require.NotZero(t, g.MemoryClockMHz, short)
	}
}

func TestOverridesAndUnknownModels(t *testing.T) {
	cc := 7.5
	gpus := list(t, gpu.Config{DefaultSeats: 3, Blocks: []deviceplugin.Simulate{
		{Model: "H100", Memory: "80GiB", DriverVersion: "1", CUDAVersion: "2", Architecture: "x", ComputeCapability: &cc, PowerLimitWatts: n(5)},
		{Model: "My GPU", Memory: "16GiB", Seats: n(1)},
	}})
	require.Equal(t, deviceplugin.GPU{
		UUID: gpu.UUID("", 0), Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81920, ComputeCapability: 7.5,
		Architecture: "x", DriverVersion: "1", CUDAVersion: "2", PowerLimitWatts: 5, CoreClockMHz: 1980, MemoryClockMHz: 2619,
		PCIBusID: "f000:00:00.0", Seats: 3, Simulated: true,
	}, gpus[0])
	require.Equal(t, deviceplugin.GPU{
		UUID: gpu.UUID("", 1), Model: "My GPU", MemoryMiB: 16384, DriverVersion: "570.86.15", CUDAVersion: "12.8",
		PCIBusID: "f000:01:00.0", Seats: 1, Simulated: true,
	}, gpus[1])
}

func TestCliques(t *testing.T) {
	for _, tc := range []struct {
		name   string
		blocks []deviceplugin.Simulate
		want   string
	}{
		{name: "one clique keeps the plain name", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(4)}}, want: "----"},
		{name: "as does a size that covers all", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(4), NVLinkCliqueSize: n(8)}}, want: "----"},
		{name: "no NVLink", blocks: []deviceplugin.Simulate{{Model: "L40S", Count: n(4)}}, want: "----"},
		{name: "switched off", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(2), NVLinkCliqueSize: n(0)}}, want: "--"},
		{name: "a clique of one is none", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(2), NVLinkCliqueSize: n(1)}}, want: "--"},
		{name: "pairs", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(4), NVLinkCliqueSize: n(2)}}, want: "0011"},
		{name: "a remainder", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(5), NVLinkCliqueSize: n(2)}}, want: "00112"},
		{name: "two blocks are two cliques", blocks: []deviceplugin.Simulate{{Model: "H100", Count: n(2)}, {Model: "H100", Count: n(2)}}, want: "0011"},
		{name: "models count apart", blocks: []deviceplugin.Simulate{
			{Model: "H100", Count: n(4), NVLinkCliqueSize: n(2)}, {Model: "A100", Count: n(4), NVLinkCliqueSize: n(2)}, {Model: "H200", Count: n(2)}}, want: "00110011--"},
		{name: "linked and unlinked", blocks: []deviceplugin.Simulate{
			{Model: "H100", Count: n(2), NVLinkCliqueSize: n(0)}, {Model: "H100", Count: n(2)}}, want: "--00"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			for _, g := range list(t, gpu.Config{Blocks: tc.blocks}) {
				if g.Clique == "" {
					got += "-"
				}
				got += g.Clique
			}
			require.Equal(t, tc.want, got)
		})
	}
}

func TestConfigNamesEveryBadField(t *testing.T) {
	cc := 0.5
	_, err := gpu.New(gpu.Config{DefaultSeats: 2, Blocks: []deviceplugin.Simulate{
		{Model: " ", Memory: "1GiB"},
		{Model: "Voodoo2"},
		{Model: "H100", Memory: "many", Count: n(0), Seats: n(65), NVLinkCliqueSize: n(-1), ComputeCapability: &cc, PowerLimitWatts: n(0)},
		{Model: "L40S"},
		{Model: "L40S", Memory: "1GiB", Count: n(3)},
		{Model: "H100", Count: n(250)},
		{Model: "H200", Count: n(10)},
	}})
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	for _, want := range []string{
		`Logger is missing`,
		`simulate[0].model is ""`,
		`simulate[1].memory is missing: model "Voodoo2" is not one of A100`,
		`simulate[2].memory "many"`,
		`simulate[2].count is 0: must be 1 to 256`,
		`simulate[2].seats is 65: must be 1 to 64`,
		`simulate[2].nvlink_clique_size is -1`,
		`simulate[2].compute_capability is 0.5`,
		`simulate[2].power_limit_watts is 0`,
		`simulate[4]: its GPUs share the device group "NVIDIA L40S" with those of simulate[3]`,
		`simulate[6].count is 10: a node can simulate at most 256`,
	} {
		require.Contains(t, err.Error(), want)
	}
	require.Len(t, lines, 11, "one error for each: %s", err)
}

func TestNoBlocksNoGPUs(t *testing.T) {
	require.Empty(t, list(t, gpu.Config{}))
}

var uuidForm = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestUUID(t *testing.T) {
	require.Equal(t, "GPU-00000000-0000-4000-8000-000000000000", gpu.UUID("", 0))
	require.Equal(t, "GPU-00000000-0000-4000-8000-0000000000ff", gpu.UUID("", 255))
	require.Equal(t, "GPU-be6dffdb-ac9f-4dd2-a737-88ecd08ea424", gpu.UUID("node-1", 0), "UUIDs never change between versions")
	seen := map[string]string{}
	for _, seed := range []string{"", "a", "b", "a\x000", "node-1"} {
		for i := range gpu.MaxGPUs {
			u := gpu.UUID(seed, i)
			require.Regexp(t, uuidForm, u)
			require.Empty(t, seen[u], "%q %d", seed, i)
			seen[u] = fmt.Sprintf("%q %d", seed, i)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want int64 // 0: an error
	}{
		{"80GiB", 81920}, {"81559MiB", 81559}, {"80 GiB", 81920}, {"1.5GiB", 1536}, {"1TiB", 1 << 20},
		{"80GB", 76293}, {"1000MB", 953}, {"1TB", 953674}, {"0.5MiB", 0}, {"0GiB", 0},
		{"", 0}, {"80", 0}, {"GiB", 0}, {"80gib", 0}, {"-1GiB", 0}, {"1e3GiB", 0}, {"0x10GiB", 0}, {"1/2GiB", 0},
		{"1_0GiB", 0}, {"1..5GiB", 0}, {".GiB", 0}, {" 80GiB", 0}, {"80GiB ", 0}, {"99999999999999999999TiB", 0},
		{"999999999999999999999999TiB", 0}, {"80KiB", 0},
	} {
		got, err := gpu.ParseMemory(tc.in)
		if tc.want == 0 {
			require.Error(t, err, "%q gave %d", tc.in, got)
			require.ErrorContains(t, err, fmt.Sprintf("%q", tc.in))
			continue
		}
		require.NoError(t, err, tc.in)
		require.Equal(t, tc.want, got, tc.in)
	}
}

func TestStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.json")
	var log strings.Builder
	src, err := gpu.New(gpu.Config{
		Logger:       hclog.New(&hclog.LoggerOptions{Output: &log}),
		DefaultSeats: 2,
		StateFile:    path,
		MemoryDir:    filepath.Join(t.TempDir(), "gpus"),
		Blocks:       []deviceplugin.Simulate{{Model: "H100", Count: n(3)}},
	})
	require.NoError(t, err)
	zero, one := gpu.UUID("", 0), gpu.UUID("", 1)
	healthy, ill := "0: 1: 2:", "0:XID 79 2:"
	good := fmt.Sprintf(`{"gpus": {%q: {"unhealthy": "XID 79"}, %q: {"absent": true}}}`, zero, one)
	for _, step := range []struct {
		name    string
		content string
		remove  bool
		want    string
		wantLog string // in the log of this step; "": the step logs nothing
	}{
		{name: "no file", remove: true, want: healthy},
		{name: "sick and absent", content: good, want: ill, wantLog: "state file taken"},
		{name: "unchanged", content: good, want: ill},
		{name: "bad JSON keeps the last good state", content: `{"gpus":`, want: ill, wantLog: "last good state"},
		{name: "and complains once", content: `{"gpus":`, want: ill},
		{name: "unknown field", content: `{"gpu": {}}`, want: ill, wantLog: `unknown field \"gpu\"`},
		{name: "unknown GPU", content: `{"gpus": {"GPU-typo": {"absent": true}}}`, want: ill, wantLog: `GPU \"GPU-typo\" is not simulated`},
		{name: "wrong type", content: `{"gpus": {"` + zero + `": {"unhealthy": true}}}`, want: ill, wantLog: "unhealthy"},
		{name: "trailing text", content: `{"gpus": {}} {}`, want: ill, wantLog: "more after"},
		{name: "empty file", content: "", want: ill, wantLog: "EOF"},
		{name: "too large", content: `{"gpus": {` + strings.Repeat(" ", 1<<20) + `}}`, want: ill, wantLog: "larger than"},
		{name: "good again", content: good, want: ill, wantLog: "state file taken"},
		{name: "healthy", content: `{"gpus": {}}`, want: healthy, wantLog: "state file taken"},
		{name: "ill again", content: good, want: ill, wantLog: "state file taken"},
		{name: "file removed", remove: true, want: healthy, wantLog: "exists=false"},
	} {
		if step.remove {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		} else {
			require.NoError(t, os.WriteFile(path, []byte(step.content), 0o600))
		}
		log.Reset()
		gpus, err := src.GPUs(t.Context())
		require.NoError(t, err, step.name)
		var got []string
		for _, g := range gpus {
			got = append(got, g.UUID[len(g.UUID)-1:]+":"+g.Unhealthy)
		}
		require.Equal(t, step.want, strings.Join(got, " "), step.name)
		if step.wantLog == "" {
			require.Empty(t, log.String(), step.name)
		} else {
			require.Contains(t, log.String(), step.wantLog, step.name)
			require.Equal(t, 1, strings.Count(log.String(), "\n"), step.name)
		}
	}
}

func TestUnreadableStateFile(t *testing.T) {
	var log strings.Builder
	src, err := gpu.New(gpu.Config{
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), DefaultSeats: 2, StateFile: t.TempDir(), MemoryDir: filepath.Join(t.TempDir(), "gpus"),
		Blocks: []deviceplugin.Simulate{{Model: "H100"}},
	})
	require.NoError(t, err)
	gpus, err := src.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus, 1)
	require.Contains(t, log.String(), "is a directory")
}
