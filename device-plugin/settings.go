package deviceplugin

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Bounds and defaults of the settings.
const (
	// DefaultSeats lets a HOT pair share a GPU with WARM pairs and engines of other models. A seat
	// costs nothing.
	DefaultSeats = 8
	// DefaultFingerprintPeriod is short enough that a sick GPU stops getting
	// work soon, and long enough to cost nothing.
	DefaultFingerprintPeriod = 5 * time.Second
	// MinFingerprintPeriod keeps a typing mistake from turning the plugin into
	// a busy loop; tests use it.
	MinFingerprintPeriod = 100 * time.Millisecond
	// DefaultGMSSocketDir is where lockd and `remuda gms` keep their sockets on a node.
	DefaultGMSSocketDir = "/run/remuda"
	// DefaultHealthDir is emptied by a reboot, which resets every GPU.
	DefaultHealthDir = "/run/remuda-device"
	// DefaultSimDir is where the memory of simulated GPUs is counted.
	DefaultSimDir = "/run/remuda-sim"
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
	// IgnoredXIDs are XIDs that say nothing against a GPU on this node.
	IgnoredXIDs []uint64
	// GPUs holds the gpu blocks by the UUID that they name.
	GPUs map[string]GPUOverride
	// NVMLLibrary is the path of NVIDIA's management library; empty for the
	// one that the dynamic linker finds.
	NVMLLibrary string
	// HealthDir is the directory in which the plugin keeps what is against a GPU
	// over a restart of the plugin or of Nomad, in one file for each GPU. To
	// declare a GPU healthy remove its file. "" keeps nothing.
	HealthDir string
	// Metrics is the address at which the plugin serves Prometheus metrics, as
	// "127.0.0.1:9835"; empty for none.
	Metrics string
	// Containers is how the GPUs get into containers.
	Containers ContainerMode
	// GMSSocketDir is handed to tasks as GMS_SOCKET_DIR. It is
	// DefaultGMSSocketDir unless it was set; set to "" the variable is left out.
	GMSSocketDir string
	// Seed varies the UUIDs of simulated GPUs from node to node.
	Seed string
	// StateFile makes simulated GPUs sick or absent while the plugin runs.
	StateFile string
	// SimDir is where the memory of simulated GPUs is counted, and is handed to tasks as
	// REMUDA_SIM_GPU_DIR.
	SimDir string
	// Simulate holds the simulate blocks in the order of the file. With any of
	// them, the node's GPUs are the simulated ones and NVML is left alone.
	Simulate []Simulate
}

// ContainerMode is how GPUs get into containers.
type ContainerMode string

// The container modes.
const (
	// ContainersRuntime leaves it to NVIDIA's container runtime, which goes by
	// NVIDIA_VISIBLE_DEVICES. Nomad's docker driver asks for that runtime
	// wherever the variable is set.
	ContainersRuntime ContainerMode = "runtime"
	// ContainersCDI is the same with CDI names in the variable, for a runtime
	// that is set to CDI.
	ContainersCDI ContainerMode = "cdi"
	// ContainersNodes hands over the device files themselves and leaves
	// NVIDIA_VISIBLE_DEVICES out, for hosts without NVIDIA's runtime. The
	// driver's libraries are then the image's or the job's affair.
	ContainersNodes ContainerMode = "nodes"
)

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
	"health_dir": hclspec.NewDefault(
		hclspec.NewAttr("health_dir", "string", false),
		hclspec.NewLiteral(fmt.Sprintf("%q", DefaultHealthDir))),
	"ignored_xids": hclspec.NewDefault(
		hclspec.NewAttr("ignored_xids", "list(number)", false), hclspec.NewLiteral("[]")),
	"nvml_library": hclspec.NewAttr("nvml_library", "string", false),
	"metrics":      hclspec.NewAttr("metrics", "string", false),
	"containers": hclspec.NewDefault(
		hclspec.NewAttr("containers", "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", ContainersRuntime))),
	"gpu": hclspec.NewBlockList("gpu", hclspec.NewObject(map[string]*hclspec.Spec{
		"id":            hclspec.NewAttr("id", "string", true),
		"seats":         hclspec.NewAttr("seats", "number", false),
		"nvlink_clique": hclspec.NewAttr("nvlink_clique", "string", false),
	})),
	"seed":       hclspec.NewAttr("seed", "string", false),
	"state_file": hclspec.NewAttr("state_file", "string", false),
	"sim_dir": hclspec.NewDefault(
		hclspec.NewAttr("sim_dir", "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", DefaultSimDir))),
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
	IgnoredXIDs       []any          `codec:"ignored_xids"`
	NVMLLibrary       string         `codec:"nvml_library"`
	HealthDir         string         `codec:"health_dir"`
	Metrics           string         `codec:"metrics"`
	Containers        string         `codec:"containers"`
	GPUs              []wireGPU      `codec:"gpu"`
	GMSSocketDir      string         `codec:"gms_socket_dir"`
	Seed              string         `codec:"seed"`
	StateFile         string         `codec:"state_file"`
	SimDir            string         `codec:"sim_dir"`
	Simulate          []wireSimulate `codec:"simulate"`
}

