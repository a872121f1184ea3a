package raft_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/testkit/loopback"
)

// patience is how long a cluster may take for anything.
const patience = 2 * time.Minute

// network carries the servers' connections over loopback, and can cut servers off.
type network struct {
	mu    sync.Mutex
	cut   map[string]bool
	conns map[*wire]struct{}
	// names has the server behind an address.
	names map[string]string
	// dials counts the connections that a server has tried to open.
	dials map[string]int
}

type wire struct {
	net.Conn
	from, to string
	net      *network
}

func (w *wire) Close() error {
	w.net.mu.Lock()
	delete(w.net.conns, w)
	w.net.mu.Unlock()
	return w.Conn.Close()
}

func newNetwork() *network {
	return &network{cut: map[string]bool{}, conns: map[*wire]struct{}{}, names: map[string]string{}, dials: map[string]int{}}
}

var errCut = errors.New("the network is cut")

// dialer returns the Dial of a server.
func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		n.mu.Lock()
		n.dials[from]++
		to := n.names[address]
		cut := n.cut[from] || n.cut[to]
		n.mu.Unlock()
		if cut {
			return nil, errCut
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		w := &wire{Conn: conn, from: from, to: to, net: n}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.cut[from] || n.cut[to] {
			conn.Close()
			return nil, errCut
		}
		n.conns[w] = struct{}{}
		return w, nil
	}
}

// partition cuts a server off from all others, heal takes it back.
func (n *network) partition(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[name] = true
	for w := range n.conns {
		if w.from == name || w.to == name {
			w.Conn.Close()
		}
	}
}

func (n *network) heal(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cut, name)
}

// cluster is some servers on one network.
type cluster struct {
	t   testing.TB
	net *network
	// edit changes the configuration of each server that is started.
	edit    func(*raft.Config)
	dir     string
	servers []*server
}

type server struct {
	c       *cluster
	name    string
	dir     string
	address string
	node    *raft.Node
	expect  int
	join    []string
}

func newCluster(t testing.TB, edit func(*raft.Config)) *cluster {
	c := &cluster{t: t, net: newNetwork(), edit: edit, dir: t.TempDir()}
	// After TempDir's own, so that the servers end before their directories are removed.
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.stop()
		}
	})
	return c
}

// add makes a server that is not started.
func (c *cluster) add() *server {
	name := fmt.Sprint("s", len(c.servers))
	s := &server{c: c, name: name, dir: filepath.Join(c.dir, name), address: loopback.Free(c.t)}
	c.net.mu.Lock()
	c.net.names[s.address] = s.name
	c.net.mu.Unlock()
	c.servers = append(c.servers, s)
	return s
}

// start starts n servers that form a cluster, and waits for its leader.
func start(t testing.TB, n int, edit func(*raft.Config)) *cluster {
	c := newCluster(t, edit)
	for range n {
		c.add()
	}
	for _, s := range c.servers {
		s.expect = n
		if n > 1 {
			s.join = c.addresses()
		}
		s.start()
	}
	c.leader()
	return c
}

func (c *cluster) addresses() []string {
	var as []string
	for _, s := range c.servers {
		as = append(as, s.address)
	}
	return as
}

func (s *server) config() raft.Config {
	store, err := state.New()
	require.NoError(s.c.t, err)
	cfg := raft.DefaultConfig()
	cfg.DataDir, cfg.Bind, cfg.Store = s.dir, s.address, store
	cfg.BootstrapExpect, cfg.Join, cfg.API = s.expect, s.join, "http://"+s.name
	cfg.RetryInterval, cfg.ServerStabilizationTime = 50*time.Millisecond, 500*time.Millisecond
	company(&cfg)
	if s.expect == 1 {
		// One that stays alone has nobody to wait for, and cannot lose an election.
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	}
	cfg.Dial = s.c.net.dialer(s.name)
	if os.Getenv("REMUDA_TEST_LOG") != "" {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: s.name, Level: hclog.Debug})
	}
	if s.c.edit != nil {
		s.c.edit(&cfg)
	}
	return cfg
}

// company gives a server the times of one that has others to hear from: a leader stays one
// on a machine that lets it run every other second.
func company(cfg *raft.Config) {
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 2*time.Second, 2*time.Second, 2*time.Second
}

func (s *server) open() (*raft.Node, error) { return raft.Open(s.config()) }

func (s *server) start() {
	s.c.t.Helper()
	node, err := s.open()
	require.NoError(s.c.t, err)
	s.node = node
}

func (s *server) stop() {
	if s.node != nil {
		if err := s.node.Close(); err != nil {
			s.c.t.Errorf("%s: %v", s.name, err)
		}
		s.node = nil
	}
}

// eventually polls for something that happens by itself.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}

// leader waits for the one server that is established as leader.
func (c *cluster) leader() *server {
	c.t.Helper()
	var leader *server
	eventually(c.t, "a leader", func() bool {
		leader = nil
		var term uint64
		for _, s := range c.servers {
			if s.node == nil {
				continue
			}
			if now, _ := s.node.Leadership(); now.Leader && now.Term > term && s.node.Verify(c.t.Context()) == nil {
				leader, term = s, now.Term
			}
		}
		return leader != nil
	})
	return leader
}

// asks waits until each of the servers, which are not members of a cluster yet, has asked
// all whom it may join so many times more.
func (c *cluster) asks(times int, servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		want := c.dials(s) + times*len(s.join)
		eventually(c.t, s.name+" asks on", func() bool { return c.dials(s) >= want })
	}
}

// dials is how many connections a server has tried to open.
func (c *cluster) dials(s *server) int {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.net.dials[s.name]
}

// others returns the running servers but one.
func (c *cluster) others(but *server) []*server {
	var o []*server
	for _, s := range c.servers {
		if s != but && s.node != nil {
			o = append(o, s)
		}
	}
	return o
}

func set(name, value string) *state.SetSwitch { return &state.SetSwitch{Name: name, Value: value} }

// apply applies a command that may be applied twice, or what a state.Proposal comes to. On a slow machine the leader may have
// lost the lead: the next one is asked then.
func (s *server) apply(what any) {
	s.c.t.Helper()
	c, ok := what.(state.Command)
	if !ok {
		resolved, refused := what.(state.Proposal).Resolve(s.node.Store().View())
		require.Nil(s.c.t, refused)
		c = resolved
	}
	deadline := time.Now().Add(patience)
	for {
		_, err := s.node.Apply(s.c.t.Context(), c)
		if !errors.Is(err, raft.ErrUnknownOutcome) && !errors.Is(err, raft.ErrNotLeader) || time.Now().After(deadline) {
			require.NoError(s.c.t, err)
			return
		}
		s = s.c.leader()
	}
}

// sees waits until a server has a switch.
func (s *server) sees(name, value string) {
	s.c.t.Helper()
	eventually(s.c.t, s.name+" sees "+name, func() bool { return s.node.Store().View().Switch(nil, name) == value })
}

func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
