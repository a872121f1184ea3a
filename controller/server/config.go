package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/modelfile"
	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/controller/usage"
)

// Raft is the server's part in the cluster, as *raft.Node is. Its methods are called
// from many goroutines at once.
type Raft interface {
	ID() string
	Address() string
	Store() *state.Store
	Err() error
	Leader() raft.Peer
	LeaderAPI(ctx context.Context) (string, error)
	Leadership() (raft.Leadership, <-chan struct{})
	LastContact() time.Time
	Apply(ctx context.Context, c state.Command) (state.Result, error)
	Established(ctx context.Context) (term uint64, err error)
	VerifyTerm(ctx context.Context, term uint64) error
	Read(ctx context.Context, c raft.Consistency) (*state.View, error)
	Members() ([]raft.Member, error)
	Promote(ctx context.Context, id string) error
	RemovePeer(ctx context.Context, id string) error
	TransferLeadership(ctx context.Context, id string) error
	WriteSnapshot(v *state.View, w io.Writer) (state.SnapshotInfo, error)
	RestoreSnapshot(ctx context.Context, r io.Reader) (state.SnapshotInfo, error)
}

// Checker has Nomad check a variant's job, as *nomad.Client does.
type Checker interface {
	Check(ctx context.Context, m state.Model, v state.Variant) (warnings string, err error)
}

// Loads has the gateways' reports, as *gatewayreport.Store.
type Loads interface {
	// Begin starts a term of leadership; see gatewayreport.Store.
	Begin(term uint64)
	Put(api.GatewayReport) error
	Loads() map[string]api.Load
	// Totals is Loads without the requests, which cost most.
	Totals() map[string]gatewayreport.Load
	// Since returns from when on the reports are complete, and Known reports whether all live
	// gateways have reported; see gatewayreport.Store.
	Since() (latest time.Time, live bool)
	Known() bool
	Gateways() []api.Gateway
	Queues() map[string]api.Queue
	QueueOf(model string) ([]api.GatewayQueue, []api.QueuedRequest)
	// Count returns how many requests a model had, and false if that is not known.
	Count(model string) (api.Counters, bool)
	Find(id string) []api.QueuedRequest
	// Kill and Drain give orders to gateways. Orders returns those of one gateway; it is called
	// once after each Put.
	Kill(id string) error
	Killed(id string) bool
	Drain(gateway string) bool
	Orders(gateway string) api.GatewayOrders
	// AllReported reports whether every live gateway has reported.
	AllReported() bool
}

// Usage has the tokens that gateways report, as *usage.Recorder.
type Usage interface {
	// Begin starts a term of leadership; see usage.Recorder.
	Begin(term uint64)
	// Report takes the usage of a report, and sets how much is left of the budgets that it claims. It
	// returns the term for the answer, 0 if it has no room, and what the keys with a budget have used.
	Report(api.GatewayReport) (term uint64, budgets map[string]api.TokensUsed)
}

// Reconciler is the reconcile loop of this server. Its methods may be called from several
// goroutines at once, on any server. All but Preview and Failover are called often and must not block.
type Reconciler interface {
	Status() api.ReconcileStatus
	// Pools returns the capacity pools: first the controller's own, whose Name is empty, then the
	// external ones by name. The server adds the numbers of nodes, GPUs, memory and replicas. A
	// server that does not lead observes no pool: Known is false, and Error is set.
	Pools() []api.Pool
	// Unplaceable returns the variants of a model of which no further replica could be placed
	// now, with the reason.
	Unplaceable(model string) map[string]string
	// NotServing returns why a replica that is starting does not serve although its engines run,
	// as their shims report it; empty if that is not known.
	NotServing(replica string) string
	// Pair returns how the engines of a failover pair are that serves; zero if that is not known.
	Pair(replica string) api.Pair
	// Preview copies the store, calls change with the copy, and plans on the copy what follows.
	// change applies commands at indexes above View().Index(). Nothing is committed, and nothing
	// is done in Nomad or at a shim. Once ctx is done, Preview returns the steps so far. It
	// returns the error of change, or an error that wraps raft.ErrNotLeader or
	// nomad.ErrUnreachable if nothing is observed.
	Preview(ctx context.Context, change func(*state.Store) error) (planner.Foresight, error)
	// Failover has the engine of a pair that serves hand over to its standby, and returns once that
	// serves. by names who ordered it. The error is a *state.Error if the pair cannot do that now,
	// and wraps raft.ErrUnknownOutcome if it may have happened.
	Failover(ctx context.Context, replica string, order api.FailoverRequest, by string) (api.Failover, error)
}

