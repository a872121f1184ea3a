package deviceplugin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Vendor and Type are the first two parts of every device's name in Nomad. They
// are the ones of NVIDIA's own plugin, so that jobs written for it still match.
const (
	Vendor = "nvidia"
	Type   = device.DeviceTypeGPU
)

// Names of the attributes of a device group. Those that NVIDIA's own plugin has
// as well have its names, and are limits and sizes here, never readings: those
// are statistics.
const (
	AttrModel             = "model"              // the product name of the GPUs
	AttrMemory            = "memory"             // the memory of each GPU
	AttrComputeCapability = "compute_capability" // the CUDA compute capability, as 9.0
	AttrArchitecture      = "architecture"       // the name of the GPUs' architecture
	AttrDriverVersion     = "driver_version"     // the version of the driver
	AttrCUDAVersion       = "cuda_version"       // the newest version of CUDA that the driver takes
	AttrBAR1              = "bar1"               // the memory of each GPU that is mapped through PCIe
	AttrPCIBandwidth      = "pci_bandwidth"      // the bandwidth of the fastest PCIe link that the GPU can have
	AttrDisplayState      = "display_state"      // whether a display is connected, 1 or 0
	AttrPersistenceMode   = "persistence_mode"   // whether the driver stays loaded without programs, 1 or 0
	AttrPower             = "power"              // the power limit of each GPU
	AttrCoresClock        = "cores_clock"        // the highest core clock
	AttrMemoryClock       = "memory_clock"       // the highest memory clock
	AttrSeats             = "seats"              // how many seats each GPU offers
	AttrClique            = "nvlink_clique"      // the NVLink clique of the GPUs, where there is one
	// AttrNUMANode and AttrPCIBusID are published where all GPUs of a group
	// agree in them; Nomad knows each GPU's bus ID from its locality.
	AttrNUMANode = "numa_node"
	AttrPCIBusID = "pci_bus_id"
	// AttrUUIDs has the UUIDs of the group's GPUs, by commas. A constraint on it
	// chooses a node and a group; which of the group's GPUs a task gets is up to
	// a constraint on ${device.ids}.
	AttrUUIDs = "uuids"
	// AttrMIGProfile is set on groups of MIG instances only.
	AttrMIGProfile = "mig_profile"
	// AttrGMS says whether tasks are told of a GPU memory service. Whether it
	// runs at this moment is no attribute: those never change by themselves.
	AttrGMS       = "gms"
	AttrSimulated = "simulated" // whether the GPUs are simulated
)

// inventory is the set of usable GPUs at one moment, in the order of their PCI
// bus IDs. It is plain data and never changes once made.
type inventory struct {
	gpus []GPU
}

// validText makes a text fit for gRPC. A message with anything but UTF-8 in it
// cannot be sent, which ends the stream, and Nomad then drops the plugin for
// good. Reasons hold what libraries and the driver print.
func validText(s string) string { return strings.ToValidUTF8(s, "?") }

// newInventory makes an inventory of what a source listed. It leaves out the
// ignored GPUs and those that cannot be named, and says why of the latter.
func newInventory(gpus []GPU, s Settings) (inventory, []error) {
	var problems []error
	kept := make([]GPU, 0, len(gpus))
	seen := make(map[string]bool, len(gpus))
	for _, g := range gpus {
		if slices.Contains(s.IgnoredGPUs, g.UUID) || g.Parent != "" && slices.Contains(s.IgnoredGPUs, g.Parent) {
			continue
		}
		if err := checkUUID(g.UUID); err != nil {
			problems = append(problems, fmt.Errorf("GPU ignored: %w", err))
			continue
		}
		if seen[g.UUID] {
			problems = append(problems, fmt.Errorf("GPU ignored: duplicate %s", g.UUID))
			continue
		}
		seen[g.UUID] = true
		if g.Seats <= 0 {
			g.Seats = s.Seats
		}
		// What is said of a GPU holds for its MIG instances, unless something
		// is said of the instance itself.
		for _, id := range []string{g.Parent, g.UUID} {
			if o, ok := s.GPUs[id]; ok {
				g = o.apply(g)
			}
		}
		g.Seats = min(g.Seats, MaxSeats)
		g.PCIBusID = SysfsBusID(g.PCIBusID)
		for _, text := range []*string{&g.Parent, &g.MIGProfile, &g.Model, &g.Clique, &g.Architecture, &g.DriverVersion,
			&g.CUDAVersion, &g.PCIBusID, &g.DisplayState, &g.PersistenceMode, &g.Unhealthy} {
			*text = validText(*text)
		}
		kept = append(kept, g)
	}
	slices.SortFunc(kept, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.PCIBusID, b.PCIBusID), cmp.Compare(a.UUID, b.UUID))
	})
	return inventory{gpus: kept}, problems
}

// allUnhealthy is the same inventory with every GPU that was healthy marked
// with reason.
func (inv inventory) allUnhealthy(reason string) inventory {
	gpus := slices.Clone(inv.gpus)
	for i := range gpus {
		if gpus[i].Unhealthy == "" {
			gpus[i].Unhealthy = validText(reason)
		}
	}
	return inventory{gpus: gpus}
}

// find returns the GPU with this UUID.
func (inv inventory) find(uuid string) (GPU, bool) {
	for _, g := range inv.gpus {
		if g.UUID == uuid {
			return g, true
		}
	}
	return GPU{}, false
}

