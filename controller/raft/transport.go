package raft

import (
	"sync"

	hraft "github.com/hashicorp/raft"
)

// transport is Raft's network transport. Raft handles heartbeats on the connections'
// goroutines, which its shutdown does not wait for, and panics where one finds the log store
// closed; stopHeartbeats waits for them.
type transport struct {
	*hraft.NetworkTransport
	heartbeats sync.RWMutex
	stopped    bool
}

// SetHeartbeatHandler implements hraft.Transport.
func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc hraft.RPC) {
		t.heartbeats.RLock()
		defer t.heartbeats.RUnlock()
		if t.stopped {
			rpc.Respond(nil, hraft.ErrRaftShutdown)
			return
		}
		handle(rpc)
	})
}

// stopHeartbeats returns once no heartbeat is being handled; later ones are refused.
func (t *transport) stopHeartbeats() {
	t.heartbeats.Lock()
	defer t.heartbeats.Unlock()
	t.stopped = true
}
