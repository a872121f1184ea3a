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

// Beside Raft, servers have a few RPCs: one JSON line there and one back, each on a
// connection of its own.

// The operations.
const (
	// opHello returns what a server is, and the leader that it knows.
	opHello = "hello"
	// opPromise makes a server promise to form a cluster with these servers and no others.
	opPromise = "promise"
	// opJoin adds a server to the cluster. Only the leader can.
	opJoin = "join"
	// opLeave removes a server from the cluster. Only the leader can.
	opLeave = "leave"
)

// maxMessage is the longest line.
const maxMessage = 64 << 10

// rpcTimeout bounds one RPC. To add a server takes a commit.
const rpcTimeout = 10 * time.Second

type rpcRequest struct {
	Op      string
	Cluster string
	// ClusterID is the client's, empty before it has one.
	ClusterID string
	// Peer is the server that joins or leaves.
	Peer Peer
	// Servers are those of a promise, by ID.
	Servers []Peer
}

type rpcResponse struct {
	Error string
	// NotLeader: send the request to Leader instead.
	NotLeader bool
	Leader    Peer

	// The other fields are set in the response to a hello.
	Peer      Peer
	ClusterID string
	// Formed: the server belongs to a cluster that has been formed.
	Formed bool
	// Leaving: the server must not be added any more.
	Leaving bool
	Expect  int
	API     string
	// FeatureLevel is what it can apply, Applied the last index that it has applied.
	FeatureLevel int
	Applied      uint64
}

// call sends a request to the server at an address.
func (n *Node) call(ctx context.Context, address string, q rpcRequest) (rpcResponse, error) {
	q.Cluster, q.ClusterID = n.cfg.Cluster, n.identity.get().ClusterID
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	var a rpcResponse
	conn, err := n.streams.open(ctx, address, streamRPC)
	if err != nil {
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	if err := json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(&a); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it closed the connection: are raft.secret and tls the same on both servers?")
		}
		return a, fmt.Errorf("query %s: %w", address, err)
	}
	if a.Error != "" && !a.NotLeader {
		return a, fmt.Errorf("rejected by %s: %s", address, a.Error)
	}
	return a, nil
}

func (n *Node) serveRPC(conn net.Conn) {
	if err := conn.SetDeadline(time.Now().Add(rpcTimeout)); err != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxMessage)).ReadBytes('\n')
	if err != nil {
		return
	}
	var q rpcRequest
	if err := json.Unmarshal(line, &q); err != nil {
		return
	}
	a := n.respond(q)
	if a.Error != "" && !a.NotLeader {
		n.log.Warn("request of another server rejected", "op", q.Op, "from", conn.RemoteAddr().String(), "peer", q.Peer.ID, "reason", a.Error)
	}
	// A client that is gone sends its request again.
	_ = json.NewEncoder(conn).Encode(a)
}

func (n *Node) respond(q rpcRequest) rpcResponse {
	var err error
	if q.Cluster != n.cfg.Cluster {
		return rpcResponse{Error: fmt.Sprintf("this server is not in cluster %q: is the setting \"cluster\" the same on both servers?", q.Cluster)}
	}
	mine := n.identity.get().ClusterID
	if q.ClusterID != "" && mine != "" && q.ClusterID != mine && q.Op != opPromise {
		return rpcResponse{Error: fmt.Sprintf("this server belongs to the cluster with ID %s, the other one to %s", mine, q.ClusterID)}
	}
	ctx, cancel := context.WithTimeout(n.ctx, rpcTimeout)
	defer cancel()
	switch q.Op {
	case opHello:
		return n.hello()
	case opPromise:
		err = n.promise(q.Servers)
	case opJoin:
		err = n.addMember(ctx, q)
	case opLeave:
		err = n.RemovePeer(ctx, q.Peer.ID)
	default:
		err = fmt.Errorf("unknown operation %q", q.Op)
	}
	if err == nil {
		return rpcResponse{ClusterID: n.identity.get().ClusterID}
	}
	a := rpcResponse{Error: err.Error()}
	if errors.Is(err, ErrNotLeader) {
		a.NotLeader, a.Leader = true, n.Leader()
	}
	return a
}

