package raft

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
)

// Servers ask each other a few things beside Raft: one JSON line there and one back,
// each on a connection of its own.

// The operations.
const (
	// opHello: who are you, and who leads?
	opHello = "hello"
	// opPromise: will you be one of these servers, and of no others, when a cluster
	// is formed?
	opPromise = "promise"
	// opJoin: take me in. Only the leader can.
	opJoin = "join"
	// opLeave: take that server out. Only the leader can.
	opLeave = "leave"
)

// maxMessage is the longest line.
const maxMessage = 64 << 10

// peeringTimeout bounds one question. Taking a server in takes a commit.
const peeringTimeout = 10 * time.Second

type question struct {
	Op      string
	Cluster string
	// ClusterID is the asker's, empty where it has none yet.
	ClusterID string
	// Peer is who joins or leaves.
	Peer Peer
	// Servers are those of a promise, by ID.
	Servers []Peer
}

type answer struct {
	Error string
	// NotLeader: ask Leader instead.
	NotLeader bool
	Leader    Peer

	// The rest is of a hello.
	Peer      Peer
	Cluster   string
	ClusterID string
	// Formed: it belongs to a cluster that has been formed.
	Formed bool
	// Leaving: it does not want to be taken in any more.
	Leaving bool
	Expect  int
	API     string
}

// ask puts a question to the server at an address.
func (n *Node) ask(ctx context.Context, address string, q question) (answer, error) {
	q.Cluster, q.ClusterID = n.cfg.Cluster, n.identity.get().ClusterID
	ctx, cancel := context.WithTimeout(ctx, peeringTimeout)
	defer cancel()
	var a answer
	conn, err := n.streams.open(ctx, address, streamPeering)
	if err != nil {
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	if err := json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(&a); err != nil {
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	if a.Error != "" && !a.NotLeader {
		return a, fmt.Errorf("rejected by %s: %s", address, a.Error)
	}
	return a, nil
}

func (n *Node) servePeering(conn net.Conn) {
	if err := conn.SetDeadline(time.Now().Add(peeringTimeout)); err != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxMessage)).ReadBytes('\n')
	if err != nil {
		return
	}
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return
	}
	a := n.answer(q)
	if a.Error != "" && !a.NotLeader {
		n.log.Warn("request of another server rejected", "op", q.Op, "from", conn.RemoteAddr().String(), "peer", q.Peer.ID, "reason", a.Error)
	}
	// Whoever does not wait for the answer asks again.
	_ = json.NewEncoder(conn).Encode(a)
}

func (n *Node) answer(q question) answer {
	var err error
	if q.Cluster != n.cfg.Cluster {
		return answer{Error: fmt.Sprintf("this server is in cluster %q, not %q", n.cfg.Cluster, q.Cluster)}
	}
	mine := n.identity.get().ClusterID
	if q.ClusterID != "" && mine != "" && q.ClusterID != mine && q.Op != opPromise {
		return answer{Error: fmt.Sprintf("this server belongs to the cluster with ID %s, the other one to %s", mine, q.ClusterID)}
	}
	ctx, cancel := context.WithTimeout(n.ctx, peeringTimeout)
	defer cancel()
	switch q.Op {
	case opHello:
		return n.hello()
	case opPromise:
		err = n.promise(q.Servers)
	case opJoin:
		err = n.takeIn(ctx, q)
	case opLeave:
		err = n.RemovePeer(ctx, q.Peer.ID)
	default:
		err = fmt.Errorf("unknown operation %q", q.Op)
	}
	if err == nil {
		return answer{ClusterID: n.identity.get().ClusterID}
	}
	a := answer{Error: err.Error()}
	if errors.Is(err, ErrNotLeader) {
		a.NotLeader, a.Leader = true, n.Leader()
	}
	return a
}

func (n *Node) hello() answer {
	return answer{
		Leader: n.Leader(), Peer: Peer{n.ID(), n.Address()}, Cluster: n.cfg.Cluster, ClusterID: n.identity.get().ClusterID,
		Formed: n.formed(), Leaving: n.part.ctx.Err() != nil, Expect: n.cfg.BootstrapExpect, API: n.cfg.API,
	}
}

// LeaderAPI asks the leader for the address of its HTTP API.
func (n *Node) LeaderAPI(ctx context.Context) (string, error) {
	l := n.Leader()
	switch l.ID {
	case "":
		return "", n.notLeader()
	case n.ID():
		return n.cfg.API, nil
	}
	a, err := n.ask(ctx, l.Address, question{Op: opHello})
	if err != nil {
		return "", fmt.Errorf("raft: %w", err)
	}
	if a.Peer.ID != l.ID {
		return "", fmt.Errorf("raft: server at the leader's address %s is %s, not %s", l.Address, a.Peer.ID, l.ID)
	}
	return a.API, nil
}

// formed tells whether this server is, or was, of a cluster.
func (n *Node) formed() bool {
	peers, err := n.Peers()
	return err != nil || len(peers) > 0
}

// takeIn makes a server a member. It must answer at its address with its ID: a server
// that nobody reaches would cost the cluster its majority.
func (n *Node) takeIn(ctx context.Context, q question) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	if q.Peer.ID == "" || q.Peer.Address == "" {
		return errors.New("a joining server must send its ID and address")
	}
	if mine := n.identity.get().ClusterID; q.ClusterID != mine {
		return fmt.Errorf("a joining server must send the cluster's ID, %s", mine)
	}
	peers, index, err := n.configuration()
	if err != nil {
		return err
	}
	if slices.Contains(peers, q.Peer) {
		return nil
	}
	a, err := n.ask(ctx, q.Peer.Address, question{Op: opHello})
	if err != nil {
		return fmt.Errorf("the leader cannot reach address %s: %w", q.Peer.Address, err)
	}
	if a.Peer.ID != q.Peer.ID {
		return fmt.Errorf("server at address %s is %s, not %s", q.Peer.Address, a.Peer.ID, q.Peer.ID)
	}
	if a.Leaving {
		return fmt.Errorf("server %s is leaving", q.Peer.ID)
	}
	for _, p := range peers {
		if p.Address == q.Peer.Address && p.ID != q.Peer.ID {
			n.log.Info("server joins again with a new ID: its data was lost", "address", p.Address, "was", p.ID, "is", q.Peer.ID)
			f := n.raft.RemoveServer(hraft.ServerID(p.ID), index, n.cfg.ApplyTimeout)
			if err := n.await(ctx, f); err != nil {
				return err
			}
			index = f.Index()
		}
	}
	n.log.Info("server joins", "id", q.Peer.ID, "address", q.Peer.Address)
	// Not if the members have changed since: it may have left meanwhile.
	return n.await(ctx, n.raft.AddVoter(hraft.ServerID(q.Peer.ID), hraft.ServerAddress(q.Peer.Address), index, n.cfg.ApplyTimeout))
}
