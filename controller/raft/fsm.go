package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	hraft "github.com/hashicorp/raft"

	"remuda/controller/state"
)

// fsm is the store as Raft sees it.
//
// A log entry whose command needs a feature level above 1 has that level as its
// Extensions, and a snapshot has the highest level of all entries before it. So a server
// of a lower level stops at the first entry or snapshot that it cannot apply.
type fsm struct {
	store *state.Store
	// own is the feature level of this server.
	own int
	// level is what the state needs: the highest one of the restored snapshot and of the
	// entries applied since.
	level atomic.Int64
	// halted is why nothing is applied any more; nil while all is well.
	halted atomic.Pointer[error]
	// halt is called once, with the reason.
	halt func(error)
}

var _ hraft.FSM = (*fsm)(nil)

// levelSize is the length of an encoded level in bytes.
const levelSize = 4

func encodeLevel(level int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(level)) }

// needs returns the feature level that the state needs.
func (f *fsm) needs() int { return max(int(f.level.Load()), 1) }

// require halts this server if its own level is too low for an entry.
func (f *fsm) require(l *hraft.Log) error {
	level := int(binary.BigEndian.Uint32(l.Extensions))
	if level > f.own {
		return f.stop(fmt.Errorf("log entry %d needs feature level %d and this server has %d: upgrade this server", l.Index, level, f.own))
	}
	// Before the entry is applied, so that no snapshot has the entry and a lower level.
	f.level.Store(max(f.level.Load(), int64(level)))
	return nil
}

// stop halts this server, and returns why.
func (f *fsm) stop(why error) error {
	if f.halted.CompareAndSwap(nil, &why) {
		f.halt(why)
	}
	return why
}

// Apply implements hraft.FSM; its value is a state.Result. A command that this
// version does not know and must not skip stops the server: the others go on with a
// state that this one cannot have, and it must neither lead nor make snapshots.
func (f *fsm) Apply(l *hraft.Log) any {
	var err error
	if why := f.halted.Load(); why != nil {
		err = *why
	} else if len(l.Extensions) == levelSize {
		err = f.require(l)
	}
	if err != nil {
		return state.Result{Index: l.Index, Err: &state.Error{Code: state.CodeUnknownCommand, Message: err.Error()}}
	}
	res := f.store.Apply(l.Index, l.Data)
	if res.Err != nil && res.Err.Code == state.CodeUnknownCommand {
		_ = f.stop(res.Err)
	}
	return res
}

// Snapshot implements hraft.FSM.
func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	if why := f.halted.Load(); why != nil {
		return nil, *why
	}
	return snapshot{f.store.View(), f.needs()}, nil
}

// Restore implements hraft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	info, err := f.store.Restore(r, f.own)
	switch {
	case err == nil:
		f.level.Store(int64(info.FeatureLevel))
	case errors.Is(err, state.ErrSnapshotNewer):
		err = f.stop(err)
	}
	return errors.Join(err, r.Close())
}

type snapshot struct {
	view  *state.View
	level int
}

// Persist implements hraft.FSMSnapshot.
func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	if _, err := s.view.WriteSnapshot(sink, s.level); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements hraft.FSMSnapshot.
func (s snapshot) Release() {}
