package raft

import (
	"context"
	"io"

	"remuda/controller/state"
)

// Asking is closed when the node asks no server any more to be taken in.
func (n *Node) Asking() <-chan struct{} { return n.part.over }

// ApplyRaw applies bytes that no Command of this version makes.
func (n *Node) ApplyRaw(ctx context.Context, data []byte) error {
	_, err := n.apply(ctx, data)
	return err
}

// SaveSnapshot writes the state to w, as a Verified or a Stale read sees it.
func (n *Node) SaveSnapshot(ctx context.Context, w io.Writer, c Consistency) (state.SnapshotInfo, error) {
	v, err := n.Read(ctx, c)
	if err != nil {
		return state.SnapshotInfo{}, err
	}
	return v.WriteSnapshot(w)
}
