package raft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
)

func TestOneServer(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	s := c.servers[0]
	s.apply(set("a", "1"))
	v, err := s.node.Read(t.Context(), raft.Verified)
	require.NoError(t, err)
	require.Equal(t, "1", v.Switch(nil, "a"))
	id := s.node.ID()

	s.stop()
	s.start()
	c.leader()
	require.Equal(t, id, s.node.ID())
	s.sees("a", "1")
	require.NoError(t, s.node.Leave(t.Context()), "the last server just goes")
}

func TestThreeServersReplicate(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	l := c.leader()
	l.apply(set("a", "1"))
	for _, s := range c.servers {
		s.sees("a", "1")
		peers, err := s.node.Peers()
		require.NoError(t, err)
		require.Len(t, peers, 3)
	}
	for _, s := range c.others(l) {
		_, err := s.node.Apply(t.Context(), set("b", "1"))
		var not *raft.NotLeaderError
		require.ErrorAs(t, err, &not)
		require.ErrorIs(t, err, raft.ErrNotLeader)
		require.Equal(t, raft.NotLeaderError{ID: l.node.ID(), Address: l.address}, *not)
		_, err = s.node.Read(t.Context(), raft.Verified)
		require.ErrorIs(t, err, raft.ErrNotLeader)
		v, err := s.node.Read(t.Context(), raft.Stale)
		require.NoError(t, err)
		require.Equal(t, "1", v.Switch(nil, "a"))
		require.WithinDuration(t, time.Now(), s.node.LastContact(), patience)
		api, err := s.node.LeaderAPI(t.Context())
		require.NoError(t, err)
		require.Equal(t, "http://"+l.name, api)
	}

	// What the state refuses is the state's own error, and says so everywhere alike.
	_, err := l.node.Apply(t.Context(), &state.DeleteModel{Model: "x"})
	var refused *state.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, state.CodeNotFound, refused.Code)
	require.NoError(t, l.node.Barrier(t.Context()))
}

func TestLeaderIsKilledAndReturns(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	old := c.leader()
	old.apply(set("a", "1"))
	old.stop()
	l := c.leader()
	require.NotEqual(t, old, l)
	v, err := l.node.Read(t.Context(), raft.Verified)
	require.NoError(t, err)
	require.Equal(t, "1", v.Switch(nil, "a"), "a new leader knows what was acknowledged")
	l.apply(set("b", "2"))
	old.start()
	old.sees("b", "2")
}

func TestAllAreStoppedAndReturn(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	for i := range 20 {
		c.leader().apply(set(fmt.Sprint("s", i), "v"))
	}
	for _, s := range c.servers {
		s.stop()
	}
	for _, s := range c.servers {
		s.start()
	}
	c.leader()
	for i := range 20 {
		for _, s := range c.servers {
			s.sees(fmt.Sprint("s", i), "v")
		}
	}
}

// TestDeposedLeader cuts the leader off: it can neither write nor read, and what the
// others write meanwhile is what counts.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	old := c.leader()
	old.apply(set("a", "1"))
	was, lost := old.node.Leadership()
	c.net.partition(old.name)

	_, err := old.node.Apply(t.Context(), set("a", "lost"))
	require.Error(t, err)
	require.True(t, errors.Is(err, raft.ErrUnknownOutcome) || errors.Is(err, raft.ErrNotLeader), err)
	<-lost
	_, err = old.node.Apply(t.Context(), set("a", "lost"))
	require.ErrorIs(t, err, raft.ErrNotLeader)
	_, err = old.node.Read(t.Context(), raft.Verified)
	require.ErrorIs(t, err, raft.ErrNotLeader)

	l := c.leader()
	require.NotEqual(t, old, l)
	now, _ := l.node.Leadership()
	require.Greater(t, now.Term, was.Term)
	l.apply(set("a", "2"))
	require.Equal(t, "1", old.node.Store().View().Switch(nil, "a"))

	c.net.heal(old.name)
	old.sees("a", "2")
	v, err := c.leader().node.Read(t.Context(), raft.Verified)
	require.NoError(t, err)
	require.Equal(t, "2", v.Switch(nil, "a"))
}

