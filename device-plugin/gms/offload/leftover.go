package offload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

// Layout names what one service has committed.
type Layout struct {
	Socket string `json:"socket"`
	Hash   string `json:"hash"`
}

// Layouts tells what the services have committed.
func (o *Offload) Layouts(ctx context.Context) ([]Layout, error) {
	var out []Layout
	for _, socket := range o.cfg.Sockets {
		st, err := client.RuntimeState(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("offload GPU memory: %w", err)
		}
		if st.Committed {
			out = append(out, Layout{socket, st.MemoryLayoutHash})
		}
	}
	return out, nil
}

// clearRetry is how often Clear tries.
const clearRetry = 100 * time.Millisecond

// Clear makes a service release a layout whose engines have ended for good, and reports
// whether it had it. A layout with another hash is another model's and stays. So does one
// that other engines use, also sleeping ones: Clear tries for as long as ctx allows, never
// holds them up, and its error wraps client.ErrInUse then.
func Clear(ctx context.Context, l Layout) (cleared bool, err error) {
	for {
		st, err := client.RuntimeState(ctx, l.Socket)
		if err != nil {
			return false, fmt.Errorf("clear GPU memory: %w", err)
		}
		if !st.Committed || st.MemoryLayoutHash != l.Hash {
			return false, nil
		}
		err = release(ctx, l.Socket)
		if err == nil {
			return true, nil
		}
		if !busy(err) {
			return false, fmt.Errorf("clear GPU memory: %w", err)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("clear GPU memory: %w", err)
		case <-time.After(clearRetry):
		}
	}
}

// release empties a unit that no other engine uses. It does not wait.
func release(ctx context.Context, address string) error {
	// A writer that is granted the lock has a layout without allocations, and one that
	// ends without a commit leaves none.
	s, err := client.Open(ctx, address, client.Options{Lock: wire.RW, IfUnused: true})
	if err != nil {
		return err
	}
	return s.Close()
}

// busy reports whether release failed because others use the unit.
func busy(err error) bool {
	return errors.Is(err, client.ErrInUse) || errors.Is(err, client.ErrTimeout)
}