type wireGPU struct {
	ID     string `codec:"id"`
	Seats  any    `codec:"seats"`
	Clique string `codec:"nvlink_clique"`
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
		HealthDir:         DefaultHealthDir,
		SimDir:            DefaultSimDir,
		Containers:        string(ContainersRuntime),
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
			errs = append(errs, fmt.Errorf("%s is %v: must be a whole number", name, *f))
			return nil
		}
		n := int(*f)
		return &n
	}
	s := Settings{
		Seats:             DefaultSeats,
		FingerprintPeriod: DefaultFingerprintPeriod,
		IgnoredGPUs:       wire.IgnoredGPUs,
		NVMLLibrary:       wire.NVMLLibrary,
		HealthDir:         wire.HealthDir,
		Metrics:           wire.Metrics,
		Containers:        ContainerMode(wire.Containers),
		GMSSocketDir:      wire.GMSSocketDir,
		Seed:              wire.Seed,
		StateFile:         wire.StateFile,
		SimDir:            wire.SimDir,
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
		errs = append(errs, fmt.Errorf("fingerprint_period is %q: must be a duration, such as \"5s\"", wire.FingerprintPeriod))
	case period < MinFingerprintPeriod:
		errs = append(errs, fmt.Errorf("fingerprint_period is %s: must be at least %s", period, MinFingerprintPeriod))
	default:
		s.FingerprintPeriod = period
	}
	for i, uuid := range wire.IgnoredGPUs {
		if err := checkUUID(uuid); err != nil {
			errs = append(errs, fmt.Errorf("ignored_gpu_ids[%d]: %w (must be a GPU's UUID, not a seat)", i, err))
		}
	}
	for i, v := range wire.IgnoredXIDs {
		name := fmt.Sprintf("ignored_xids[%d]", i)
		switch n := whole(name, v); {
		case n != nil && *n < 1:
			errs = append(errs, fmt.Errorf("%s is %d: must be an XID, such as 63", name, *n))
		case n != nil:
			s.IgnoredXIDs = append(s.IgnoredXIDs, uint64(*n))
		}
	}
	for i, w := range wire.GPUs {
		field := func(name string) string { return fmt.Sprintf("gpu[%d].%s", i, name) }
		var o GPUOverride
		if err := checkUUID(w.ID); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w (must be a GPU's UUID, not a seat)", field("id"), err))
		} else if _, twice := s.GPUs[w.ID]; twice {
			errs = append(errs, fmt.Errorf("%s is %q: duplicate of another gpu block", field("id"), w.ID))
		}
		if n := whole(field("seats"), w.Seats); n != nil {
			o.Seats = *n
			if err := CheckSeats(*n); err != nil {
				errs = append(errs, fmt.Errorf("gpu[%d].%w", i, err))
			}
		}
		if o.Clique = w.Clique; o.Clique != strings.TrimSpace(o.Clique) {
			errs = append(errs, fmt.Errorf("%s is %q: must be a label without spaces around it", field("nvlink_clique"), o.Clique))
		}
		if s.GPUs == nil {
			s.GPUs = map[string]GPUOverride{}
		}
		s.GPUs[w.ID] = o
	}
	if strings.Contains(s.NVMLLibrary, "/") && !filepath.IsAbs(s.NVMLLibrary) {
		errs = append(errs, fmt.Errorf("nvml_library is %q: must be an absolute path, or a name such as libnvidia-ml.so.1", s.NVMLLibrary))
	}
	if s.NVMLLibrary != "" && len(wire.Simulate) > 0 {
		errs = append(errs, errors.New("nvml_library is set together with simulate blocks: a node's GPUs are either real or simulated"))
	}
	if s.Metrics != "" {
		if _, port, err := net.SplitHostPort(s.Metrics); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("metrics is %q: must be an address, such as \"127.0.0.1:9835\"", s.Metrics))
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			errs = append(errs, fmt.Errorf("metrics is %q: port is %s: must be a number up to 65535", s.Metrics, port))
		}
	}
	switch s.Containers {
	case ContainersRuntime, ContainersCDI, ContainersNodes:
	default:
		errs = append(errs, fmt.Errorf("containers is %q: must be %q, %q or %q", s.Containers, ContainersRuntime, ContainersCDI, ContainersNodes))
	}
	if s.GMSSocketDir != "" && !filepath.IsAbs(s.GMSSocketDir) {
		errs = append(errs, fmt.Errorf("gms_socket_dir is %q: must be an absolute path, or \"\" to leave %s out", s.GMSSocketDir, EnvGMSSocketDir))
	}
	if s.HealthDir != "" && !filepath.IsAbs(s.HealthDir) {
		errs = append(errs, fmt.Errorf("health_dir is %q: must be an absolute path, or \"\" to keep nothing", s.HealthDir))
	}
	if s.StateFile != "" && !filepath.IsAbs(s.StateFile) {
		errs = append(errs, fmt.Errorf("state_file is %q: must be an absolute path", s.StateFile))
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
			return nil, errors.New("must be a number")
		}
		f = parsed
	default:
		return nil, fmt.Errorf("must be a number, not %T", v)
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("must be a finite number")
	}
	return &f, nil
}

// CheckSeats says whether n is a possible number of seats.
func CheckSeats(n int) error {
	if n < 1 || n > MaxSeats {
		return fmt.Errorf("seats is %d: must be 1 to %d", n, MaxSeats)
	}
	return nil
}