func TestWhileLeader(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		terms   []uint64
		leading = map[string]int{}
	)
	for _, s := range c.servers {
		wg.Go(func() {
			s.node.WhileLeader(ctx, func(ctx context.Context, term uint64) {
				mu.Lock()
				terms = append(terms, term)
				leading[s.name]++
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				leading[s.name]--
				mu.Unlock()
			})
		})
	}
	leads := func(s *server) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return leading[s.name] == 1
		}
	}
	old := c.leader()
	eventually(t, "the leader leads", leads(old))
	for old.node.TransferLeadership(t.Context(), "") != nil && c.leader() == old {
		require.NoError(t, t.Context().Err()) // a slow machine may need more than one try
	}
	eventually(t, "somebody leads in another term", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return terms[len(terms)-1] > terms[0]
	})
	l := c.leader()
	require.Error(t, l.node.TransferLeadership(t.Context(), "nobody"))
	other := c.others(l)[0]
	eventually(t, "the one that was named leads", func() bool {
		if leads(other)() {
			return true
		}
		// The one that is named may lose the election all the same.
		if l := c.leader(); l != other {
			_ = l.node.TransferLeadership(timeout(t, time.Second), other.node.ID())
		}
		return false
	})
	cancel()
	wg.Wait()
	require.IsNonDecreasing(t, terms, "a term may be told of twice, and none after a later one")
}

// TestLaggingFollowerGetsASnapshot keeps a server away until the log it needs is gone.
func TestLaggingFollowerGetsASnapshot(t *testing.T) {
	t.Parallel()
	c := start(t, 3, func(cfg *raft.Config) {
		cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.SnapshotInterval = 20, 5, 20*time.Millisecond
	})
	l := c.leader()
	away := c.others(l)[0]
	away.stop()
	for i := range 200 {
		l.apply(set(fmt.Sprint("s", i), "v"))
	}
	eventually(t, "a snapshot", func() bool {
		found, err := filepath.Glob(filepath.Join(l.dir, "snapshots", "*", "state.bin"))
		return err == nil && len(found) > 0
	})
	l.apply(set("last", "v"))
	away.start()
	away.sees("last", "v")
	require.Len(t, away.node.Store().View().Switches(nil), 201)

	// And all of them begin with their snapshots.
	for _, s := range c.servers {
		s.stop()
	}
	for _, s := range c.servers {
		s.start()
	}
	for _, s := range c.servers {
		s.sees("last", "v")
	}
}

func TestSaveAndRestore(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	l := c.leader()
	l.apply(set("a", "saved"))
	var saved bytes.Buffer
	info, err := l.node.SaveSnapshot(t.Context(), &saved, raft.Verified)
	require.NoError(t, err)
	require.Equal(t, 1, info.Rows[state.TableSwitches])
	_, err = c.others(l)[0].node.SaveSnapshot(t.Context(), &bytes.Buffer{}, raft.Verified)
	require.ErrorIs(t, err, raft.ErrNotLeader)
	l.apply(set("a", "later"))

	// What is damaged or newer changes nothing.
	damaged := bytes.Clone(saved.Bytes())
	damaged[len(damaged)/2] ^= 1
	newer := bytes.Clone(saved.Bytes())
	newer[len("remuda-state")+3] = state.SnapshotVersion + 1
	for _, bad := range []struct {
		data []byte
		want error
	}{{nil, state.ErrSnapshotDamaged}, {saved.Bytes()[:saved.Len()-1], state.ErrSnapshotDamaged}, {damaged, state.ErrSnapshotDamaged}, {newer, state.ErrSnapshotNewer}} {
		_, err := l.node.RestoreSnapshot(t.Context(), bytes.NewReader(bad.data))
		require.ErrorIs(t, err, bad.want)
	}
	_, err = c.others(l)[0].node.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()))
	require.ErrorIs(t, err, raft.ErrNotLeader)
	require.Equal(t, "later", l.node.Store().View().Switch(nil, "a"))

	_, err = l.node.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()))
	require.NoError(t, err)
	for _, s := range c.servers {
		s.sees("a", "saved")
		spools, err := filepath.Glob(filepath.Join(s.dir, "restore-*"))
		require.NoError(t, err)
		require.Empty(t, spools)
	}
	c.leader().apply(set("a", "after"))
	for _, s := range c.servers {
		s.sees("a", "after")
	}

	// Into another cluster, younger than the snapshot.
	other := start(t, 1, nil)
	_, err = other.servers[0].node.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()))
	require.NoError(t, err)
	other.servers[0].sees("a", "saved")
	other.servers[0].apply(set("b", "1"))
	require.Greater(t, other.servers[0].node.Store().View().Index(), info.Index)
	other.servers[0].stop()
	other.servers[0].start()
	other.servers[0].sees("b", "1")
	other.servers[0].sees("a", "saved")
}

