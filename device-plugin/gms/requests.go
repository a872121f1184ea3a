package gms

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/layout"
	"remuda/device-plugin/gms/wire"
)

// requests answers a session's requests until it ends.
func (c *connection) requests(ctx context.Context, s *session, mode layout.Mode) {
	c.logger = s.logger
	for {
		m, err := c.read()
		switch {
		case wire.Refusable(err):
			if !c.refuse("unknown", wire.ErrorBadRequest, err) {
				return
			}
			continue
		case err != nil:
			c.broken(err)
			return
		}
		a := s.handle(ctx, m)
		if errors.Is(a.err, errGone) {
			return // nobody is left
		}
		sent := false
		if a.err != nil {
			sent = c.refuse(m.MessageType(), errorCode(a.err), a.err)
		} else {
			sent = c.answer(m, a.message, a.fd)
		}
		if a.fd >= 0 {
			_ = unix.Close(a.fd)
		}
		if a.last {
			s.logger.Info("committed", "sent", sent, "hash", s.unit.status().Hash)
		}
		if !sent || a.last {
			return
		}
	}
}

// reply is what a request leads to.
type reply struct {
	message wire.Message
	// fd rides along, unless it is negative.
	fd int
	// last: the session is over after it.
	last bool
	err  error
}

func answers(m wire.Message) reply { return reply{message: m, fd: -1} }

func refuses(err error) reply { return reply{fd: -1, err: err} }

// errorCode is the number of an error_response.
func errorCode(err error) int64 {
	switch {
	case errors.Is(err, layout.ErrBadValue):
		return wire.ErrorBadRequest
	case errors.Is(err, layout.ErrNotAllowed):
		return wire.ErrorNotAllowed
	case errors.Is(err, layout.ErrNotFound):
		return wire.ErrorNotFound
	case errors.Is(err, backend.ErrOutOfMemory):
		return wire.ErrorOutOfMemory
	default:
		return wire.ErrorOther
	}
}

// handle does what a request asks for.
func (s *session) handle(ctx context.Context, m wire.Message) reply {
	switch m := m.(type) {
	case *wire.AllocateRequest:
		return s.allocate(ctx, m)
	case *wire.ExportAllocationRequest:
		return s.export(m)
	case *wire.CommitRequest:
		return s.commit(ctx)
	}
	u := s.unit
	u.mu.Lock()
	defer u.mu.Unlock()
	switch m := m.(type) {
	case *wire.GetAllocationRequest:
		a, err := u.machine.Get(s.id, m.AllocationID)
		if err != nil {
			return refuses(err)
		}
		r := described(a)
		return answers(&r)
	case *wire.ListAllocationsRequest:
		all, err := u.machine.List(s.id, m.Tag)
		if err != nil {
			return refuses(err)
		}
		r := &wire.ListAllocationsResponse{Allocations: make([]wire.GetAllocationResponse, 0, len(all))}
		for _, a := range all {
			r.Allocations = append(r.Allocations, described(a))
		}
		return answers(r)
	case *wire.FreeAllocationRequest:
		found, e, err := u.machine.Free(s.id, m.AllocationID)
		if err != nil {
			return refuses(err)
		}
		u.carry(e)
		return answers(&wire.FreeAllocationResponse{Success: found})
	case *wire.GetLockStateRequest:
		if err := u.machine.Check(s.id, false, "get the lock state"); err != nil {
			return refuses(err)
		}
		t := u.machine.Status()
		return answers(&wire.GetLockStateResponse{State: string(t.State), HasRWSession: t.HasWriter, ROSessionCount: uint64(t.Readers),
			WaitingWriters: uint64(t.Waiting), Committed: t.Committed, IsReady: t.Ready(), LayoutCommitted: t.Committed})
	case *wire.GetAllocationStateRequest:
		if err := u.machine.Check(s.id, false, "get the allocation state"); err != nil {
			return refuses(err)
		}
		return answers(&wire.GetAllocationStateResponse{AllocationCount: uint64(u.machine.Status().Allocations)})
	case *wire.GetMemoryLayoutHashRequest:
		if err := u.machine.Check(s.id, false, "get the layout hash"); err != nil {
			return refuses(err)
		}
		return answers(&wire.GetMemoryLayoutHashResponse{MemoryLayoutHash: u.machine.Status().Hash})
	default:
		return s.metadata(m)
	}
}

