package deviceplugin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxSeats is the most seats that one GPU may offer. Nothing in Nomad limits
// them; a larger number is taken for a mistake.
const MaxSeats = 64

// ErrBadSeat is wrapped by every error of ParseSeat.
var ErrBadSeat = errors.New("invalid seat ID")

// Seat is one of the places that a GPU offers, which is one device instance to
// Nomad.
type Seat struct {
	// GPU is the UUID of the GPU.
	GPU string
	// Index is the seat's number on that GPU, from 0.
	Index int
}

// String is the seat's device ID, "<GPU-UUID>#<seat>".
func (s Seat) String() string { return s.GPU + "#" + strconv.Itoa(s.Index) }

// ParseSeat reads a device ID in the one form that String writes: ParseSeat(s)
// succeeds only where its result prints as s again.
func ParseSeat(id string) (Seat, error) {
	gpu, index, ok := strings.Cut(id, "#")
	if !ok {
		return Seat{}, fmt.Errorf("%w %q: must be <GPU-UUID>#<seat>, such as GPU-…#0", ErrBadSeat, id)
	}
	if err := checkUUID(gpu); err != nil {
		return Seat{}, fmt.Errorf("%w %q: %w", ErrBadSeat, id, err)
	}
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 || n >= MaxSeats || strconv.Itoa(n) != index {
		return Seat{}, fmt.Errorf("%w %q: seat is %q: must be a number from 0 to %d without leading zeros",
			ErrBadSeat, id, index, MaxSeats-1)
	}
	return Seat{GPU: gpu, Index: n}, nil
}

// checkUUID accepts what can stand in a seat ID and in the comma-separated
// lists that tasks get: printable ASCII without '#', ',' and spaces.
func checkUUID(uuid string) error {
	if uuid == "" {
		return errors.New("the GPU UUID is empty")
	}
	for _, r := range uuid {
		if r <= ' ' || r > '~' || r == '#' || r == ',' {
			return fmt.Errorf("GPU UUID %q: character %q is not allowed", uuid, r)
		}
	}
	return nil
}
