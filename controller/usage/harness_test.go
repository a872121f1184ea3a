package usage_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/controller/usage"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// today is the day of epoch.
const today = "2026-01-02"

// clock is a clock that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// outcome is what becomes of a command that a server proposes.
type outcome int

const (
	committed outcome = iota // it is applied, and answered
	refused                  // it does not enter the log
	lost                     // its outcome is unknown, and it is gone
	inLimbo                  // its outcome is unknown, and it is committed with the next one, or gone with the leader
	unheard                  // its outcome is unknown, and it is committed
)

// cluster is the log of a cluster of servers, of which one leads. Terms only grow.
type cluster struct {
	t       require.TestingT
	clock   *clock
	term    uint64
	entries [][]byte
	limbo   [][]byte
	servers []*server
	leader  *server
	// next decides what becomes of the leader's next command.
	next func() outcome
}

// server is a store that has applied the first entries of the log, and the recorder beside it.
type server struct {
	cluster  *cluster
	store    *state.Store
	applied  int
	recorder *usage.Recorder
}

func newCluster(t require.TestingT, n int) *cluster {
	c := &cluster{t: t, clock: &clock{now: epoch}, next: func() outcome { return committed }}
	for range n {
		s := &server{cluster: c}
		s.start(nil)
		c.servers = append(c.servers, s)
	}
	c.elect(c.servers[0], false)
	return c
}

// start is a start of the server's process, with a snapshot or an empty state.
func (s *server) start(snapshot []byte) {
	var err error
	s.store, err = state.New()
	require.NoError(s.cluster.t, err)
	s.applied = 0
	if snapshot != nil {
		info, err := s.store.Restore(bytes.NewReader(snapshot), state.FeatureLevel)
		require.NoError(s.cluster.t, err)
		s.applied = int(info.Index)
	}
	cfg := usage.DefaultConfig()
	cfg.Raft, cfg.Now = s, s.cluster.clock.time
	s.recorder, err = usage.New(cfg)
	require.NoError(s.cluster.t, err)
}

func (s *server) catchUp() {
	for ; s.applied < len(s.cluster.entries); s.applied++ {
		s.store.Apply(uint64(s.applied+1), s.cluster.entries[s.applied])
	}
}

// elect makes a server the leader. What is in limbo is committed before, or gone.
func (c *cluster) elect(s *server, keepsLimbo bool) {
	if keepsLimbo {
		c.entries = append(c.entries, c.limbo...)
	}
	c.limbo = nil
	c.term++
	s.catchUp()
	c.leader = s
}

// Store implements usage.Raft.
func (s *server) Store() *state.Store { return s.store }

// WhileLeader implements usage.Raft. The cluster calls what Run would.
func (s *server) WhileLeader(ctx context.Context, lead func(context.Context, uint64)) {
	lead(ctx, s.cluster.term)
}

// Apply implements usage.Raft.
func (s *server) Apply(_ context.Context, cmd state.Command) (state.Result, error) {
	c := s.cluster
	data, err := state.Encode(cmd)
	require.NoError(c.t, err, "what was reported can be committed")
	if s != c.leader {
		return state.Result{}, &raft.NotLeaderError{}
	}
	what := c.next()
	switch what {
	case refused:
		return state.Result{}, raft.ErrBusy
	case lost:
		return state.Result{}, raft.ErrUnknownOutcome
	case inLimbo:
		c.limbo = append(c.limbo, data)
		return state.Result{}, raft.ErrUnknownOutcome
	}
	c.entries = append(append(c.entries, c.limbo...), data)
	c.limbo = nil
	for ; s.applied < len(c.entries)-1; s.applied++ {
		s.store.Apply(uint64(s.applied+1), c.entries[s.applied])
	}
	s.applied++
	res := s.store.Apply(uint64(s.applied), data)
	switch {
	case what == unheard:
		return state.Result{}, raft.ErrUnknownOutcome
	case res.Err != nil:
		return res, res.Err
	}
	return res, nil
}

// report has the leader take a report, as the server does.
func (c *cluster) report(r api.GatewayReport) (term uint64, budgets map[string]api.TokensUsed) {
	require.NoError(c.t, usage.Validate(r))
	c.leader.recorder.Begin(c.term)
	return c.leader.recorder.Report(r)
}

func (c *cluster) commit() int { return c.leader.recorder.Commit(context.Background()) }

// setKey creates a key, or gives it other limits.
func (c *cluster) setKey(name string, limits state.KeyLimits) {
	limits.Weight = 1
	cmd, refused := (&state.UpsertKey{Name: name, Limits: limits, Time: c.clock.time(), Secret: state.KeySecret{Hash: state.HashSecret(name), CreatedAt: epoch}}).Resolve(c.leader.store.View())
	require.Nil(c.t, refused)
	before := c.next
	c.next = func() outcome { return committed }
	_, err := c.leader.Apply(context.Background(), cmd)
	require.NoError(c.t, err)
	c.next = before
}

// requests returns the requests of a row.
func requests(v *state.View, day, key, model string) int64 {
	for _, r := range v.UsageRows(nil, day) {
		if r.Day == day && r.Key == key && r.Model == model {
			return r.Usage.Requests
		}
	}
	return 0
}

// counters returns the counters of n requests with 10 tokens each.
func counters(day, key, model string, n int64) api.UsageCounters {
	return api.UsageCounters{Day: day, Key: key, Model: model, Usage: api.Usage{Requests: n, PromptTokens: 7 * n, CachedTokens: n, CompletionTokens: 3 * n, EstimatedTokens: 2 * n}}
}

func report(gateway string, usage ...api.UsageCounters) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Since: epoch, Usage: usage}
}

// many returns the counters of that many keys, each of one request.
func many(first, n int) []api.UsageCounters {
	out := make([]api.UsageCounters, n)
	for i := range out {
		out[i] = counters(today, fmt.Sprint("k", first+i), "m", 1)
	}
	return out
}

func snapshotOf(t require.TestingT, s *state.Store) []byte {
	var b bytes.Buffer
	_, err := s.View().WriteSnapshot(&b, state.FeatureLevel)
	require.NoError(t, err)
	return b.Bytes()
}
