package raft

import (
	"context"
	"io"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// JoinLoopDone is closed when the node sends no more requests to join.
func (n *Node) JoinLoopDone() <-chan struct{} { return n.membership.done }

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
	return n.WriteSnapshot(v, w)
}

// LastIndex is that of the last entry in the log.
func (n *Node) LastIndex() uint64 { return n.raft.LastIndex() }

// Pipeline asks for a pipeline to a server.
func (n *Node) Pipeline(id, address string) error {
	_, err := n.transport.AppendEntriesPipeline(hraft.ServerID(id), hraft.ServerAddress(address))
	return err
}

// Heartbeats starts a transport with a handler of heartbeats. send sends it one over the
// network and returns the answer; stop is what Close does before the log store is closed.
func Heartbeats(t testing.TB, handle func(hraft.RPC)) (send func() error, stop func()) {
	config := func() *hraft.NetworkTransport {
		tcp, err := hraft.NewTCPTransport("127.0.0.1:0", nil, 1, time.Minute, io.Discard)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tcp.Close() })
		return tcp
	}
	to, from := &transport{NetworkTransport: config()}, config()
	to.SetHeartbeatHandler(handle)
	return func() error {
		// A heartbeat is an append of nothing; see hraft's NetworkTransport.
		rq := hraft.AppendEntriesRequest{RPCHeader: hraft.RPCHeader{ProtocolVersion: 3, Addr: []byte("a")}, Term: 1, Leader: []byte("a")}
		return from.AppendEntries("a", to.LocalAddr(), &rq, &hraft.AppendEntriesResponse{})
	}, to.stopHeartbeats
}
