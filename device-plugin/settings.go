package deviceplugin

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Bounds and defaults of the settings.
const (
	// DefaultSeats lets a primary and its shadow, or a HOT and a WARM replica,
	// share a GPU (DESIGN section 3).
	DefaultSeats = 2
	// DefaultFingerprintPeriod is short enough that a sick GPU stops getting
	// work soon, and long enough to cost nothing.
	DefaultFingerprintPeriod = 5 * time.Second
	// MinFingerprintPeriod keeps a typing mistake from turning the plugin into
	// a busy loop; tests use it.
	MinFingerprintPeriod = 100 * time.Millisecond
	// DefaultGMSSocketDir is where `remuda gms` keeps its sockets on a node.
	DefaultGMSSocketDir = "/run/remuda/gms"
)

// Settings is the plugin's configuration as an operator wrote it, checked and
// with its defaults filled in.
type Settings struct {
	// Seats is how many seats a GPU offers where nothing else says otherwise.
	Seats int
	// FingerprintPeriod is the time from one look at the GPUs to the next.
	FingerprintPeriod time.Duration
	// IgnoredGPUs are UUIDs that are never published.
	IgnoredGPUs []string
	// GMSSocketDir is handed to tasks as GMS_SOCKET_DIR. It is
	// DefaultGMSSocketDir unless it was set; set to "" the variable is left out.
	GMSSocketDir string
	// Seed varies the UUIDs of simulated GPUs from node to node.
	Seed string
	// StateFile makes simulated GPUs sick or absent while the plugin runs.
	StateFile string
	// Simulate holds the simulate blocks in the order of the file.
	Simulate []Simulate
}

// Simulate is one simulate block: some simulated GPUs of one model. The zero
// value of a field stands for "not set"; whether a value makes sense is for
// the simulation to say.
type Simulate struct {
	// Model is a short name that the simulation knows, as "H100", or any other
	// product name.
	Model string
	// Memory is the size of each GPU's memory with its unit, as "80GiB".
	Memory string
	// Count is how many GPUs there are.
	Count *int
	// Seats is how many seats each of them offers.
	Seats *int
	// NVLinkCliqueSize is how many of them NVLink joins into each clique.
	NVLinkCliqueSize *int
	// ComputeCapability, Architecture, DriverVersion, CUDAVersion and
	// PowerLimitWatts replace what the simulation knows of the model.
	ComputeCapability *float64
	Architecture      string
	DriverVersion     string
	CUDAVersion       string
	PowerLimitWatts   *int
}

// configSpec is the schema of the plugin's config block. Numbers without a
// default come as null where they are not set.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"seats": hclspec.NewDefault(
		hclspec.NewAttr("seats", "number", false), hclspec.NewLiteral(fmt.Sprint(DefaultSeats))),
	"fingerprint_period": hclspec.NewDefault(
		hclspec.NewAttr("fingerprint_period", "string", false),
		hclspec.NewLiteral(fmt.Sprintf("%q", DefaultFingerprintPeriod))),
	"ignored_gpu_ids": hclspec.NewDefault(
		hclspec.NewAttr("ignored_gpu_ids", "list(string)", false), hclspec.NewLiteral("[]")),
	"gms_socket_dir": hclspec.NewDefault(
		hclspec.NewAttr("gms_socket_dir", "string", false),
		hclspec.NewLiteral(fmt.Sprintf("%q", DefaultGMSSocketDir))),
	"seed":       hclspec.NewAttr("seed", "string", false),
	"state_file": hclspec.NewAttr("state_file", "string", false),
	"simulate": hclspec.NewBlockList("simulate", hclspec.NewObject(map[string]*hclspec.Spec{
		"model":              hclspec.NewAttr("model", "string", true),
		"memory":             hclspec.NewAttr("memory", "string", false),
		"count":              hclspec.NewAttr("count", "number", false),
		"seats":              hclspec.NewAttr("seats", "number", false),
		"nvlink_clique_size": hclspec.NewAttr("nvlink_clique_size", "number", false),
		"compute_capability": hclspec.NewAttr("compute_capability", "number", false),
		"architecture":       hclspec.NewAttr("architecture", "string", false),
		"driver_version":     hclspec.NewAttr("driver_version", "string", false),
		"cuda_version":       hclspec.NewAttr("cuda_version", "string", false),
		"power_limit_watts":  hclspec.NewAttr("power_limit_watts", "number", false),
	})),
})

// wireSettings is Settings as Nomad sends it. A number comes as an integer, as
// a float, as a decimal string where a float would not hold it exactly (8.6),
// or as nil where it is not set.
type wireSettings struct {
	Seats             any            `codec:"seats"`
	FingerprintPeriod string         `codec:"fingerprint_period"`
	IgnoredGPUs       []string       `codec:"ignored_gpu_ids"`
	GMSSocketDir      string         `codec:"gms_socket_dir"`
	Seed              string         `codec:"seed"`
	StateFile         string         `codec:"state_file"`
	Simulate          []wireSimulate `codec:"simulate"`
}