// groups lays the GPUs out as Nomad's device groups: one group for each model
// and NVLink clique, one device for each seat. Equal inventories give deeply
// equal groups.
func (inv inventory) groups(gms bool) []*device.DeviceGroup {
	byName := map[string][]GPU{}
	var names []string
	for _, g := range inv.gpus {
		name := GroupName(g.Model, g.Clique)
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], g)
	}
	slices.Sort(names)
	groups := make([]*device.DeviceGroup, 0, len(names))
	for _, name := range names {
		members := byName[name]
		group := &device.DeviceGroup{
			Vendor:     Vendor,
			Type:       Type,
			Name:       name,
			Attributes: attributes(members, gms),
		}
		for _, g := range members {
			for i := range g.Seats {
				group.Devices = append(group.Devices, seatDevice(g, i))
			}
		}
		groups = append(groups, group)
	}
	return groups
}

func seatDevice(g GPU, index int) *device.Device {
	d := &device.Device{
		ID:         Seat{GPU: g.UUID, Index: index}.String(),
		Healthy:    g.Unhealthy == "",
		HealthDesc: g.Unhealthy,
	}
	if g.PCIBusID != "" {
		d.HwLocality = &device.DeviceLocality{PciBusID: g.PCIBusID}
	}
	return d
}

// attributes are what all GPUs of a group have in common. Where they differ in
// a number, the group promises the smallest one; where they differ in a text,
// the first GPU speaks for all. What is unknown is left out, so that a
// constraint can ask whether it is set.
func attributes(members []GPU, gms bool) map[string]*structs.Attribute {
	first := members[0]
	attrs := map[string]*structs.Attribute{
		AttrModel:     structs.NewStringAttribute(GroupName(first.Model, "")),
		AttrSimulated: structs.NewBoolAttribute(first.Simulated),
		AttrGMS:       structs.NewBoolAttribute(gms),
	}
	number := func(name, unit string, of func(GPU) int64) {
		v := of(first)
		for _, g := range members[1:] {
			v = min(v, of(g))
		}
		if v > 0 {
			attrs[name] = structs.NewIntAttribute(v, unit)
		}
	}
	text := func(name, v string) {
		if v != "" {
			attrs[name] = structs.NewStringAttribute(v)
		}
	}
	number(AttrMemory, structs.UnitMiB, func(g GPU) int64 { return g.MemoryMiB })
	number(AttrBAR1, structs.UnitMiB, func(g GPU) int64 { return g.BAR1MiB })
	number(AttrPCIBandwidth, structs.UnitMBPerS, func(g GPU) int64 { return g.PCIBandwidthMBps })
	number(AttrPower, structs.UnitW, func(g GPU) int64 { return g.PowerLimitWatts })
	number(AttrCoresClock, structs.UnitMHz, func(g GPU) int64 { return g.CoreClockMHz })
	number(AttrMemoryClock, structs.UnitMHz, func(g GPU) int64 { return g.MemoryClockMHz })
	number(AttrSeats, "", func(g GPU) int64 { return int64(g.Seats) })
	text(AttrArchitecture, first.Architecture)
	text(AttrDriverVersion, first.DriverVersion)
	text(AttrCUDAVersion, first.CUDAVersion)
	text(AttrDisplayState, first.DisplayState)
	text(AttrPersistenceMode, first.PersistenceMode)
	text(AttrClique, first.Clique)
	text(AttrMIGProfile, first.MIGProfile)
	var uuids []string
	for _, g := range members {
		uuids = append(uuids, g.UUID)
	}
	text(AttrUUIDs, strings.Join(uuids, ","))
	common := func(of func(GPU) string) string {
		for _, g := range members[1:] {
			if of(g) != of(first) {
				return ""
			}
		}
		return of(first)
	}
	if node, err := strconv.ParseInt(common(func(g GPU) string { return g.NUMANode }), 10, 64); err == nil && node >= 0 {
		attrs[AttrNUMANode] = structs.NewIntAttribute(node, "")
	}
	text(AttrPCIBusID, common(func(g GPU) string { return g.PCIBusID }))
	capability := first.ComputeCapability
	for _, g := range members[1:] {
		capability = min(capability, g.ComputeCapability)
	}
	if capability > 0 {
		attrs[AttrComputeCapability] = structs.NewFloatAttribute(capability, "")
	}
	return attrs
}

// change is one GPU's step from an inventory to the next, for the log.
type change struct {
	gpu  GPU
	what string
	// reason is why the GPU is unhealthy, and was why it was.
	reason, was string
}

// changes says what became of each GPU between two inventories.
func changes(from, to inventory) []change {
	var out []change
	for _, g := range to.gpus {
		was, known := from.find(g.UUID)
		switch {
		case !known && g.Unhealthy != "":
			out = append(out, change{gpu: g, what: "GPU found, unhealthy", reason: g.Unhealthy})
		case !known:
			out = append(out, change{gpu: g, what: "GPU found"})
		case was.Unhealthy == g.Unhealthy && was == g:
		case was.Unhealthy == g.Unhealthy:
			out = append(out, change{gpu: g, what: "GPU has new attributes"})
		case g.Unhealthy == "":
			out = append(out, change{gpu: g, what: "GPU is healthy again", was: was.Unhealthy})
		default:
			out = append(out, change{gpu: g, what: "GPU is unhealthy", reason: g.Unhealthy})
		}
	}
	for _, g := range from.gpus {
		if _, still := to.find(g.UUID); !still {
			out = append(out, change{gpu: g, what: "GPU disappeared", reason: "no longer listed"})
		}
	}
	return out
}
