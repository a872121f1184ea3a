package raft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"remuda/controller/state"
)

const (
	// transportTimeout bounds one exchange between servers.
	transportTimeout = 10 * time.Second
	// rpcsInFlight is how many appends a leader has on their way to one server. More than one
	// is Raft's pipeline, which can hang after a server has rejected an append: then this server
	// gets heartbeats and no entries for as long as the leader leads, and the leader cannot be
	// shut down (hashicorp/raft issue 612, in 1.7.3 and 1.8.0). Entries are batched all the same.
	rpcsInFlight = 1
	// maxPool is how many idle connections to each server are kept.
	maxPool = 3
	// snapshotsKept on disk: the newest, and one in case it is damaged.
	snapshotsKept = 2
	// logCache is how many of the newest entries are kept in memory for followers.
	logCache = 512
)

// Node is one server. All its methods are safe for concurrent use.
type Node struct {
	cfg       Config
	log       hclog.Logger
	identity  *identity
	streams   *streams
	store     *raftboltdb.BoltStore
	raft      *hraft.Raft
	transport *transport
	fsm       *fsm
	lead      *leadership
	metrics   *collector

	// ctx ends when the node is closed, and wg waits for what it started.
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	membership membership
	autopilot  autopilot
	// members is held by changes of the cluster's members, from reading them on.
	members sync.Mutex

	failed  chan struct{}
	failure error
	// down is closed once Raft has stopped.
	down      chan struct{}
	downOnce  sync.Once
	downErr   error
	closeOnce sync.Once
	closeErr  error
}

// Open starts the server with what its data directory has. It returns before the
// cluster has a leader, and, where this is a new server, before it is a member.
func Open(cfg Config) (*Node, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	n := &Node{cfg: cfg, log: cfg.Logger.Named("raft"), failed: make(chan struct{}), down: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.membership.start(n.ctx)
	n.autopilot.members = map[string]observation{}
	if err := n.open(); err != nil {
		n.cancel()
		return nil, errors.Join(err, n.release())
	}
	if cfg.TLS == nil && cfg.Secret == "" {
		n.log.Warn("the Raft port has no authentication: every process of this machine can read and change the state, and remove servers: set raft.secret or TLS", "address", n.streams.listener.Addr().String())
	}
	n.streams.serve()
	n.wg.Go(n.lead.run)
	n.wg.Go(n.runMembership)
	n.wg.Go(n.runAutopilot)
	n.wg.Go(n.watchFailure)
	return n, nil
}

func (n *Node) open() error {
	// The database first: its lock keeps other processes from the identity.
	var err error
	n.store, err = raftboltdb.New(raftboltdb.Options{
		Path:        filepath.Join(n.cfg.DataDir, "raft.db"),
		BoltOptions: &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			err = errors.New("another process has the file open: is another agent using this data directory?")
		}
		return fmt.Errorf("raft: %s: %w", filepath.Join(n.cfg.DataDir, "raft.db"), err)
	}
	if err := removeSpools(n.cfg.DataDir); err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	snapshots, err := hraft.NewFileSnapshotStoreWithLogger(n.cfg.DataDir, snapshotsKept, n.log.Named("snapshots"))
	if err != nil {
		return fmt.Errorf("raft: snapshots: %w", err)
	}
	used, err := hraft.HasExistingState(n.store, n.store, snapshots)
	if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	if n.identity, err = loadIdentity(n.cfg.DataDir, used); err != nil {
		return err
	}
	logs, err := hraft.NewLogCache(logCache, n.store)
	if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	if n.streams, err = listen(&n.cfg); err != nil {
		return err
	}
	n.streams.rpc = n.serveRPC
	n.streams.joined = func() bool { return n.identity.get().ClusterID != "" }

	n.fsm = &fsm{store: n.cfg.Store, own: n.cfg.FeatureLevel, halt: n.fail}
	rc := hraft.DefaultConfig()
	rc.LocalID = hraft.ServerID(n.identity.get().ID)
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout, n.cfg.LeaderLeaseTimeout
	rc.CommitTimeout = min(rc.CommitTimeout, n.cfg.HeartbeatTimeout/10)
	rc.SnapshotInterval, rc.SnapshotThreshold, rc.TrailingLogs = n.cfg.SnapshotInterval, n.cfg.SnapshotThreshold, n.cfg.TrailingLogs
	rc.MaxAppendEntries, rc.BatchApplyCh = n.cfg.MaxBatch, true
	// A server that was removed stays up, to be looked at and to join again.
	rc.ShutdownOnRemove = false
	rc.NoLegacyTelemetry = true
	rc.Logger = n.log
	notify := make(chan bool, 16)
	rc.NotifyCh = notify

	n.transport = &transport{NetworkTransport: hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		Stream: n.streams, MaxPool: maxPool, Timeout: transportTimeout, Logger: n.log.Named("transport"),
		MaxRPCsInFlight: rpcsInFlight,
	})}
	if n.raft, err = hraft.NewRaft(rc, n.fsm, logs, n.store, snapshots, n.transport); err != nil {
		return errors.Join(fmt.Errorf("raft: %w", err), n.Err())
	}
	n.lead = newLeadership(n, notify)
	n.metrics = newCollector(n)
	if n.cfg.Registerer != nil {
		if err := n.cfg.Registerer.Register(n.metrics); err != nil {
			n.metrics = nil
			return fmt.Errorf("raft: metrics: %w", err)
		}
	}
	return nil
}

