package raft_test

import (
	"testing"

	hraft "github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
)

// TestHeartbeatsAreOverBeforeTheStoreIsClosed: Raft panics where a heartbeat finds it closed.
func TestHeartbeatsAreOverBeforeTheStoreIsClosed(t *testing.T) {
	handling, goOn, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	handled := 0
	send, stop := raft.Heartbeats(t, func(rpc hraft.RPC) {
		handled++
		close(handling)
		<-goOn
		rpc.Respond(&hraft.AppendEntriesResponse{}, nil)
	})
	answered := make(chan error, 1)
	go func() { answered <- send() }()
	<-handling
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		require.Fail(t, "stopped while a heartbeat is being handled")
	default:
	}
	close(goOn)
	require.NoError(t, <-answered)
	<-stopped
	require.ErrorContains(t, send(), hraft.ErrRaftShutdown.Error())
	require.Equal(t, 1, handled)
}

// TestAppendsAreNotPipelined: with Raft's pipeline a server that rejects an append at the wrong
// moment gets no entries any more, and its leader hangs in Close.
func TestAppendsAreNotPipelined(t *testing.T) {
	c := start(t, 2, nil)
	l := c.leader()
	other := c.others(l)[0]
	require.ErrorIs(t, l.node.Pipeline(other.node.ID(), other.address), hraft.ErrPipelineReplicationNotSupported)
}