// metadata does what a request about metadata asks for. The unit's mu is held.
func (s *session) metadata(m wire.Message) reply {
	machine := s.unit.machine
	switch m := m.(type) {
	case *wire.MetadataPutRequest:
		if err := machine.Put(s.id, m.Key, m.AllocationID, m.OffsetBytes, m.Value); err != nil {
			return refuses(err)
		}
		return answers(&wire.MetadataPutResponse{Success: true})
	case *wire.MetadataGetRequest:
		e, found, err := machine.Metadata(s.id, m.Key)
		if err != nil {
			return refuses(err)
		}
		return answers(&wire.MetadataGetResponse{Found: found, AllocationID: e.AllocationID, OffsetBytes: e.Offset, Value: e.Value})
	case *wire.MetadataDeleteRequest:
		deleted, err := machine.Delete(s.id, m.Key)
		if err != nil {
			return refuses(err)
		}
		return answers(&wire.MetadataDeleteResponse{Deleted: deleted})
	case *wire.MetadataListRequest:
		keys, err := machine.Keys(s.id, m.Prefix)
		if err != nil {
			return refuses(err)
		}
		return answers(&wire.MetadataListResponse{Keys: keys})
	default:
		return refuses(fmt.Errorf("%w: %s is not a request of a session", layout.ErrNotAllowed, m.MessageType()))
	}
}

func described(a layout.Allocation) wire.GetAllocationResponse {
	return wire.GetAllocationResponse{AllocationID: a.ID, Size: a.Size, AlignedSize: a.AlignedSize, Tag: a.Tag, LayoutSlot: a.Slot}
}

// allocate makes an allocation, and waits for room if need be.
func (s *session) allocate(ctx context.Context, m *wire.AllocateRequest) reply {
	u := s.unit
	aligned, err := layout.Align(m.Size, u.gpu.Backend.Granularity())
	u.mu.Lock()
	if allowed := u.machine.CanAllocate(s.id, m.Tag); allowed != nil {
		err = allowed
	}
	u.mu.Unlock()
	if err != nil {
		return refuses(err)
	}
	if capacity := u.gpu.Backend.Capacity(); capacity > 0 && aligned > capacity {
		return refuses(fmt.Errorf("%w: size is %d, the GPU has %d bytes in all", layout.ErrBadValue, m.Size, capacity))
	}
	memory, err := s.obtain(ctx, aligned)
	if err != nil {
		return refuses(err)
	}
	u.mu.Lock()
	a, err := u.machine.Allocate(s.id, uint64(m.Size), aligned, m.Tag)
	if err == nil {
		u.memory[a.ID] = memory
	}
	u.mu.Unlock()
	if err != nil {
		u.releaser.add(memory)
		return refuses(err)
	}
	return answers(&wire.AllocateResponse{AllocationID: a.ID, Size: a.Size, AlignedSize: a.AlignedSize, LayoutSlot: a.Slot})
}