func (n *Node) hello() rpcResponse {
	return rpcResponse{
		Leader: n.Leader(), Peer: Peer{n.ID(), n.Address()}, ClusterID: n.identity.get().ClusterID,
		Formed: n.formed(), Leaving: n.membership.ctx.Err() != nil, Expect: n.cfg.BootstrapExpect, API: n.cfg.API,
		FeatureLevel: n.cfg.FeatureLevel, Applied: n.raft.AppliedIndex(),
	}
}

// LeaderAPI returns the address of the leader's HTTP API.
func (n *Node) LeaderAPI(ctx context.Context) (string, error) {
	l := n.Leader()
	switch l.ID {
	case "":
		return "", n.notLeader()
	case n.ID():
		return n.cfg.API, nil
	}
	a, err := n.call(ctx, l.Address, rpcRequest{Op: opHello})
	if err != nil {
		return "", fmt.Errorf("raft: %w", err)
	}
	if a.Peer.ID != l.ID {
		return "", fmt.Errorf("raft: server at the leader's address %s is %s, not %s", l.Address, a.Peer.ID, l.ID)
	}
	return a.API, nil
}

// formed reports whether this server is, or was, a member of a cluster.
func (n *Node) formed() bool {
	peers, err := n.Peers()
	return err != nil || len(peers) > 0
}

// addMember adds a server as a non-voter. The server must respond at its address with its ID, and
// be able to apply the entries of the log.
func (n *Node) addMember(ctx context.Context, q rpcRequest) error {
	if err := n.Verify(ctx); err != nil {
		return err
	}
	if q.Peer.ID == "" || q.Peer.Address == "" {
		return errors.New("a joining server must send its ID and address")
	}
	if mine := n.identity.get().ClusterID; q.ClusterID != mine {
		return fmt.Errorf("a joining server must send the cluster's ID, %s", mine)
	}
	// Held over the call: a server that leaves reports that before it requests its removal.
	n.members.Lock()
	defer n.members.Unlock()
	servers, err := n.configuration()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(servers, func(s hraft.Server) bool { return peerOf(s) == q.Peer }) {
		return nil
	}
	a, err := n.call(ctx, q.Peer.Address, rpcRequest{Op: opHello})
	if err != nil {
		return fmt.Errorf("the leader cannot reach address %s: %w", q.Peer.Address, err)
	}
	if a.Peer.ID != q.Peer.ID {
		return fmt.Errorf("server at address %s is %s, not %s", q.Peer.Address, a.Peer.ID, q.Peer.ID)
	}
	if a.Leaving {
		return fmt.Errorf("server %s is leaving", q.Peer.ID)
	}
	if need := n.fsm.needs(); a.FeatureLevel < need {
		return fmt.Errorf("server %s has feature level %d and the log needs %d: upgrade it", q.Peer.ID, a.FeatureLevel, need)
	}
	n.autopilot.forget(q.Peer.ID)
	n.autopilot.record(q.Peer.ID, observation{level: a.FeatureLevel})
	for _, s := range servers {
		if p := peerOf(s); p.Address == q.Peer.Address && p.ID != q.Peer.ID {
			n.log.Info("server joins again with a new ID: its data was lost", "address", p.Address, "was", p.ID, "is", q.Peer.ID)
			if err := n.await(ctx, n.raft.RemoveServer(s.ID, 0, n.cfg.ApplyTimeout)); err != nil {
				return err
			}
		}
	}
	n.log.Info("server joins as a non-voter", "id", q.Peer.ID, "address", q.Peer.Address, "feature_level", a.FeatureLevel)
	return n.await(ctx, n.raft.AddNonvoter(hraft.ServerID(q.Peer.ID), hraft.ServerAddress(q.Peer.Address), 0, n.cfg.ApplyTimeout))
}
