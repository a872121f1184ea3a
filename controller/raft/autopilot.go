package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

const (
	// observeTimeout bounds how long a member may take to answer an observation.
	observeTimeout = 2 * time.Second
	// maxTrailing is how many entries a server that has caught up may be behind, as in
	// Consul.
	maxTrailing = 250
)

// Member is a server of the cluster, as the answering server sees it.
type Member struct {
	Peer
	// Voter counts for the majority and may lead.
	Voter bool
	// FeatureLevel is 0 until the answering server has reached the member.
	FeatureLevel int
	// API is the address of its HTTP API, empty until the answering server has reached the member.
	API string
	// PromotionBlocked is why a non-voter is not made a voter; empty for voters.
	PromotionBlocked string
}

// observation is what this server has seen of another member.
type observation struct {
	level int
	// api is the address of its HTTP API.
	api string
	// healthySince is when the member was first seen to follow the leader without being
	// behind, with no break since; zero while there is a problem.
	healthySince time.Time
	problem      string
}

// autopilot observes the members. Every server does, so that a new leader knows them.
type autopilot struct {
	mu      sync.Mutex
	members map[string]observation
}

func (a *autopilot) get(id string) observation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.members[id]
}

// record replaces the last observation. What the new one does not have, it keeps.
func (a *autopilot) record(id string, o observation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.members[id]
	o.level, o.api = cmp.Or(o.level, was.level), cmp.Or(o.api, was.api)
	if o.problem == "" && !was.healthySince.IsZero() {
		o.healthySince = was.healthySince
	}
	a.members[id] = o
}

// forget removes what was seen of a server.
func (a *autopilot) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.members, id)
}

// keep removes what was seen of servers that are not members.
func (a *autopilot) keep(members []hraft.Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.members {
		if !slices.ContainsFunc(members, func(s hraft.Server) bool { return string(s.ID) == id }) {
			delete(a.members, id)
		}
	}
}

// runAutopilot observes the members and, on the leader, promotes non-voters.
func (n *Node) runAutopilot() {
	ticker := time.NewTicker(n.cfg.ServerStabilizationTime / 5)
	defer ticker.Stop()
	warned := map[hraft.ServerID]bool{}
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.failed:
			return
		case <-ticker.C:
		}
		servers, err := n.configuration()
		if err != nil {
			continue
		}
		n.observe(servers)
		if now, _ := n.Leadership(); !now.Leader {
			clear(warned)
			continue
		}
		for _, s := range servers {
			if s.Suffrage == hraft.Voter {
				continue
			}
			switch why := n.promotionBlocked(s); {
			case why == "":
				if err := n.addVoter(n.ctx, string(s.ID)); err != nil {
					n.log.Warn("cannot make the server a voter", "id", s.ID, "error", err)
				}
			case !n.expects(s) && !warned[s.ID]:
				warned[s.ID] = true
				n.log.Warn("the server stays a non-voter", "id", s.ID, "reason", why)
			}
		}
	}
}

func (n *Node) observe(servers []hraft.Server) {
	n.autopilot.keep(servers)
	var wg sync.WaitGroup
	for _, s := range servers {
		if p := peerOf(s); p.ID != n.ID() {
			wg.Go(func() { n.autopilot.record(p.ID, n.observeMember(p)) })
		}
	}
	wg.Wait()
}

func (n *Node) observeMember(p Peer) observation {
	ctx, cancel := context.WithTimeout(n.ctx, observeTimeout)
	defer cancel()
	commit, leader := n.raft.CommitIndex(), n.Leader()
	a, err := n.call(ctx, p.Address, rpcRequest{Op: opHello})
	switch {
	case err != nil:
		return observation{problem: err.Error()}
	case a.Peer.ID != p.ID:
		return observation{problem: fmt.Sprintf("the server at its address has the ID %s", a.Peer.ID)}
	}
	o := observation{level: a.FeatureLevel, api: a.API}
	switch {
	case a.Leaving:
		o.problem = "it is leaving"
	case leader.ID == "" || a.Leader.ID != leader.ID:
		o.problem = "it does not follow the leader"
	case a.Applied+maxTrailing < commit:
		o.problem = fmt.Sprintf("it is %d log entries behind: at most %d are allowed", commit-a.Applied, maxTrailing)
	default:
		o.healthySince = time.Now()
	}
	return o
}

