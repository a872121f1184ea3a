package gpu

import "strings"

// Versions that simulated GPUs report unless a simulate block says otherwise:
// one long-lived data-centre driver branch and the CUDA that it supports.
const (
	defaultDriverVersion = "570.86.15"
	defaultCUDAVersion   = "12.8"
)

// model is what the simulation knows of a product.
type model struct {
	// short is the name that a simulate block uses.
	short string
	// name is what the driver calls the product.
	name string
	// memoryMiB is what the driver reports as total memory, which is less than
	// the number on the box.
	memoryMiB    int64
	capability   float64
	architecture string
	powerWatts   int64
	coreMHz      int64
	memoryMHz    int64
	// nvlink says whether the product has NVLink at all.
	nvlink bool
}

// models are NVIDIA's published figures for the products that people serve
// models on, memory as nvidia-smi shows it.
var models = []model{
	{"A100", "NVIDIA A100-SXM4-80GB", 81920, 8.0, "ampere", 400, 1410, 1593, true},
	{"A100-40GB", "NVIDIA A100-SXM4-40GB", 40960, 8.0, "ampere", 400, 1410, 1215, true},
	{"B200", "NVIDIA B200", 183359, 10.0, "blackwell", 1000, 1965, 3996, true},
	{"H100", "NVIDIA H100 80GB HBM3", 81559, 9.0, "hopper", 700, 1980, 2619, true},
	{"H200", "NVIDIA H200", 143771, 9.0, "hopper", 700, 1980, 3201, true},
	{"L4", "NVIDIA L4", 23034, 8.9, "ada", 72, 2040, 6251, false},
	{"L40S", "NVIDIA L40S", 46068, 8.9, "ada", 350, 2520, 9001, false},
}

// lookup finds a product by its short name or its full one, in any case.
func lookup(name string) (model, bool) {
	for _, m := range models {
		if strings.EqualFold(name, m.short) || strings.EqualFold(name, m.name) {
			return m, true
		}
	}
	return model{}, false
}

// Models lists the short names that a simulate block may use without saying
// how much memory the GPU has.
func Models() []string {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.short
	}
	return names
}
