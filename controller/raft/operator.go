package raft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"remuda/controller/state"
)

// Peers returns the members as this server knows them, in the cluster's order.
func (n *Node) Peers() ([]Peer, error) {
	servers, err := n.configuration()
	peers := make([]Peer, len(servers))
	for i, s := range servers {
		peers[i] = peerOf(s)
	}
	return peers, err
}

// configuration returns the members. A change that is made from it must hold n.members
// since before the call: hashicorp/raft does not report the index of the configuration
// (Index of its future is always 0), so that changes cannot be compared and set.
func (n *Node) configuration() ([]hraft.Server, error) {
	f := n.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("raft: members: %w", err)
	}
	return f.Configuration().Servers, nil
}

// RemovePeer removes a server from the cluster. It does nothing if the server is not a
// member. Only the leader can.
func (n *Node) RemovePeer(ctx context.Context, id string) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	if id == "" {
		return errors.New("raft: missing the ID of the server to remove")
	}
	n.members.Lock()
	defer n.members.Unlock()
	servers, err := n.configuration()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(servers, func(s hraft.Server) bool { return string(s.ID) == id }) {
		return nil
	}
	if onlyVoter(servers, id) {
		return errors.New("raft: cannot remove the last voter")
	}
	if err := n.await(ctx, n.raft.RemoveServer(hraft.ServerID(id), 0, n.cfg.ApplyTimeout)); err != nil {
		return err
	}
	n.autopilot.forget(id)
	n.log.Info("server removed", "id", id)
	return nil
}

// TransferLeadership makes another voter lead; any if id is empty.
func (n *Node) TransferLeadership(ctx context.Context, id string) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	var f hraft.Future
	if id == "" {
		f = n.raft.LeadershipTransfer()
	} else {
		servers, err := n.configuration()
		if err != nil {
			return err
		}
		for _, s := range servers {
			if string(s.ID) == id && s.Suffrage == hraft.Voter {
				f = n.raft.LeadershipTransferToServer(s.ID, s.Address)
			}
		}
		if f == nil {
			return fmt.Errorf("raft: no voter has the ID %s", id)
		}
	}
	if err := n.await(ctx, f); err != nil {
		return fmt.Errorf("raft: transfer leadership: %w", err)
	}
	return nil
}

// Leave removes this server from the cluster, so that the others do not need it for a
// majority; a leader transfers leadership first. The last server stays a member, because
// no other has the state. Close it afterwards.
func (n *Node) Leave(ctx context.Context) error {
	// A server that still sends requests to join would be back at once.
	n.membership.cancel()
	select {
	case <-n.membership.done:
	case <-ctx.Done():
		return fmt.Errorf("raft: leave: %w", ctx.Err())
	}
	for {
		err := n.tryLeave(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		n.log.Info("leave failed, retrying", "reason", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("raft: leave: %w", err)
		case <-n.ctx.Done():
			return ErrClosed
		case <-time.After(n.cfg.RetryInterval):
		}
	}
}

func (n *Node) tryLeave(ctx context.Context) error {
	servers, err := n.configuration()
	if err != nil {
		return err
	}
	only := onlyVoter(servers, n.ID())
	if len(servers) == 0 && !n.membership.joinSent || len(servers) == 1 && only {
		return nil
	}
	if only {
		return errOnlyVoter
	}
	if n.raft.State() == hraft.Leader {
		if err := n.TransferLeadership(ctx, ""); err != nil {
			return err
		}
	}
	var addresses []string
	switch l := n.Leader(); l.ID {
	case n.ID():
		return n.notLeader()
	case "":
		for _, s := range servers {
			addresses = append(addresses, string(s.Address))
		}
		addresses = append(addresses, n.cfg.Join...)
		addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == n.Address() })
	default:
		addresses = []string{l.Address}
	}
	if len(addresses) == 0 {
		return n.notLeader()
	}
	return n.callLeader(ctx, addresses, rpcRequest{Op: opLeave, Peer: Peer{ID: n.ID()}})
}

// WriteSnapshot writes a view of this server's store as a snapshot.
func (n *Node) WriteSnapshot(v *state.View, w io.Writer) (state.SnapshotInfo, error) {
	return v.WriteSnapshot(w, n.fsm.needs())
}

// RestoreSnapshot replaces the state of the whole cluster with a saved one. Only the
// leader can. A snapshot that is damaged, newer than this server, or of a higher feature
// level than a member has is refused before anything is changed; commands that are under
// way get ErrUnknownOutcome. It may be of another cluster. It is spooled into the data
// directory.
func (n *Node) RestoreSnapshot(ctx context.Context, r io.Reader) (info state.SnapshotInfo, err error) {
	if err := n.Verify(ctx); err != nil {
		return info, err
	}
	spool, err := os.CreateTemp(n.cfg.DataDir, "restore-*")
	if err != nil {
		return info, fmt.Errorf("raft: restore: %w", err)
	}
	defer func() {
		err = errors.Join(err, spool.Close(), os.Remove(spool.Name()))
	}()
	// Raft panics where its leader cannot read what it was given: all is read before.
	if info, err = state.Inspect(io.TeeReader(r, spool), n.cfg.FeatureLevel); err != nil {
		return info, fmt.Errorf("raft: restore: %w", err)
	}
	if err := n.checkLevel(info.FeatureLevel); err != nil {
		return info, fmt.Errorf("raft: restore: %w", err)
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return info, fmt.Errorf("raft: restore: %w", err)
	}
	timeout := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline), time.Millisecond)
	}
	meta := &hraft.SnapshotMeta{Version: hraft.SnapshotVersionMax, Index: info.Index, Size: info.Bytes}
	if err := n.raft.Restore(meta, spool, timeout); err != nil {
		if errors.Is(err, hraft.ErrNotLeader) {
			return info, n.notLeader()
		}
		return info, fmt.Errorf("raft: restore: %w: %w", ErrUnknownOutcome, err)
	}
	n.log.Info("state restored", "index", info.Index, "bytes", info.Bytes)
	return info, nil
}

// removeSpools deletes what a restore left that was killed.
func removeSpools(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, "restore-*"))
	for _, f := range old {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}
