package deviceplugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"remuda/internal/vram"
)

// Environment variables that a task gets with its seats.
const (
	// EnvNVIDIAVisible lists the UUIDs of the task's GPUs, separated by
	// commas, for NVIDIA's container runtime.
	EnvNVIDIAVisible = "NVIDIA_VISIBLE_DEVICES"
	// EnvCUDAVisible lists the UUIDs of the task's GPUs, separated by commas, for
	// CUDA, which takes UUIDs as well as indexes and numbers the devices that a
	// process sees in the order of this list, so a raw_exec task sees the GPUs that
	// a container would.
	EnvCUDAVisible = "CUDA_VISIBLE_DEVICES"
	// EnvGPUs lists the UUIDs of the task's GPUs, separated by commas, under a name
	// that nothing else writes.
	EnvGPUs = "REMUDA_GPU_UUIDS"
	// EnvSeats lists the seats that were reserved, as full device IDs.
	EnvSeats = "REMUDA_SEATS"
	// EnvCDI lists the GPUs by their names in the Container Device Interface,
	// as "nvidia.com/gpu=GPU-…", for what starts containers of its own.
	EnvCDI = "REMUDA_CDI_DEVICES"
	// EnvGMSSocketDir is the directory of the GPU memory service's sockets.
	EnvGMSSocketDir = "GMS_SOCKET_DIR"
)

// ErrReserve is wrapped by every refusal of a reservation.
var ErrReserve = errors.New("cannot reserve")

// cdiKind is the vendor and class under which NVIDIA's toolkit (nvidia-ctk cdi
// generate) names GPUs and MIG instances by their UUIDs.
const cdiKind = "nvidia.com/gpu="

// handover is what a reservation depends on besides the inventory.
type handover struct {
	// gmsSocketDir is given to the task; empty for none.
	gmsSocketDir string
	// mountGMS says that the directory is there to be mounted into a
	// container: a mount of a missing directory fails the task.
	mountGMS bool
	// simDir is where the memory of simulated GPUs is counted.
	simDir string
	// containers is how real GPUs get into containers.
	containers ContainerMode
	// sharedNodes are the device files that every GPU program needs, as
	// /dev/nvidiactl, as far as this host has them.
	sharedNodes []string
}

// reserve answers Nomad's request for seats. Nomad passes IDs only and calls
// once for each task; there is no release, so a reservation is no fence and
// nothing is remembered of it. A refusal names every ID that is wrong.
//
// The GPUs and seats in the answer stand in the inventory's order, whatever
// the order of the request, so that CUDA's device numbers are the same at each
// start of a task.
//
// A task gets GPUs of one nature only, because a program can use no other mix:
// simulated or real, whole or MIG instances. (CUDA in a process that sees a MIG
// instance sees no whole GPU.)
func (inv inventory) reserve(ids []string, h handover) (*device.ContainerReservation, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device IDs: Nomad before 1.11.1 may offer none for a task pinned by ${device.ids}; use 1.11.1 or newer", ErrReserve)
	}
	var errs []error
	asked := map[Seat]bool{}
	for _, id := range ids {
		seat, err := ParseSeat(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if asked[seat] {
			errs = append(errs, fmt.Errorf("duplicate seat %s", id))
			continue
		}
		asked[seat] = true
		g, known := inv.find(seat.GPU)
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("seat %s: unknown GPU", id))
		case seat.Index >= g.Seats:
			errs = append(errs, fmt.Errorf("seat %s: the GPU's seats are 0 to %d", id, g.Seats-1))
		case g.Unhealthy != "":
			errs = append(errs, fmt.Errorf("seat %s: the GPU is unhealthy: %s", id, g.Unhealthy))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrReserve, oneLine(errors.Join(errs...)))
	}
	var uuids, names, seats []string
	var gpus []GPU
	for _, g := range inv.gpus {
		before := len(seats)
		for i := range g.Seats {
			if seat := (Seat{GPU: g.UUID, Index: i}); asked[seat] {
				seats = append(seats, seat.String())
			}
		}
		if len(seats) > before {
			gpus = append(gpus, g)
			uuids = append(uuids, g.UUID)
			names = append(names, cdiKind+g.UUID)
		}
	}
	if err := alike(gpus); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReserve, err)
	}
	list := strings.Join(uuids, ",")
	res := &device.ContainerReservation{Envs: map[string]string{
		EnvNVIDIAVisible: list,
		EnvCUDAVisible:   list,
		EnvGPUs:          list,
		EnvSeats:         strings.Join(seats, ","),
	}}
	if h.gmsSocketDir != "" {
		res.Envs[EnvGMSSocketDir] = h.gmsSocketDir
	}
	if gpus[0].Simulated {
		res.Envs[vram.EnvDir] = h.simDir
		return res, nil
	}
	res.Envs[EnvCDI] = strings.Join(names, ",")
	if h.gmsSocketDir != "" && h.mountGMS {
		// Read-only keeps a task from planting sockets of its own; connecting
		// to those that are there needs no write access to the directory.
		res.Mounts = append(res.Mounts, &device.Mount{TaskPath: h.gmsSocketDir, HostPath: h.gmsSocketDir, ReadOnly: true})
	}
	switch h.containers {
	case ContainersCDI:
		res.Envs[EnvNVIDIAVisible] = res.Envs[EnvCDI]
	case ContainersNodes:
		delete(res.Envs, EnvNVIDIAVisible)
		nodes := slices.Clone(h.sharedNodes)
		for _, g := range gpus {
			for node := range strings.SplitSeq(g.DeviceNodes, ",") {
				if node != "" && !slices.Contains(nodes, node) {
					nodes = append(nodes, node)
				}
			}
		}
		for _, node := range nodes {
			res.Devices = append(res.Devices, &device.DeviceSpec{TaskPath: node, HostPath: node, CgroupPerms: "rw"})
		}
	}
	return res, nil
}

// alike says why GPUs cannot be given to one task.
func alike(gpus []GPU) error {
	first := gpus[0]
	for _, g := range gpus[1:] {
		if g.Simulated != first.Simulated {
			return fmt.Errorf("%s and %s: simulated and real GPUs cannot be mixed in one task", first.UUID, g.UUID)
		}
		if (g.Parent == "") != (first.Parent == "") {
			return fmt.Errorf("%s and %s: MIG instances and whole GPUs cannot be mixed in one task", first.UUID, g.UUID)
		}
		if g.Parent != first.Parent {
			return fmt.Errorf("%s and %s: MIG instances of different GPUs cannot be mixed in one task", first.UUID, g.UUID)
		}
	}
	return nil
}

// oneLine puts a joined error on one line, because Nomad's logs and task
// events show one.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