type wireSimulate struct {
	Model             string `codec:"model"`
	Memory            string `codec:"memory"`
	Count             any    `codec:"count"`
	Seats             any    `codec:"seats"`
	NVLinkCliqueSize  any    `codec:"nvlink_clique_size"`
	ComputeCapability any    `codec:"compute_capability"`
	Architecture      string `codec:"architecture"`
	DriverVersion     string `codec:"driver_version"`
	CUDAVersion       string `codec:"cuda_version"`
	PowerLimitWatts   any    `codec:"power_limit_watts"`
}

// decodeSettings reads the configuration that Nomad sent. The settings are
// filled in as far as they are good even where an error, which joins one error
// for each bad field, comes with them.
func decodeSettings(config []byte) (Settings, error) {
	wire := wireSettings{
		FingerprintPeriod: DefaultFingerprintPeriod.String(),
		GMSSocketDir:      DefaultGMSSocketDir,
	}
	if len(config) > 0 {
		if err := base.MsgPackDecode(config, &wire); err != nil {
			return Settings{}, fmt.Errorf("decode: %w", err)
		}
	}
	var errs []error
	number := func(name string, v any) *float64 {
		f, err := toFloat(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %v: %w", name, v, err))
		}
		return f
	}
	whole := func(name string, v any) *int {
		f := number(name, v)
		if f == nil {
			return nil
		}
		if *f != math.Trunc(*f) || math.Abs(*f) > math.MaxInt32 {
			errs = append(errs, fmt.Errorf("%s %v: want a whole number", name, *f))
			return nil
		}
		n := int(*f)
		return &n
	}
	s := Settings{
		Seats:             DefaultSeats,
		FingerprintPeriod: DefaultFingerprintPeriod,
		IgnoredGPUs:       wire.IgnoredGPUs,
		GMSSocketDir:      wire.GMSSocketDir,
		Seed:              wire.Seed,
		StateFile:         wire.StateFile,
	}
	if n := whole("seats", wire.Seats); n != nil {
		s.Seats = *n
		if err := CheckSeats(*n); err != nil {
			errs = append(errs, err)
		}
	}
	period, err := time.ParseDuration(wire.FingerprintPeriod)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("fingerprint_period %q: want a duration, as \"5s\"", wire.FingerprintPeriod))
	case period < MinFingerprintPeriod:
		errs = append(errs, fmt.Errorf("fingerprint_period %s: want at least %s", period, MinFingerprintPeriod))
	default:
		s.FingerprintPeriod = period
	}
	for i, uuid := range wire.IgnoredGPUs {
		if err := checkUUID(uuid); err != nil {
			errs = append(errs, fmt.Errorf("ignored_gpu_ids[%d]: %w (want a GPU's UUID, not a seat)", i, err))
		}
	}
	if s.GMSSocketDir != "" && !filepath.IsAbs(s.GMSSocketDir) {
		errs = append(errs, fmt.Errorf("gms_socket_dir %q: want an absolute path, or \"\" to leave %s out", s.GMSSocketDir, EnvGMSSocketDir))
	}
	if s.StateFile != "" && !filepath.IsAbs(s.StateFile) {
		errs = append(errs, fmt.Errorf("state_file %q: want an absolute path", s.StateFile))
	}
	for i, w := range wire.Simulate {
		field := func(name string) string { return fmt.Sprintf("simulate[%d].%s", i, name) }
		s.Simulate = append(s.Simulate, Simulate{
			Model:             w.Model,
			Memory:            w.Memory,
			Count:             whole(field("count"), w.Count),
			Seats:             whole(field("seats"), w.Seats),
			NVLinkCliqueSize:  whole(field("nvlink_clique_size"), w.NVLinkCliqueSize),
			ComputeCapability: number(field("compute_capability"), w.ComputeCapability),
			Architecture:      w.Architecture,
			DriverVersion:     w.DriverVersion,
			CUDAVersion:       w.CUDAVersion,
			PowerLimitWatts:   whole(field("power_limit_watts"), w.PowerLimitWatts),
		})
	}
	return s, errors.Join(errs...)
}

// toFloat reads a number in any of the forms in which Nomad sends one; nil
// stays nil.
func toFloat(v any) (*float64, error) {
	var f float64
	switch v := v.(type) {
	case nil:
		return nil, nil
	case int64:
		f = float64(v)
	case uint64:
		f = float64(v)
	case float64:
		f = v
	case string:
		parsed, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return nil, errors.New("want a number")
		}
		f = parsed
	default:
		return nil, fmt.Errorf("want a number, got %T", v)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("want a finite number")
	}
	return &f, nil
}

// CheckSeats says whether n is a possible number of seats.
func CheckSeats(n int) error {
	if n < 1 || n > MaxSeats {
		return fmt.Errorf("seats %d: want 1 to %d", n, MaxSeats)
	}
	return nil
}
