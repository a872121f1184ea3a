package raft

import (
	"context"
	"io"

	"remuda/controller/state"
)

// Asking is closed when the node sends no more requests to join.
func (n *Node) Asking() <-chan struct{} { return n.membership.over }

// ApplyRaw applies bytes that no Command of this version makes.
func (n *Node) ApplyRaw(ctx context.Context, data []byte) error {
	_, err := n.apply(ctx, data, 1)
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

// LastIndex is that of the last entry in the log.
func (n *Node) LastIndex() uint64 { return n.raft.LastIndex() }
