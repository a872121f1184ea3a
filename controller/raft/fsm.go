package raft

import (
	"errors"
	"io"
	"sync/atomic"

	hraft "github.com/hashicorp/raft"

	"remuda/controller/state"
)

// fsm is the store as Raft sees it.
type fsm struct {
	store *state.Store
	// halted is why nothing is applied any more; nil while all is well.
	halted atomic.Pointer[error]
	// halt is called once, with the reason.
	halt func(error)
}

var _ hraft.FSM = (*fsm)(nil)

// Apply implements hraft.FSM; its value is a state.Result. A command that this
// version does not know and must not skip stops the server: the others go on with a
// state that this one cannot have, and it must neither lead nor make snapshots.
func (f *fsm) Apply(l *hraft.Log) any {
	if why := f.halted.Load(); why != nil {
		return state.Result{Index: l.Index, Err: &state.Error{Code: state.CodeUnknownCommand, Message: (*why).Error()}}
	}
	res := f.store.Apply(l.Index, l.Data)
	if res.Err != nil && res.Err.Code == state.CodeUnknownCommand {
		var why error = res.Err
		f.halted.Store(&why)
		f.halt(why)
	}
	return res
}

// Snapshot implements hraft.FSM.
func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	if why := f.halted.Load(); why != nil {
		return nil, *why
	}
	return snapshot{f.store.View()}, nil
}

// Restore implements hraft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	return errors.Join(f.store.Restore(r), r.Close())
}

type snapshot struct{ view *state.View }

// Persist implements hraft.FSMSnapshot.
func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	if _, err := s.view.WriteSnapshot(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements hraft.FSMSnapshot.
func (s snapshot) Release() {}
