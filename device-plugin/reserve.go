package deviceplugin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
)

// Environment variables that a task gets with its seats.
const (
	// EnvNVIDIAVisible lists the UUIDs of the task's GPUs, separated by
	// commas, for NVIDIA's container runtime.
	EnvNVIDIAVisible = "NVIDIA_VISIBLE_DEVICES"
	// EnvCUDAVisible is the same list. CUDA takes UUIDs as well as indexes, and
	// numbers the devices that a process sees in the order of this list, so a
	// raw_exec task sees the GPUs that a container would.
	EnvCUDAVisible = "CUDA_VISIBLE_DEVICES"
	// EnvGPUs is the same list again, under a name that nothing else writes.
	EnvGPUs = "REMUDA_GPU_UUIDS"
	// EnvSeats lists the seats that were reserved, as full device IDs.
	EnvSeats = "REMUDA_SEATS"
	// EnvGMSSocketDir is the directory of the GPU memory service's sockets.
	EnvGMSSocketDir = "GMS_SOCKET_DIR"
)

// ErrReserve is wrapped by every refusal of a reservation.
var ErrReserve = errors.New("cannot reserve")

// reserve answers Nomad's request for seats. Nomad passes IDs only and calls
// once for each task; there is no release, so a reservation is no fence and
// nothing is remembered of it. A refusal names every ID that is wrong.
//
// The GPUs and seats in the answer stand in the inventory's order, whatever
// the order of the request, so that CUDA's device numbers are the same at each
// start of a task.
func (inv inventory) reserve(ids []string, gmsSocketDir string) (*device.ContainerReservation, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device IDs were given; Nomad before 1.11.1 may offer none for a task pinned by ${device.ids}, so check its version", ErrReserve)
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
			errs = append(errs, fmt.Errorf("seat %s was asked for twice", id))
			continue
		}
		asked[seat] = true
		g, known := inv.find(seat.GPU)
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("seat %s: this node has no such GPU", id))
		case seat.Index >= g.Seats:
			errs = append(errs, fmt.Errorf("seat %s: the GPU has seats 0 to %d", id, g.Seats-1))
		case g.Unhealthy != "":
			errs = append(errs, fmt.Errorf("seat %s: the GPU is unhealthy: %s", id, g.Unhealthy))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrReserve, oneLine(errors.Join(errs...)))
	}
	var uuids, seats []string
	for _, g := range inv.gpus {
		before := len(seats)
		for i := range g.Seats {
			if seat := (Seat{GPU: g.UUID, Index: i}); asked[seat] {
				seats = append(seats, seat.String())
			}
		}
		if len(seats) > before {
			uuids = append(uuids, g.UUID)
		}
	}
	list := strings.Join(uuids, ",")
	envs := map[string]string{
		EnvNVIDIAVisible: list,
		EnvCUDAVisible:   list,
		EnvGPUs:          list,
		EnvSeats:         strings.Join(seats, ","),
	}
	if gmsSocketDir != "" {
		envs[EnvGMSSocketDir] = gmsSocketDir
	}
	return &device.ContainerReservation{Envs: envs}, nil
}

// oneLine puts a joined error on one line, because Nomad's logs and task
// events show one.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
