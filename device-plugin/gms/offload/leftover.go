package offload

import (
	"context"
	"errors"
	"fmt"

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

// Clear makes a service let go of a layout whose engines are gone for good, and tells
// whether it had it. What has another hash is another model's and stays, and so does
// what somebody has mapped: the error wraps client.ErrTimeout where that lasts for as
// long as ctx.
func Clear(ctx context.Context, l Layout) (cleared bool, err error) {
	st, err := client.RuntimeState(ctx, l.Socket)
	if err != nil {
		return false, fmt.Errorf("clear GPU memory: %w", err)
	}
	if !st.Committed || st.MemoryLayoutHash != l.Hash {
		return false, nil
	}
	s, err := client.Open(ctx, l.Socket, client.Options{Lock: wire.RW})
	if err != nil {
		return false, fmt.Errorf("clear GPU memory: %w", err)
	}
	if err := s.Close(); err != nil && !errors.Is(err, client.ErrClosed) {
		return true, fmt.Errorf("clear GPU memory: %w", err)
	}
	return true, nil
}
