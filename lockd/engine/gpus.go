package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	deviceplugin "remuda/device-plugin"
	"remuda/lockd/engine/dialect"
)

// EnvUseGPUs names the GPUs that an engine is to use, by UUID, separated by commas:
// some of those on which its task has seats (deviceplugin.EnvGPUs), and all of them
// where it is not set. The shim sets it for the engine.
const EnvUseGPUs = "REMUDA_USE_GPUS"

// ErrBadGPUs: a wake was asked for on GPUs that the task has no seats on, or on none.
var ErrBadGPUs = errors.New("invalid GPUs")

// TaskGPUs are the GPUs that this process's environment says to use, and those on
// which it has seats. Both are nil where it does not say.
func TaskGPUs() (use, seats []string) {
	seats = splitGPUs(os.Getenv(deviceplugin.EnvGPUs))
	if use = splitGPUs(os.Getenv(EnvUseGPUs)); use == nil {
		use = seats
	}
	return use, seats
}

func splitGPUs(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// sameGPUs: the order is the engine's own business.
func sameGPUs(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// checkGPUs refuses what the task cannot use.
func (s *Shim) checkGPUs(gpus []string) error {
	for i, g := range gpus {
		switch {
		case g == "":
			return fmt.Errorf("%w: a name is empty: must be UUIDs separated by commas", ErrBadGPUs)
		case slices.Contains(gpus[:i], g):
			return fmt.Errorf("%w: duplicate %s", ErrBadGPUs, g)
		case len(s.cfg.SeatGPUs) > 0 && !slices.Contains(s.cfg.SeatGPUs, g):
			return fmt.Errorf("%w: the task has no seat on %s: must be one of %s", ErrBadGPUs, g, strings.Join(s.cfg.SeatGPUs, ", "))
		}
	}
	return nil
}

// wantedGPUs are those on which the replica's engine is to wake: a peer may have moved it.
func (s *Shim) wantedGPUs() ([]string, error) {
	rec, err := s.records.read()
	if err != nil || len(rec.GPUs) > 0 {
		return rec.GPUs, err
	}
	return s.cfg.UseGPUs, nil
}

// moveTo makes the sleeping engine's next wake be on gpus; nil leaves it where the group
// wants it. Its error wraps dialect.ErrCannotMove where the engine cannot, and changes
// nothing then. op is held.
func (s *Shim) moveTo(ctx context.Context, gpus []string) error {
	wanted, err := s.wantedGPUs()
	if err != nil {
		return err
	}
	if gpus == nil {
		gpus = wanted
	}
	s.mu.Lock()
	now := s.gpus
	s.mu.Unlock()
	if !sameGPUs(gpus, now) {
		switch {
		case s.offload != nil:
			err = fmt.Errorf("%w: its weights are shared on %s", dialect.ErrCannotMove, strings.Join(now, ", "))
		case !s.dialect.CanMove():
			err = dialect.ErrCannotMove
		case s.engineProcess().phase() != processAbsent:
			err = s.dialect.Move(ctx, gpus)
		}
		if err != nil {
			return fmt.Errorf("wake on %s instead of %s: %w", strings.Join(gpus, ", "), strings.Join(now, ", "), err)
		}
	}
	if !sameGPUs(gpus, wanted) {
		if err := s.records.update(func(rec *Record) { rec.GPUs = gpus }); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.gpus = gpus
	s.mu.Unlock()
	return nil
}