// promotionBlocked returns why the leader does not make a non-voter a voter yet.
func (n *Node) promotionBlocked(s hraft.Server) string {
	o := n.autopilot.get(string(s.ID))
	stable := time.Since(o.healthySince)
	switch {
	case o.healthySince.IsZero():
		return cmp.Or(o.problem, "it was not observed yet")
	case !n.expects(s):
		return fmt.Sprintf("its address is not in the setting \"join\" of the leader: run \"remuda raft promote %s\"", s.ID)
	case stable < n.cfg.ServerStabilizationTime:
		return fmt.Sprintf("it was healthy for %s: must be for %s", stable.Round(time.Second), n.cfg.ServerStabilizationTime)
	}
	return ""
}

// expects returns whether a server may become a voter without an operator.
func (n *Node) expects(s hraft.Server) bool { return slices.Contains(n.cfg.Join, string(s.Address)) }

// addVoter makes a non-voter a voter if it is healthy now. It does nothing to a voter.
func (n *Node) addVoter(ctx context.Context, id string) error {
	n.members.Lock()
	defer n.members.Unlock()
	servers, err := n.configuration()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(servers, func(s hraft.Server) bool { return string(s.ID) == id })
	if i < 0 {
		return fmt.Errorf("raft: no server has the ID %s", id)
	}
	s := servers[i]
	if s.Suffrage == hraft.Voter {
		return nil
	}
	if o := n.observeMember(peerOf(s)); o.problem != "" {
		return fmt.Errorf("raft: server %s %w: %s", id, ErrUnhealthy, o.problem)
	}
	if err := n.await(ctx, n.raft.AddVoter(s.ID, s.Address, 0, n.cfg.ApplyTimeout)); err != nil {
		return err
	}
	n.log.Info("server is a voter", "id", s.ID, "address", s.Address)
	return nil
}

// Promote makes a non-voter a voter without waiting until it was stable. It does nothing to
// a voter. A server that has not caught up is refused: as a voter it could cost the cluster
// its majority. Only the leader can.
func (n *Node) Promote(ctx context.Context, id string) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	return n.addVoter(ctx, id)
}

// Members returns the servers of the cluster in the cluster's order.
func (n *Node) Members() ([]Member, error) {
	servers, err := n.configuration()
	if err != nil {
		return nil, err
	}
	members := make([]Member, len(servers))
	for i, s := range servers {
		seen := n.autopilot.get(string(s.ID))
		m := Member{Peer: peerOf(s), Voter: s.Suffrage == hraft.Voter, FeatureLevel: seen.level, API: seen.api}
		if m.ID == n.ID() {
			m.FeatureLevel, m.API = n.cfg.FeatureLevel, n.cfg.API
		} else if !m.Voter {
			m.PromotionBlocked = n.promotionBlocked(s)
		}
		members[i] = m
	}
	return members, nil
}

// FeatureLevel returns the lowest feature level of all members. A member that this server
// has not reached yet counts as the lowest level there is, 1.
func (n *Node) FeatureLevel() int {
	level := n.cfg.FeatureLevel
	members, err := n.Members()
	if err != nil {
		return 1
	}
	for _, m := range members {
		level = min(level, max(m.FeatureLevel, 1))
	}
	return level
}

// checkLevel returns an error that names the members of a lower feature level. A level that the
// state needs already is no question: every member has to have it, also one that has not been
// reached since this server was started.
func (n *Node) checkLevel(need int) error {
	if need <= n.fsm.needs() {
		return nil
	}
	members, err := n.Members()
	if err != nil {
		return err
	}
	var behind []string
	for _, m := range members {
		switch {
		case m.FeatureLevel == 0:
			behind = append(behind, fmt.Sprintf("%s at %s (unknown: not reached yet)", m.ID, m.Address))
		case m.FeatureLevel < need:
			behind = append(behind, fmt.Sprintf("%s at %s (%d)", m.ID, m.Address, m.FeatureLevel))
		}
	}
	if behind == nil {
		return nil
	}
	return fmt.Errorf("%w %d: %s: upgrade these servers", ErrFeatureLevel, need, strings.Join(behind, ", "))
}

func peerOf(s hraft.Server) Peer { return Peer{ID: string(s.ID), Address: string(s.Address)} }

// errOnlyVoter is for the last voter of a cluster that has non-voters.
var errOnlyVoter = errors.New("raft: this is the only voter: promote another server first (remuda raft promote)")

// onlyVoter returns whether a server is the only voter.
func onlyVoter(servers []hraft.Server, id string) bool {
	voters := slices.DeleteFunc(slices.Clone(servers), func(s hraft.Server) bool { return s.Suffrage != hraft.Voter })
	return len(voters) == 1 && string(voters[0].ID) == id
}
