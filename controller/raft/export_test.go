package raft

import "context"

// ApplyRaw applies bytes that no Command of this version makes.
func (n *Node) ApplyRaw(ctx context.Context, data []byte) error {
	_, err := n.apply(ctx, data)
	return err
}