// obtain gets memory. Where there is no room it tries again from time to time, and
// gives up when nobody waits for it any more.
func (s *session) obtain(ctx context.Context, size uint64) (backend.Memory, error) {
	u := s.unit
	memory, err := u.gpu.Backend.Allocate(size)
	if !errors.Is(err, backend.ErrOutOfMemory) {
		return memory, err
	}
	cfg := u.server.cfg
	u.mu.Lock()
	u.machine.OutOfMemory(s.id)
	u.mu.Unlock()
	u.server.metrics.oom.WithLabelValues(u.gpu.UUID, u.tag).Inc()
	s.logger.Warn("the GPU has too little free memory: waiting", "bytes", size, "used", u.gpu.Backend.Used(), "capacity", u.gpu.Backend.Capacity(), "retry", cfg.OOMRetry, "limit", cfg.OOMLimit)
	began := time.Now()
	gone, stop := s.conn.WatchGone()
	defer stop()
	retry := time.NewTicker(cfg.OOMRetry)
	defer retry.Stop()
	var limit <-chan time.Time
	if cfg.OOMLimit > 0 {
		timer := time.NewTimer(cfg.OOMLimit)
		defer timer.Stop()
		limit = timer.C
	}
	for {
		select {
		case <-gone:
			s.logger.Info("the client that was waiting for GPU memory disconnected", "bytes", size, "waited", time.Since(began))
			return nil, errGone
		case <-ctx.Done():
			return nil, errGone
		case <-limit:
			return nil, fmt.Errorf("waited %s: %w", cfg.OOMLimit, err)
		case <-retry.C:
		}
		memory, err = u.gpu.Backend.Allocate(size)
		if !errors.Is(err, backend.ErrOutOfMemory) {
			s.logger.Info("the wait for GPU memory ended", "bytes", size, "waited", time.Since(began), "error", err)
			return memory, err
		}
	}
}

// export makes a descriptor of an allocation.
func (s *session) export(m *wire.ExportAllocationRequest) reply {
	u := s.unit
	u.mu.Lock()
	a, err := u.machine.Get(s.id, m.AllocationID)
	memory := u.memory[a.ID]
	u.mu.Unlock()
	if err != nil {
		return refuses(err)
	}
	fd, err := memory.Export()
	if err != nil {
		return refuses(fmt.Errorf("export allocation %q: %w", a.ID, err))
	}
	return reply{fd: fd, message: &wire.ExportAllocationResponse{AllocationID: a.ID, Size: a.Size, AlignedSize: a.AlignedSize, Tag: a.Tag, LayoutSlot: a.Slot}}
}

// commit publishes the layout once the keeper has it. It holds whatever becomes of the
// client. After an error the session goes on and nothing has changed.
func (s *session) commit(ctx context.Context) reply {
	u := s.unit
	u.mu.Lock()
	err := u.machine.Check(s.id, true, "commit")
	u.mu.Unlock()
	if err != nil {
		return refuses(err)
	}
	if err := u.keep(ctx); err != nil {
		return refuses(fmt.Errorf("commit: %w", err))
	}
	u.mu.Lock()
	e, err := u.machine.Commit(s.id)
	u.carry(e)
	u.mu.Unlock()
	if err != nil {
		return refuses(err)
	}
	return reply{message: &wire.CommitResponse{Success: true}, fd: -1, last: true}
}

// runtimeState is how things stand, for whoever asks without a session.
func (u *unit) runtimeState() *wire.GetRuntimeStateResponse {
	t := u.status()
	return &wire.GetRuntimeStateResponse{State: string(t.State), HasRWSession: t.HasWriter, ROSessionCount: uint64(t.Readers),
		WaitingWriters: uint64(t.Waiting), Committed: t.Committed, IsReady: t.Ready(), AllocationCount: uint64(t.Allocations),
		MemoryLayoutHash: t.Hash, LayoutCommitted: t.Committed, Nonce: u.server.nonce}
}

func (u *unit) eventHistory() *wire.GetEventHistoryResponse {
	u.mu.Lock()
	events := u.machine.Events()
	u.mu.Unlock()
	out := &wire.GetEventHistoryResponse{Events: make([]wire.Event, 0, len(events))}
	for _, e := range events {
		out.Events = append(out.Events, wire.Event{Kind: e.Kind, AllocationCount: uint64(e.Allocations)})
	}
	return out
}
