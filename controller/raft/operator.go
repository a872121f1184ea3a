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
	peers, _, err := n.configuration()
	return peers, err
}

// configuration returns the members and the index of the log's entry that says so.
func (n *Node) configuration() ([]Peer, uint64, error) {
	f := n.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, 0, fmt.Errorf("raft: peers: %w", err)
	}
	servers := f.Configuration().Servers
	peers := make([]Peer, len(servers))
	for i, s := range servers {
		peers[i] = Peer{ID: string(s.ID), Address: string(s.Address)}
	}
	return peers, f.Index(), nil
}

// RemovePeer takes a server out of the cluster; one that is not in it is no error.
// Only the leader can.
func (n *Node) RemovePeer(ctx context.Context, id string) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	peers, err := n.Peers()
	if err != nil {
		return err
	}
	if len(peers) == 1 && peers[0].ID == id {
		return errors.New("raft: cannot remove the last server")
	}
	if err := n.await(ctx, n.raft.RemoveServer(hraft.ServerID(id), 0, n.cfg.ApplyTimeout)); err != nil {
		return err
	}
	n.log.Info("server removed", "id", id)
	return nil
}

// TransferLeadership makes another server lead; any where id is empty.
func (n *Node) TransferLeadership(ctx context.Context, id string) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	var f hraft.Future
	if id == "" {
		f = n.raft.LeadershipTransfer()
	} else {
		peers, err := n.Peers()
		if err != nil {
			return err
		}
		for _, p := range peers {
			if p.ID == id {
				f = n.raft.LeadershipTransferToServer(hraft.ServerID(p.ID), hraft.ServerAddress(p.Address))
			}
		}
		if f == nil {
			return fmt.Errorf("raft: no server has the ID %s", id)
		}
	}
	if err := n.await(ctx, f); err != nil {
		return fmt.Errorf("raft: transfer leadership: %w", err)
	}
	return nil
}

// Leave takes this server out of the cluster, so that the others need it no more for
// a majority; a leader hands over first. The last server stays: it has nobody to
// leave the state to. Close it afterwards.
func (n *Node) Leave(ctx context.Context) error {
	// One that still asks to be taken in would be back at once.
	n.part.end()
	select {
	case <-n.part.over:
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
	peers, err := n.Peers()
	if err != nil {
		return err
	}
	if len(peers) == 0 && !n.part.asked || len(peers) == 1 && peers[0].ID == n.ID() {
		return nil
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
		for _, p := range peers {
			addresses = append(addresses, p.Address)
		}
		addresses = append(addresses, n.cfg.Join...)
		addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == n.Address() })
	default:
		addresses = []string{l.Address}
	}
	if len(addresses) == 0 {
		return n.notLeader()
	}
	return n.askLeader(ctx, addresses, question{Op: opLeave, Peer: Peer{ID: n.ID()}})
}

// RestoreSnapshot replaces the state of the whole cluster with a saved one. Only the
// leader can. A snapshot that is damaged or of a newer version is refused before
// anything is changed; commands that are under way get ErrUnknownOutcome. It may be of
// another cluster. It is spooled into the data directory.
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
	if info, err = state.Inspect(io.TeeReader(r, spool)); err != nil {
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
