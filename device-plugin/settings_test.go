package deviceplugin_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/testkit/devicetest"
)

// open configures a plugin with what encoded returns, and returns the settings
// that its source was opened with. openErr is the source's own complaint.
func open(t *testing.T, encoded func(*deviceplugin.Plugin) []byte, openErr error) (deviceplugin.Settings, error) {
	t.Helper()
	var got deviceplugin.Settings
	p, err := deviceplugin.New(deviceplugin.Config{
		Logger: hclog.NewNullLogger(),
		Open: func(s deviceplugin.Settings, _ hclog.Logger) (deviceplugin.Source, error) {
			got = s
			return &devicetest.Source{}, openErr
		},
	})
	require.NoError(t, err)
	err = p.SetConfig(&base.Config{PluginConfig: encoded(p)})
	return got, err
}

func body(t *testing.T, text string) func(*deviceplugin.Plugin) []byte {
	return func(p *deviceplugin.Plugin) []byte {
		schema, err := p.ConfigSchema()
		require.NoError(t, err)
		return devicetest.Encode(t, schema, text)
	}
}

func TestSettings(t *testing.T) {
	n := func(i int) *int { return &i }
	f := func(x float64) *float64 { return &x }
	defaults := deviceplugin.Settings{
		Seats: 8, FingerprintPeriod: 5 * time.Second, IgnoredGPUs: []string{}, GMSSocketDir: "/run/remuda", HealthDir: "/run/remuda-device", SimDir: "/run/remuda-sim",
		Containers: deviceplugin.ContainersRuntime,
	}
	for _, tc := range []struct {
		name, text string
		want       func(*deviceplugin.Settings)
	}{
		{name: "nothing set", want: func(*deviceplugin.Settings) {}},
		{name: "everything set", text: `
			seats              = 4
			fingerprint_period = "250ms"
			ignored_gpu_ids    = ["GPU-1", "GPU-2"]
			gms_socket_dir     = "/srv/gms"
			seed               = "node-7"
			state_file         = "/srv/gpus.json"
			sim_dir            = "/srv/sim"
			health_dir         = "/srv/health"
			metrics            = "127.0.0.1:9835"
			containers         = "cdi"
			ignored_xids       = [63, 4242]
			gpu {
				id            = "GPU-1"
				seats         = 7
				nvlink_clique = "left"
			}
			gpu { id = "MIG-2" }
			simulate {
				model              = "Mine"
				memory             = "16GiB"
				count              = 8
				seats              = 3
				nvlink_clique_size = 4
				compute_capability = 8.6
				architecture       = "ampere"
				driver_version     = "1.2"
				cuda_version       = "3.4"
				power_limit_watts  = 90
			}
			simulate { model = "H100" }`,
			want: func(s *deviceplugin.Settings) {
				*s = deviceplugin.Settings{
					Seats: 4, FingerprintPeriod: 250 * time.Millisecond, IgnoredGPUs: []string{"GPU-1", "GPU-2"},
					GMSSocketDir: "/srv/gms", HealthDir: "/srv/health", Seed: "node-7", StateFile: "/srv/gpus.json", SimDir: "/srv/sim",
					Metrics: "127.0.0.1:9835", Containers: deviceplugin.ContainersCDI, IgnoredXIDs: []uint64{63, 4242},
					GPUs: map[string]deviceplugin.GPUOverride{"GPU-1": {Seats: 7, Clique: "left"}, "MIG-2": {}},
					Simulate: []deviceplugin.Simulate{
						{Model: "Mine", Memory: "16GiB", Count: n(8), Seats: n(3), NVLinkCliqueSize: n(4),
							ComputeCapability: f(8.6), Architecture: "ampere", DriverVersion: "1.2",
							CUDAVersion: "3.4", PowerLimitWatts: n(90)},
						{Model: "H100"},
					},
				}
			}},
		{name: "zero is not the same as unset", text: `simulate {
				model = "H100"
				count = 0
				seats = 0
			}`,
			want: func(s *deviceplugin.Settings) {
				s.Simulate = []deviceplugin.Simulate{{Model: "H100", Count: n(0), Seats: n(0)}}
			}},
		{name: "NVML", text: `nvml_library = "/opt/libnvidia-ml.so.1"`, want: func(s *deviceplugin.Settings) { s.NVMLLibrary = "/opt/libnvidia-ml.so.1" }},
		{name: "no health", text: `health_dir = ""`, want: func(s *deviceplugin.Settings) { s.HealthDir = "" }},
		{name: "no GMS", text: `gms_socket_dir = ""`, want: func(s *deviceplugin.Settings) { s.GMSSocketDir = "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := defaults
			tc.want(&want)
			got, err := open(t, body(t, tc.text), nil)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestSettingsWithoutConfig(t *testing.T) {
	got, err := open(t, func(*deviceplugin.Plugin) []byte { return nil }, nil)
	require.NoError(t, err)
	require.Equal(t, 8, got.Seats)
	require.Equal(t, 5*time.Second, got.FingerprintPeriod)
	require.Equal(t, "/run/remuda", got.GMSSocketDir)
}

func TestSettingsNameEveryBadField(t *testing.T) {
	_, err := open(t, body(t, `
		seats              = 65
		fingerprint_period = "soon"
		ignored_gpu_ids    = ["GPU-1", "GPU-1#0"]
		gms_socket_dir     = "gms"
		health_dir         = "health"
		state_file         = "gpus.json"
		metrics            = "9835"
		containers         = "podman"
		ignored_xids       = [63, 0, 1.5]
		nvml_library       = "lib/nvml.so"
		gpu {
			id    = "GPU-1"
			seats = 0
		}
		gpu {
			id            = "GPU-1"
			nvlink_clique = " left"
		}
		gpu { id = "GPU-1#0" }
		simulate {
			model = "H100"
			count = 1.5
			seats = 1e12
			nvlink_clique_size = 0.1
		}`), errors.New("simulate[0].memory: bad"))
	require.Error(t, err)
	for _, want := range []string{
		`plugin "remuda-device" config`,
		"seats is 65: must be 1 to 64",
		`fingerprint_period is "soon"`,
		"ignored_gpu_ids[1]",
		`gms_socket_dir is "gms"`,
		`health_dir is "health"`,
		`state_file is "gpus.json"`,
		`metrics is "9835"`, `containers is "podman"`, "ignored_xids[1] is 0", "ignored_xids[2] is 1.5", `nvml_library is "lib/nvml.so"`,
		"nvml_library is set together with simulate blocks", "gpu[0].seats is 0", `gpu[1].id is "GPU-1": duplicate`,
		`gpu[1].nvlink_clique is " left"`, "gpu[2].id",
		"simulate[0].count is 1.5: must be a whole number",
		"simulate[0].seats is 1e+12: must be a whole number",
		"simulate[0].nvlink_clique_size is 0.1: must be a whole number",
		"simulate[0].memory: bad",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "\n", "Nomad shows one line")
	_, err = open(t, body(t, `fingerprint_period = "1ms"`), nil)
	require.ErrorContains(t, err, "at least 100ms")
	_, err = open(t, body(t, `metrics = "localhost:99999"`), nil)
	require.ErrorContains(t, err, "port is 99999")
	_, err = open(t, func(*deviceplugin.Plugin) []byte { return []byte{0xc1, 0xff} }, nil)
	require.ErrorContains(t, err, "decode")
}

// A configuration that is refused leaves the one before it in force.
func TestRefusedConfigChangesNothing(t *testing.T) {
	src := &devicetest.Source{}
	src.Set(h100("GPU-1", ""))
	p := configured(t, src, "")
	require.Error(t, p.SetConfig(&base.Config{PluginConfig: body(t, "seats = 0")(p)}))
	_, err := p.Reserve([]string{"GPU-1#1"})
	require.NoError(t, err)
}
