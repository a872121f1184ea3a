package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	hraft "github.com/hashicorp/raft"
)

// membership is the state of the join loop, which makes this server a member of a cluster.
type membership struct {
	// ctx ends when the server leaves or is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// done is closed once no more requests to join are sent.
	done chan struct{}
	// joinSent is set once a request to join was sent: from then on this server may be a member
	// without knowing it. Read it only after done is closed.
	joinSent bool
}

func (m *membership) start(ctx context.Context) {
	m.ctx, m.cancel = context.WithCancel(ctx)
	m.done = make(chan struct{})
}

// runMembership is the join loop. It calls joinOnce until this server is a member of the existing
// cluster or of a new one.
func (n *Node) runMembership() {
	defer close(n.membership.done)
	logged := ""
	for {
		peers, err := n.Peers()
		member := err == nil && slices.Contains(peers, Peer{n.ID(), n.Address()})
		// The local log alone does not prove membership: a server that was removed while it was
		// down still finds itself in its log, but no leader writes to it any more.
		if member && (n.Leader().ID != "" || len(n.cfg.Join) == 0) {
			return
		}
		if err == nil && n.cfg.BootstrapExpect == 0 && len(n.cfg.Join) == 0 {
			n.log.Warn("this server is not a member of a cluster, and has no servers to join: set join")
			return
		}
		if err = n.joinOnce(); err != nil && n.membership.ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			if member {
				n.log.Info("no leader yet", "reason", logged)
			} else {
				n.log.Info("not a member of a cluster yet", "reason", logged)
			}
		}
		select {
		case <-n.membership.ctx.Done():
			return
		case <-n.failed:
			return
		case <-time.After(n.cfg.RetryInterval):
		}
	}
}

// joinOnce sends a hello to all servers, and joins or forms a cluster if it can.
func (n *Node) joinOnce() error {
	me := n.hello()
	group := []rpcResponse{me}
	var errs []error
	var formed []rpcResponse
	for _, address := range n.cfg.Join {
		if address == n.Address() {
			continue
		}
		a, err := n.call(n.membership.ctx, address, rpcRequest{Op: opHello})
		switch {
		case err != nil:
			errs = append(errs, err)
		case a.Formed:
			formed = append(formed, a)
		case !slices.ContainsFunc(group, func(other rpcResponse) bool { return other.Peer == a.Peer }):
			group = append(group, a)
		}
	}
	if len(formed) > 0 {
		return n.join(formed)
	}
	switch {
	case me.Formed:
		// Its address is new, or it was removed: only the cluster can help it.
		return errors.Join(append(errs, errors.New("none of the other servers is a member of the cluster"))...)
	case n.cfg.BootstrapExpect == 0:
		return errors.Join(append(errs, errors.New("none of the servers to join is a member of a cluster"))...)
	case len(group) < n.cfg.BootstrapExpect:
		return errors.Join(append(errs, fmt.Errorf("%d of %d servers are reachable", len(group), n.cfg.BootstrapExpect))...)
	}
	return n.form(group)
}

// join requests membership of the cluster that was found.
func (n *Node) join(formed []rpcResponse) error {
	id := formed[0].ClusterID
	for _, a := range formed {
		if a.ClusterID != id {
			return fmt.Errorf("%s and %s belong to different clusters, %s and %s", formed[0].Peer.Address, a.Peer.Address, id, a.ClusterID)
		}
	}
	// Durable before it is a member, so that it can never be a member of two clusters.
	err := n.identity.change(func(doc *identityDoc) error {
		if doc.ClusterID == id {
			return nil
		}
		if n.formed() || doc.ClusterID != "" {
			return fmt.Errorf("the servers to join belong to cluster %s, and this one to %s: if that cluster no longer exists, delete this server's data directory", id, doc.ClusterID)
		}
		doc.ClusterID = id
		return nil
	})
	if err != nil {
		return err
	}
	var addresses []string
	for _, a := range formed {
		addresses = append(addresses, a.Peer.Address)
	}
	n.membership.joinSent = true
	return n.callLeader(n.membership.ctx, addresses, rpcRequest{Op: opJoin, Peer: Peer{n.ID(), n.Address()}})
}

// callLeader sends a request to the servers at these addresses, and to the leaders that they
// report, until the leader has executed it.
func (n *Node) callLeader(ctx context.Context, addresses []string, q rpcRequest) error {
	var errs []error
	for _, address := range addresses {
		reply, err := n.call(ctx, address, q)
		if err == nil && reply.NotLeader && reply.Leader.Address != "" {
			reply, err = n.call(ctx, reply.Leader.Address, q)
		}
		if err == nil && reply.Error == "" {
			return nil
		}
		if err == nil {
			err = errors.New(reply.Error)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// form makes a new cluster of a group. Servers that reach different subsets of each other never
// form more than one: every server of a group promises, durably, to belong to that group only,
// and the server with the lowest ID bootstraps the cluster when all have promised. The others
// learn of it from their leader.
func (n *Node) form(group []rpcResponse) error {
	if len(group) != n.cfg.BootstrapExpect {
		return fmt.Errorf("%d servers are reachable and %d are expected", len(group), n.cfg.BootstrapExpect)
	}
	servers := make([]Peer, 0, len(group))
	for _, a := range group {
		if a.Expect != n.cfg.BootstrapExpect {
			return fmt.Errorf("%s expects %d servers, this one %d", a.Peer.Address, a.Expect, n.cfg.BootstrapExpect)
		}
		servers = append(servers, a.Peer)
	}
	slices.SortFunc(servers, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	if servers[0].ID != n.ID() {
		return fmt.Errorf("waiting for %s to form the cluster", servers[0].Address)
	}
	for _, p := range servers[1:] {
		if _, err := n.call(n.membership.ctx, p.Address, rpcRequest{Op: opPromise, Servers: servers}); err != nil {
			return err
		}
	}
	if err := n.promise(servers); err != nil {
		return err
	}
	cfg := hraft.Configuration{}
	for _, p := range servers {
		cfg.Servers = append(cfg.Servers, hraft.Server{Suffrage: hraft.Voter, ID: hraft.ServerID(p.ID), Address: hraft.ServerAddress(p.Address)})
	}
	n.log.Info("forming a new cluster", "id", clusterID(servers), "servers", len(servers))
	if err := n.raft.BootstrapCluster(cfg).Error(); err != nil && !errors.Is(err, hraft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// clusterID is the same for the same servers: forming them twice makes one cluster.
func clusterID(servers []Peer) string {
	var b strings.Builder
	for _, p := range servers {
		b.WriteString(p.ID + "\x00" + p.Address + "\x00")
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("remuda:"+b.String())).String()
}

// promise records durably that this server belongs to that group and to no other.
func (n *Node) promise(servers []Peer) error {
	if n.formed() {
		return errors.New("this server is already a member of a cluster")
	}
	if len(servers) != n.cfg.BootstrapExpect || !slices.Contains(servers, Peer{n.ID(), n.Address()}) {
		return fmt.Errorf("this server is %s at %s and expects %d servers: it does not match the group", n.ID(), n.Address(), n.cfg.BootstrapExpect)
	}
	return n.identity.change(func(doc *identityDoc) error {
		if doc.Promise != nil && !slices.Equal(doc.Promise, servers) {
			return fmt.Errorf("this server has already joined another group of servers: if that cluster was never formed, stop this server and delete %s", n.identity.path)
		}
		if doc.Promise == nil && doc.ClusterID != "" {
			return fmt.Errorf("this server is joining cluster %s", doc.ClusterID)
		}
		doc.Promise, doc.ClusterID = servers, clusterID(servers)
		return nil
	})
}