func TestNewerCommandStopsAnOlderServer(t *testing.T) {
	t.Parallel()
	c := start(t, 1, func(cfg *raft.Config) { cfg.SnapshotThreshold, cfg.SnapshotInterval = 1, 10*time.Millisecond })
	s := c.servers[0]
	s.apply(set("a", "1"))
	err := s.node.ApplyRaw(t.Context(), []byte{0x70})
	require.Error(t, err)
	<-s.node.Failed()
	require.ErrorIs(t, s.node.Err(), state.ErrUnknownCommand)
	_, err = s.node.Apply(t.Context(), set("b", "1"))
	require.Error(t, err)
	require.Empty(t, s.node.Store().View().Switch(nil, "b"))

	// It meets the command again, until it is upgraded.
	s.stop()
	s.start()
	<-s.node.Failed()
	s.sees("a", "1")
}

// Raft never answers what waits in its queue at the moment it stops: callers must be
// answered all the same.
func TestNobodyWaitsForAStoppedServer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*raft.Node){
		"failed": func(n *raft.Node) { _ = n.ApplyRaw(t.Context(), []byte{0x70}) },
		"closed": func(n *raft.Node) { _ = n.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				c := start(t, 1, nil)
				node := c.servers[0].node
				var wg sync.WaitGroup
				for range 64 {
					wg.Go(func() {
						for failed := 0; failed < 3; {
							if _, err := node.Apply(t.Context(), set("a", "1")); err != nil {
								failed++
							}
						}
					})
				}
				end(node)
				answered := make(chan struct{})
				go func() { wg.Wait(); close(answered) }()
				select {
				case <-answered:
				case <-time.After(20 * time.Second):
					t.Fatal("callers wait for a server that has stopped")
				}
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	c := start(t, 1, func(cfg *raft.Config) { cfg.Registerer = reg })
	c.servers[0].apply(set("a", "1"))
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		if m := f.GetMetric()[0]; m.GetGauge() != nil {
			values[f.GetName()] = m.GetGauge().GetValue()
		} else {
			values[f.GetName()] = float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.Equal(t, 1.0, values["remuda_raft_leader"])
	require.Equal(t, 1.0, values["remuda_raft_peers"])
	require.Equal(t, 1.0, values["remuda_raft_apply_seconds"])
	require.GreaterOrEqual(t, values["remuda_raft_commit_index"], 3.0)
	c.servers[0].stop()
	families, err = reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "a closed node leaves nothing behind")
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := raft.Open(raft.Config{Bind: "x", Advertise: "0.0.0.0:1", Secret: "short", BootstrapExpect: -1, Join: []string{"y"}})
	for _, want := range []string{"data_dir is required", "store must be set", "logger must be set", "cluster is required", `raft.bind is "x"`, `raft.advertise is "0.0.0.0:1"`, "raft.secret has 5 bytes", "raft.server_stabilization_time is 0s", "bootstrap_expect is -1", `join has "y"`, "retry interval is 0s", "raft.heartbeat_timeout", "raft.election_timeout", "raft.leader_lease_timeout", "apply timeout", "raft.snapshot_interval", "raft.snapshot_threshold is 0", "max batch"} {
		require.ErrorContains(t, err, want)
	}
	s := newCluster(t, nil).add()
	for _, edit := range []func(*raft.Config){
		func(c *raft.Config) { c.Bind = "0.0.0.0:0" },
		func(c *raft.Config) { c.BootstrapExpect, c.Join = 1, []string{"127.0.0.1:1"} },
		func(c *raft.Config) { c.BootstrapExpect = 3 },
		func(c *raft.Config) { c.LeaderLeaseTimeout = time.Hour },
	} {
		cfg := s.config()
		edit(&cfg)
		_, err := raft.Open(cfg)
		require.Error(t, err)
	}
}

func TestDataDirectoryIsOneProcesss(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	other := c.add()
	other.dir = c.servers[0].dir
	_, err := raft.Open(other.config())
	require.ErrorContains(t, err, "another process has the file open: is another agent using this data directory?")
	c.servers[0].apply(set("a", "1"))
}

func TestAServerWithoutItsIdentityIsRefused(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	s := c.servers[0]
	s.stop()
	require.NoError(t, os.Remove(filepath.Join(s.dir, "identity.json")))
	_, err := raft.Open(s.config())
	require.ErrorContains(t, err, "identity.json")
}

func TestClosedNodeRefuses(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	node := c.servers[0].node
	c.servers[0].stop()
	_, err := node.Apply(t.Context(), set("a", "1"))
	require.ErrorIs(t, err, raft.ErrClosed)
	_, err = node.Read(t.Context(), raft.Verified)
	require.Error(t, err)
	require.NoError(t, node.Close(), "twice")
}
