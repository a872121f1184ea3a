package raft

import (
	"errors"
	"fmt"
)

// Errors of a Node.
var (
	// ErrNotLeader is matched by every *NotLeaderError. Nothing was changed.
	ErrNotLeader = errors.New("not the leader")
	// ErrUnknownOutcome: the command may be applied or not, now or later. The caller must read
	// the state, or retry with a compare-and-set.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
	// ErrBusy: the leader could not take the command in time. Nothing was changed.
	ErrBusy = errors.New("the leader is busy")
	// ErrFeatureLevel: a member of the cluster cannot apply the command, or cannot have the
	// state of the snapshot. Nothing was changed.
	ErrFeatureLevel = errors.New("not all servers have feature level")
	// ErrUnhealthy: a server cannot be made a voter. Nothing was changed.
	ErrUnhealthy = errors.New("is not healthy")
	// ErrClosed: the node is closed. Nothing was changed.
	ErrClosed = errors.New("raft is closed")
)

// NotLeaderError names the current leader.
type NotLeaderError struct {
	// ID and Address are the leader's as far as this server knows, empty if there is none. The
	// address is the one of Raft.
	ID, Address string
}

// Error implements error.
func (e *NotLeaderError) Error() string {
	if e.ID == "" {
		return "not the leader, and the cluster has no leader"
	}
	return fmt.Sprintf("not the leader: the leader is %s at %s", e.ID, e.Address)
}

// Is implements the interface of errors.Is.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader } //nolint:errorlint // Is itself compares.
