package gpu

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	deviceplugin "remuda/device-plugin"
)

// MaxGPUs is the most GPUs that one node may simulate: each has a PCI bus
// number of its own, which is one byte.
const MaxGPUs = 256

// pciDomain is the PCI domain of all simulated GPUs. Real machines number
// theirs from 0000 up, so Nomad never takes a simulated GPU for a device on a
// real bus when it looks for the NUMA node.
const pciDomain = "f000"

// build makes the GPUs of the simulate blocks. Its error joins one error for
// each bad field.
func build(blocks []deviceplugin.Simulate, defaultSeats int, seed string) ([]deviceplugin.GPU, error) {
	var errs []error
	var gpus []deviceplugin.GPU
	var blockOf []int // by index in gpus
	for i, b := range blocks {
		g, count, clique, err := buildBlock(b, defaultSeats)
		if err != nil {
			for _, e := range flatten(err) {
				errs = append(errs, fmt.Errorf("simulate[%d].%w", i, e))
			}
			continue
		}
		if len(gpus)+count > MaxGPUs {
			errs = append(errs, fmt.Errorf("simulate[%d].count is %d: a node can simulate at most %d GPUs", i, count, MaxGPUs))
			continue
		}
		for n := range count {
			g.UUID = UUID(seed, len(gpus))
			g.PCIBusID = fmt.Sprintf("%s:%02x:00.0", pciDomain, len(gpus))
			g.Clique = ""
			if clique > 0 {
				// A label that is unique on the node; relabel makes it short.
				g.Clique = fmt.Sprintf("%d/%d", i, n/clique)
			}
			gpus = append(gpus, g)
			blockOf = append(blockOf, i)
		}
	}
	relabelCliques(gpus)
	errs = append(errs, checkGroups(gpus, blockOf)...)
	return gpus, errors.Join(errs...)
}

// buildBlock reads one block: what its GPUs have in common, how many there
// are, and how many NVLink joins into each clique (0 where there is no
// NVLink). The errors begin with the name of the field.
func buildBlock(b deviceplugin.Simulate, defaultSeats int) (g deviceplugin.GPU, count, clique int, err error) {
	var errs []error
	known, ok := lookup(b.Model)
	if !ok {
		known = model{name: b.Model}
	}
	g = deviceplugin.GPU{
		Model:             known.name,
		MemoryMiB:         known.memoryMiB,
		ComputeCapability: known.capability,
		Architecture:      orElse(b.Architecture, known.architecture),
		DriverVersion:     orElse(b.DriverVersion, defaultDriverVersion),
		CUDAVersion:       orElse(b.CUDAVersion, defaultCUDAVersion),
		PowerLimitWatts:   known.powerWatts,
		CoreClockMHz:      known.coreMHz,
		MemoryClockMHz:    known.memoryMHz,
		Seats:             defaultSeats,
		Simulated:         true,
	}
	if strings.TrimSpace(b.Model) == "" {
		errs = append(errs, errors.New("model is \"\": must be the GPU's model, such as \"H100\""))
	}
	switch {
	case b.Memory != "":
		mib, err := ParseMemory(b.Memory)
		if err != nil {
			errs = append(errs, err)
		}
		g.MemoryMiB = mib
	case !ok:
		errs = append(errs, fmt.Errorf("memory is missing: model %q is not one of %s, so memory must be set",
			b.Model, strings.Join(Models(), ", ")))
	}
	count = 1
	if b.Count != nil {
		count = *b.Count
		if count < 1 || count > MaxGPUs {
			errs = append(errs, fmt.Errorf("count is %d: must be 1 to %d", count, MaxGPUs))
		}
	}
	if b.Seats != nil {
		g.Seats = *b.Seats
		if err := deviceplugin.CheckSeats(g.Seats); err != nil {
			errs = append(errs, err)
		}
	}
	if known.nvlink {
		clique = max(count, 1)
	}
	if b.NVLinkCliqueSize != nil {
		clique = *b.NVLinkCliqueSize
		if clique < 0 {
			errs = append(errs, fmt.Errorf("nvlink_clique_size is %d: must be 0 (no NVLink) or the number of GPUs in a clique", clique))
		}
		if clique == 1 {
			clique = 0 // a clique of one is no NVLink
		}
	}
	if b.ComputeCapability != nil {
		g.ComputeCapability = *b.ComputeCapability
		if g.ComputeCapability < 1 || g.ComputeCapability >= 100 {
			errs = append(errs, fmt.Errorf("compute_capability is %v: must be a CUDA compute capability, such as 9.0", g.ComputeCapability))
		}
	}
	if b.PowerLimitWatts != nil {
		g.PowerLimitWatts = int64(*b.PowerLimitWatts)
		if g.PowerLimitWatts < 1 {
			errs = append(errs, fmt.Errorf("power_limit_watts is %d: must be at least 1", g.PowerLimitWatts))
		}
	}
	return g, count, clique, errors.Join(errs...)
}

// relabelCliques numbers each model's cliques from 0, and drops the label
// where all GPUs of a model are in one clique, as on an NVSwitch machine. It
// goes by the configuration alone, so a GPU that is absent for a while renames
// no group.
func relabelCliques(gpus []deviceplugin.GPU) {
	labels := map[string][]string{} // by model, in order
	for _, g := range gpus {
		if !slices.Contains(labels[g.Model], g.Clique) {
			labels[g.Model] = append(labels[g.Model], g.Clique)
		}
	}
	for i, g := range gpus {
		all := labels[g.Model]
		if len(all) == 1 {
			gpus[i].Clique = ""
			continue
		}
		if g.Clique == "" {
			continue
		}
		n := 0
		for _, label := range all {
			if label == g.Clique {
				break
			}
			if label != "" {
				n++
			}
		}
		gpus[i].Clique = fmt.Sprint(n)
	}
}

// checkGroups refuses blocks whose GPUs would share a device group but not its
// attributes: Nomad has one set of attributes for a whole group.
func checkGroups(gpus []deviceplugin.GPU, blockOf []int) []error {
	var errs []error
	first := map[string]int{} // group name to index in gpus
	told := map[int]bool{}
	for i, g := range gpus {
		name := deviceplugin.GroupName(g.Model, g.Clique)
		j, ok := first[name]
		if !ok {
			first[name] = i
			continue
		}
		a, b := gpus[j], g
		b.UUID, b.PCIBusID = a.UUID, a.PCIBusID
		if a != b && !told[blockOf[i]] {
			told[blockOf[i]] = true
			errs = append(errs, fmt.Errorf("simulate[%d]: its GPUs share the device group %q with those of simulate[%d], so memory, seats and all else must be equal",
				blockOf[i], name, blockOf[j]))
		}
	}
	return errs
}

// UUID is the UUID of the node's GPU number i. Without a seed it spells out
// the number, so that the first GPU of every unseeded node has the same known
// UUID; with a seed, nodes with different seeds have different ones.
func UUID(seed string, i int) string {
	if seed == "" {
		return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i)
	}
	u := sha256.Sum256(fmt.Appendf(nil, "remuda simulated GPU\x00%s\x00%d", seed, i))
	u[6] = u[6]&0x0f | 0x40 // version 4
	u[8] = u[8]&0x3f | 0x80 // RFC 9562 variant
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// flatten returns the errors that were joined into err.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
