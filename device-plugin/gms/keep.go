package gms

import (
	"bytes"
	"context"
	"encoding/gob"

	"fmt"
	"time"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/keeper"
	"remuda/device-plugin/gms/layout"
	"remuda/internal/unixsock"
)

// Keeper stores records outside of this process: a blob and descriptors by name. Its
// methods are safe for concurrent use. Once a call is done the record outlives this
// process.
type Keeper interface {
	// Save replaces a record as a whole. export makes its descriptors, which Save
	// closes. After an error the old record is there.
	Save(ctx context.Context, name string, blob []byte, n int, export func(i int) (fd int, err error)) error
	// Drop forgets a record, if there is one.
	Drop(ctx context.Context, name string) error
}

var _ Keeper = (*keeper.Service)(nil)

// recordVersion begins every blob. The next version of this program reads it.
const recordVersion = 2

// keptLayout is the blob of a record. Its descriptors are those of the layout's
// allocations, in their order.
type keptLayout struct {
	GPU, Tag string
	Layout   layout.Snapshot
}

func (u *unit) recordName() string { return u.gpu.UUID + "/" + u.tag }

// keep has the keeper store the layout: the committed one, or the writer's that is
// about to be committed. No other session changes the layout meanwhile.
func (u *unit) keep(ctx context.Context) error {
	k := u.server.cfg.Keeper
	if k == nil {
		return nil
	}
	u.mu.Lock()
	snapshot := u.machine.Snapshot()
	held := make([]backend.Memory, len(snapshot.Allocations))
	for i, a := range snapshot.Allocations {
		held[i] = u.memory[a.ID]
	}
	u.mu.Unlock()
	blob := bytes.NewBuffer([]byte{recordVersion})
	err := gob.NewEncoder(blob).Encode(keptLayout{u.gpu.UUID, u.tag, snapshot})
	if err == nil {
		err = k.Save(ctx, u.recordName(), blob.Bytes(), len(held), func(i int) (int, error) { return held[i].Export() })
	}
	if err != nil {
		u.server.metrics.keeperFailures.Inc()
		return fmt.Errorf("the layout cannot be kept: %w", err)
	}
	u.kept.Store(true)
	return nil
}

// drop has the keeper forget the layout, so that it cannot come back.
func (u *unit) drop(ctx context.Context) error {
	if !u.kept.Load() {
		return nil
	}
	if err := u.server.cfg.Keeper.Drop(ctx, u.recordName()); err != nil {
		u.server.metrics.keeperFailures.Inc()
		return err
	}
	u.kept.Store(false)
	return nil
}

// keepAgain is keep for a committed layout that was dropped for a writer that did not
// come after all.
func (u *unit) keepAgain(ctx context.Context) error {
	if !u.status().Committed {
		return nil
	}
	return u.keep(ctx)
}

// restore takes back what the services before this one have committed. What cannot be
// taken back is dropped: engines load it again.
func (s *Server) restore(ctx context.Context) {
	for _, r := range s.cfg.Kept {
		err := s.takeBack(r)
		if err == nil {
			continue
		}
		s.metrics.keeperFailures.Inc()
		s.logger.Error("cannot restore a layout: its engines have to load it again", "record", r.Name, "error", err)
		if err := s.cfg.Keeper.Drop(ctx, r.Name); err != nil {
			s.logger.Error("cannot drop a record", "record", r.Name, "error", err)
		}
	}
}

// takeBack restores a unit's layout. It owns the record's descriptors.
func (s *Server) takeBack(r keeper.Record) (err error) {
	fds := r.FDs
	defer func() { unixsock.CloseAll(fds) }()
	var kept keptLayout
	if len(r.Blob) == 0 || r.Blob[0] != recordVersion {
		return fmt.Errorf("the record has another version: must be %d", recordVersion)
	}
	if err := gob.NewDecoder(bytes.NewReader(r.Blob[1:])).Decode(&kept); err != nil {
		return err
	}
	u, err := s.enter(kept.GPU, kept.Tag, "")
	if err != nil {
		return err
	}
	defer s.exit(u, "", true)
	allocations := kept.Layout.Allocations
	if len(allocations) != len(fds) {
		return fmt.Errorf("%d descriptors of %d allocations", len(fds), len(allocations))
	}
	machine, err := layout.Restore(s.newID, kept.Layout)
	if err != nil {
		return err
	}
	memory := make(map[string]backend.Memory, len(allocations))
	for _, a := range allocations {
		fd := fds[0]
		fds = fds[1:]
		m, err := u.gpu.Backend.Restore(fd, a.AlignedSize)
		if err != nil {
			for _, m := range memory {
				u.releaser.add(m)
			}
			return fmt.Errorf("allocation %s of %d bytes: %w", a.ID, a.AlignedSize, err)
		}
		memory[a.ID] = m
	}
	u.mu.Lock()
	u.machine, u.memory = machine, memory
	u.mu.Unlock()
	u.restored = time.Now()
	u.unusedSince = u.restored
	u.kept.Store(true)
	u.logger.Info("restored a committed layout", "allocations", len(allocations), "hash", kept.Layout.Hash)
	return nil
}
