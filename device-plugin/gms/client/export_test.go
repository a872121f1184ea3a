package client

import (
	"context"
	"fmt"

	"remuda/device-plugin/gms/wire"
)

// DeleteMetadata drops a key and tells whether it was there.
func (s *Session) DeleteMetadata(ctx context.Context, key string) (bool, error) {
	r, err := ask[*wire.MetadataDeleteResponse](ctx, s, &wire.MetadataDeleteRequest{Key: key})
	if err != nil {
		return false, fmt.Errorf("delete metadata %q: %w", key, err)
	}
	return r.Deleted, nil
}

// LockState tells how the lock stands.
func (s *Session) LockState(ctx context.Context) (*wire.GetLockStateResponse, error) {
	r, err := ask[*wire.GetLockStateResponse](ctx, s, &wire.GetLockStateRequest{})
	if err != nil {
		return nil, fmt.Errorf("get the lock state: %w", err)
	}
	return r, nil
}

// AllocationCount is how many allocations there are.
func (s *Session) AllocationCount(ctx context.Context) (uint64, error) {
	r, err := ask[*wire.GetAllocationStateResponse](ctx, s, &wire.GetAllocationStateRequest{})
	if err != nil {
		return 0, fmt.Errorf("get the allocation state: %w", err)
	}
	return r.AllocationCount, nil
}