// release gives everything back that open took.
func (n *Node) release() error {
	var errs []error
	if n.metrics != nil && n.cfg.Registerer != nil {
		n.cfg.Registerer.Unregister(n.metrics)
	}
	if n.raft != nil {
		errs = append(errs, n.shutdown())
		n.lead.stop()
	}
	if n.transport != nil {
		n.transport.stopHeartbeats()
		errs = append(errs, n.transport.Close())
		n.transport.CloseStreams()
	}
	if n.streams != nil {
		errs = append(errs, n.streams.Close())
		n.streams.wait()
	}
	n.wg.Wait()
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(errs...)
}

// Close stops the server. It stays a member, and goes on when it is opened again.
func (n *Node) Close() error {
	n.closeOnce.Do(func() {
		n.cancel()
		if err := n.release(); err != nil {
			n.closeErr = fmt.Errorf("raft: close: %w", err)
		}
	})
	return n.closeErr
}

// fail stops this server permanently. The owner is notified by Failed, and closes the node.
func (n *Node) fail(why error) {
	n.failure = why
	close(n.failed)
}

// watchFailure shuts Raft down when the state has halted. (The state cannot: Raft
// waits for it.)
func (n *Node) watchFailure() {
	select {
	case <-n.ctx.Done():
	case <-n.failed:
		n.log.Error("this server has failed", "reason", n.failure)
		if err := n.shutdown(); err != nil {
			n.log.Error("shutdown", "error", err)
		}
	}
}

// shutdown stops Raft, and returns once it has stopped.
func (n *Node) shutdown() error {
	n.downOnce.Do(func() {
		n.downErr = n.raft.Shutdown().Error()
		close(n.down)
	})
	return n.downErr
}

// Failed is closed when the server cannot continue. Err returns the reason. The owner should close
// the server and, as a rule, upgrade it.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// Err returns why the server has failed, nil while it has not.
func (n *Node) Err() error {
	select {
	case <-n.failed:
		return n.failure
	default:
		return nil
	}
}

// ID is the server's own, made when its data directory was.
func (n *Node) ID() string { return n.identity.get().ID }

// Address is where other servers reach this one.
func (n *Node) Address() string { return n.streams.advertise }

// Store is the state that the log makes. Commands go through Apply only.
func (n *Node) Store() *state.Store { return n.cfg.Store }

// Leader returns the leader as far as this server knows, empty if there is none.
func (n *Node) Leader() Peer {
	address, id := n.raft.LeaderWithID()
	return Peer{ID: string(id), Address: string(address)}
}

// LastContact is when this server last heard from the leader; now on the leader,
// zero where it never did.
func (n *Node) LastContact() time.Time {
	if n.raft.State() == hraft.Leader {
		return time.Now()
	}
	return n.raft.LastContact()
}