var (
	_ Raft    = (*raft.Node)(nil)
	_ Checker = (*nomad.Client)(nil)
	_ Loads   = (*gatewayreport.Store)(nil)
	_ Usage   = (*usage.Recorder)(nil)
)

// Config says how the API is served.
type Config struct {
	Raft       Raft
	Nomad      Checker
	Loads      Loads
	Usage      Usage
	Reconciler Reconciler
	// WarmShare is how much of a node's memory WARM replicas may hold, as
	// planner.Config.WarmShare; 0 to 1. It is only shown.
	WarmShare float64
	// CheckScaling checks the policies of model files; nil: they are not checked.
	CheckScaling modelfile.CheckScaling
	// ACL asks for tokens. Without it everybody may do everything, as with -dev.
	ACL bool
	// Peers is how the other servers' HTTPS is checked, and what this one shows them.
	// Nil: as clients without any configuration do.
	Peers *tls.Config
	// GatewayCAs sign the certificates of the gateways, to which the web page passes chats. Nil: the
	// system's.
	GatewayCAs *x509.CertPool

	// LeaderWait is how long a request waits for a leader.
	LeaderWait time.Duration
	// RequestTimeout bounds a request that does not wait for a change.
	RequestTimeout time.Duration
	// SnapshotTimeout bounds a snapshot that is saved or restored, and a failover.
	SnapshotTimeout time.Duration
	// BodyTimeout is how long a body may take to come, snapshots apart.
	BodyTimeout time.Duration
	// MaxBody is the longest body in bytes, MaxSnapshot the longest snapshot.
	MaxBody, MaxSnapshot int64
	// MaxHeld is how many bytes of bodies all requests together may hold in memory,
	// snapshots apart. Beyond it requests are rejected with 503.
	MaxHeld int64
	// Drain is how long Run waits for requests to end when it stops.
	Drain time.Duration

	// Now is the clock; it is asked for the times that are put into commands.
	Now    func() time.Time
	Logger hclog.Logger
	// Registerer, nil: no metrics of the API itself. Gatherer is what /metrics shows.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		ACL:             true,
		WarmShare:       planner.DefaultConfig().WarmShare,
		LeaderWait:      5 * time.Second,  // an election takes one to three
		RequestTimeout:  45 * time.Second, // Nomad checks several variants; below the client's own limit
		SnapshotTimeout: 10 * time.Minute, // hundreds of megabytes over a slow line
		BodyTimeout:     30 * time.Second, // a model file on the slowest line
		MaxBody:         1 << 20,          // Nomad's own limit for a job file is as large
		MaxHeld:         64 << 20,         // eight of the longest reports; decoded they take a multiple of that
		MaxSnapshot:     4 << 30,          // far beyond what a state can be; it is spooled to disk
		Drain:           10 * time.Second, // blocking queries are answered at once; an apply may still run
		Now:             time.Now,
		Logger:          hclog.NewNullLogger(),
	}
}

func (c *Config) validate() error {
	var errs []error
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"raft", c.Raft == nil},
		{"nomad", c.Nomad == nil},
		{"loads", c.Loads == nil},
		{"usage", c.Usage == nil},
		{"reconciler", c.Reconciler == nil},
		{"clock", c.Now == nil},
		{"logger", c.Logger == nil},
		{"gatherer", c.Gatherer == nil},
	} {
		if f.missing {
			errs = append(errs, fmt.Errorf("%s must be set", f.name))
		}
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{
		{"leader wait", c.LeaderWait},
		{"request timeout", c.RequestTimeout},
		{"snapshot timeout", c.SnapshotTimeout},
		{"body timeout", c.BodyTimeout},
		{"drain", c.Drain},
	} {
		if d.is < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %s: must be at least 1ms", d.name, d.is))
		}
	}
	if c.LeaderWait >= c.RequestTimeout {
		errs = append(errs, fmt.Errorf("leader wait is %s: must be less than the request timeout, %s", c.LeaderWait, c.RequestTimeout))
	}
	if !(c.WarmShare >= 0 && c.WarmShare <= 1) {
		errs = append(errs, fmt.Errorf("warm share is %g: must be 0 to 1", c.WarmShare))
	}
	if c.MaxBody < 1024 || c.MaxSnapshot < 1024 {
		errs = append(errs, fmt.Errorf("max body is %d and max snapshot is %d: must be at least 1024", c.MaxBody, c.MaxSnapshot))
	}
	if least := c.MaxBody * largeFactor; c.MaxHeld < least {
		errs = append(errs, fmt.Errorf("max held is %d: must be at least %d, %d times max body", c.MaxHeld, least, largeFactor))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}