func (n *Node) notLeader() error {
	l := n.Leader()
	if l.ID == n.ID() { // It leads no more, or not yet for sure.
		l = Peer{}
	}
	return &NotLeaderError{ID: l.ID, Address: l.Address}
}

// Apply has a command committed by a majority and applied here. The error is a
// *state.Error where the state refused it, and otherwise matches one of this
// package's; only ErrUnknownOutcome leaves open what happened.
func (n *Node) Apply(ctx context.Context, c state.Command) (state.Result, error) {
	data, err := state.Encode(c)
	if err != nil {
		return state.Result{}, err
	}
	level := state.Level(c)
	if err := n.checkLevel(level); err != nil {
		return state.Result{}, err
	}
	start := time.Now()
	res, err := n.apply(ctx, data, level)
	n.metrics.applied(time.Since(start), err)
	return res, err
}

func (n *Node) apply(ctx context.Context, data []byte, level int) (state.Result, error) {
	if n.ctx.Err() != nil {
		return state.Result{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return state.Result{}, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	entry := hraft.Log{Data: data}
	if level > 1 {
		entry.Extensions = encodeLevel(level)
	}
	future := n.raft.ApplyLog(entry, n.cfg.ApplyTimeout)
	if err := n.await(ctx, future); err != nil {
		return state.Result{}, err
	}
	res, ok := future.Response().(state.Result)
	if !ok {
		return state.Result{}, fmt.Errorf("%w: the state returned a %T", ErrUnknownOutcome, future.Response())
	}
	if res.Err != nil {
		return res, res.Err
	}
	return res, nil
}

// await waits for a future, and turns its error into one of this package.
func (n *Node) await(ctx context.Context, f hraft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	case <-n.down:
		// Raft never answers what lay in its queue when it was shut down.
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, hraft.ErrNotLeader):
		return n.notLeader()
	case errors.Is(err, hraft.ErrEnqueueTimeout), errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, hraft.ErrRaftShutdown) && n.ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// Consistency is how recent the state is that a Read returns.
type Consistency int

// The consistencies.
const (
	// Verified reads see every command that was applied before they began. Only the
	// leader answers them, after it has asked a majority whether it still is.
	Verified Consistency = iota
	// Stale reads are answered by every server at once, from what it has. Look at
	// LastContact.
	Stale
)

// Read returns the state.
func (n *Node) Read(ctx context.Context, c Consistency) (*state.View, error) {
	if c == Stale {
		return n.cfg.Store.View(), nil
	}
	if err := n.Verify(ctx); err != nil {
		return nil, err
	}
	return n.cfg.Store.View(), nil
}

// Verify returns nil where this server is the leader now and has applied everything
// that was committed before it was asked.
func (n *Node) Verify(ctx context.Context) error {
	term, err := n.Established(ctx)
	if err != nil {
		return err
	}
	return n.VerifyTerm(ctx, term)
}

// Established waits while an election that this server has won is being established, and
// returns the term in which it leads. The state then has everything that was acknowledged
// in that term and before. Whether another server leads since, only a majority knows: what
// is read of the state counts if VerifyTerm confirms the term afterwards, or if a command
// that was made from it is committed by Apply.
func (n *Node) Established(ctx context.Context) (term uint64, err error) {
	return n.lead.established(ctx)
}

// VerifyTerm returns nil where this server has led without a break since Established
// returned that term, and still did when a majority was asked. What was read of the state
// in between was then its newest. A server is elected at most once in a term, so that the
// term alone tells that there was no break.
func (n *Node) VerifyTerm(ctx context.Context, term uint64) error {
	if err := n.await(ctx, n.raft.VerifyLeader()); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("verify leadership: %w", ctx.Err())
		}
		if errors.Is(err, ErrUnknownOutcome) {
			return n.notLeader()
		}
		return err
	}
	if n.raft.CurrentTerm() != term {
		return n.notLeader()
	}
	return nil
}

// Barrier returns when everything that was committed before is applied here. Only
// the leader can tell.
func (n *Node) Barrier(ctx context.Context) error {
	return n.await(ctx, n.raft.Barrier(n.cfg.ApplyTimeout))
}
