package raft_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/testkit/proclog"
)

// member returns a server as another one sees it; false if it is not a member.
func (s *server) member(id string) (raft.Member, bool) {
	s.c.t.Helper()
	members, err := s.node.Members()
	require.NoError(s.c.t, err)
	i := slices.IndexFunc(members, func(m raft.Member) bool { return m.ID == id })
	if i < 0 {
		return raft.Member{}, false
	}
	return members[i], true
}

// TestAnOperatorPromotesAnUnexpectedServer: a server whose address the leader does not
// expect stays a non-voter until it is promoted, and an unreachable one is not promoted.
func TestAnOperatorPromotesAnUnexpectedServer(t *testing.T) {
	t.Parallel()
	c := start(t, 1, company)
	first := c.servers[0]
	first.apply(set("a", "1"))
	s := c.add()
	s.join = []string{first.address}
	s.start()
	s.sees("a", "1")
	id := s.node.ID()
	eventually(t, "only the operator's word is missing", func() bool {
		m, ok := first.member(id)
		return ok && !m.Voter && m.FeatureLevel == state.FeatureLevel && m.PromotionBlocked != "" &&
			strings.Contains(m.PromotionBlocked, "remuda raft promote "+id)
	})
	require.ErrorContains(t, first.node.TransferLeadership(t.Context(), id), "no voter")
	require.ErrorIs(t, s.node.Promote(t.Context(), id), raft.ErrNotLeader)
	require.ErrorContains(t, first.node.Promote(t.Context(), "x"), "no server has the ID x")
	require.ErrorContains(t, first.node.RemovePeer(t.Context(), first.node.ID()), "last voter")

	require.ErrorContains(t, first.node.Leave(timeout(t, 200*time.Millisecond)), "this is the only voter: promote another server")

	c.net.partition(s.name)
	require.ErrorIs(t, first.node.Promote(t.Context(), id), raft.ErrUnhealthy)
	eventually(t, "what is wrong is shown", func() bool {
		m, _ := first.member(id)
		return strings.Contains(m.PromotionBlocked, errCut.Error())
	})
	c.net.heal(s.name)
	eventually(t, "it is promoted", func() bool { return first.node.Promote(t.Context(), id) == nil })
	m, _ := first.member(id)
	require.True(t, m.Voter)
	require.Empty(t, m.PromotionBlocked)
	require.NoError(t, first.node.Promote(t.Context(), id), "it is a voter already")
}

// TestAnExpectedServerBecomesAVoter once it was healthy for long enough, and not before.
func TestAnExpectedServerBecomesAVoter(t *testing.T) {
	t.Parallel()
	const stable = 2 * time.Second
	c := start(t, 3, func(cfg *raft.Config) { cfg.ServerStabilizationTime = stable })
	l := c.leader()
	l.apply(set("a", "1"))
	s := c.others(l)[0]
	s.stop()
	s.dir = t.TempDir() // It comes again with another ID.
	begun := time.Now()
	s.start()
	s.sees("a", "1")
	var m raft.Member
	eventually(t, "it is a member", func() (ok bool) { m, ok = c.leader().member(s.node.ID()); return ok })
	if time.Since(begun) < stable {
		require.False(t, m.Voter)
		require.NotEmpty(t, m.PromotionBlocked)
	}
	eventually(t, "it is a voter", func() bool { m, _ = c.leader().member(s.node.ID()); return m.Voter })
	require.GreaterOrEqual(t, time.Since(begun), stable)
}

// newer is a command of feature level 2.
type newer struct{ *state.SetSwitch }

func (newer) Level() int { return 2 }

// TestFeatureLevelOfAServerThatIsAway: what the state needs already is not asked of a server that
// nobody has reached. Otherwise two of three servers could not go on without it.
func TestFeatureLevelOfAServerThatIsAway(t *testing.T) {
	t.Parallel()
	c := start(t, 3, func(cfg *raft.Config) { cfg.FeatureLevel = 2 })
	restart := func(servers ...*server) {
		for _, s := range servers {
			s.stop()
		}
		for _, s := range servers {
			s.start()
		}
	}
	c.leader()
	away := c.servers[2]
	id := away.node.ID()
	away.stop()
	restart(c.servers[:2]...)
	_, err := c.leader().node.Apply(t.Context(), newer{set("new", "1")})
	require.ErrorIs(t, err, raft.ErrFeatureLevel)
	require.ErrorContains(t, err, id+" at "+away.address+" (unknown: not reached yet)")

	away.start()
	eventually(t, "the command is applied", func() bool {
		_, err := c.leader().node.Apply(t.Context(), newer{set("new", "1")})
		return err == nil
	})
	away.stop()
	restart(c.servers[:2]...)
	l := c.leader()
	m, ok := l.member(id)
	require.True(t, ok)
	require.Zero(t, m.FeatureLevel, "it has not been reached")
	_, err = l.node.Apply(t.Context(), newer{set("new", "2")})
	require.NoError(t, err)
	away.start()
	away.sees("new", "2")
}

func TestFeatureLevels(t *testing.T) {
	t.Parallel()
	levels := map[string]int{"s0": 2, "s1": 2, "s2": 1, "s3": 1}
	log := &proclog.Buffer{}
	c := start(t, 3, func(cfg *raft.Config) {
		cfg.FeatureLevel = levels[filepath.Base(cfg.DataDir)]
		cfg.SnapshotThreshold, cfg.TrailingLogs, cfg.SnapshotInterval = 20, 5, 20*time.Millisecond
		if filepath.Base(cfg.DataDir) == "s3" {
			cfg.Logger = log.Logger()
		}
	})
	command := newer{set("new", "1")}

	// One server is behind.
	old := c.servers[2]
	l := c.leader()
	eventually(t, "the leader knows all levels", func() bool {
		m, _ := l.member(old.node.ID())
		return m.FeatureLevel == 1
	})
	require.Equal(t, 1, l.node.FeatureLevel())
	_, err := l.node.Apply(t.Context(), command)
	require.ErrorIs(t, err, raft.ErrFeatureLevel)
	require.ErrorContains(t, err, "not all servers have feature level 2: ")
	require.ErrorContains(t, err, old.node.ID()+" at "+old.address+" (1)")
	l.apply(set("a", "1"))

	// It is upgraded.
	old.stop()
	levels["s2"] = 2
	old.start()
	eventually(t, "the command is applied", func() bool {
		l = c.leader()
		_, err := l.node.Apply(t.Context(), command)
		return err == nil
	})
	for _, s := range c.servers {
		s.sees("new", "1")
	}
	require.Equal(t, 2, l.node.FeatureLevel())

	// A new server of the old version does not join.
	late := c.add()
	late.join = c.addresses()[:3]
	late.start()
	eventually(t, "it is refused", func() bool {
		return strings.Contains(log.String(), "has feature level 1 and the log needs 2: upgrade it")
	})
	peers, err := c.leader().node.Peers()
	require.NoError(t, err)
	require.Len(t, peers, 3)
	late.stop()

	// Nor does a member go on that is downgraded: with the entry in its log, and with it in
	// a snapshot.
	s := c.others(c.leader())[0]
	s.stop()
	levels[s.name] = 1
	node, err := s.open()
	if err == nil {
		s.node = node
		eventually(t, "it stops", func() bool { err = node.Err(); return err != nil })
	}
	require.ErrorContains(t, err, "needs feature level 2 and this server has 1: upgrade this server")
	s.stop()
	levels[s.name] = 2
	s.start()
	for i := range 30 {
		c.leader().apply(set("b", string(rune('a'+i%26))))
	}
	c.leader().apply(set("last", "1"))
	s.sees("last", "1")
	eventually(t, "a snapshot", func() bool {
		found, err := filepath.Glob(filepath.Join(s.dir, "snapshots", "*", "state.bin"))
		return err == nil && len(found) > 0
	})
	s.stop()
	levels[s.name] = 1
	_, err = s.open()
	require.ErrorContains(t, err, "snapshot was written by a newer version of remuda: it needs feature level 2, and this one has 1: upgrade remuda")
	levels[s.name] = 2
	s.start()
	s.sees("last", "1")
	s.sees("new", "1")
}

// TestSnapshotsOfFeatureLevels: a snapshot has the level that its state needs, and is
// restored only if every member can have that state. A snapshot of a lower level is the way
// back to an older version.
func TestSnapshotsOfFeatureLevels(t *testing.T) {
	t.Parallel()
	levels := map[string]int{"s0": 2, "s1": 2, "s2": 2}
	c := start(t, 3, func(cfg *raft.Config) { cfg.FeatureLevel = levels[filepath.Base(cfg.DataDir)] })
	save := func(level int) []byte {
		var b bytes.Buffer
		info, err := c.leader().node.SaveSnapshot(t.Context(), &b, raft.Verified)
		require.NoError(t, err)
		require.Equal(t, level, info.FeatureLevel)
		info, err = state.Inspect(bytes.NewReader(b.Bytes()), level)
		require.NoError(t, err)
		require.Equal(t, level, info.FeatureLevel)
		return b.Bytes()
	}
	c.leader().apply(set("a", "saved"))
	first := save(1)
	eventually(t, "the command is applied", func() bool {
		_, err := c.leader().node.Apply(t.Context(), newer{set("a", "new")})
		return err == nil
	})
	second := save(2)

	// Restored, the state needs level 1 again: a member goes back.
	_, err := c.leader().node.RestoreSnapshot(t.Context(), bytes.NewReader(first))
	require.NoError(t, err)
	for _, s := range c.servers {
		s.sees("a", "saved")
	}
	require.Equal(t, first[:len("remuda-state")+8], save(1)[:len("remuda-state")+8])
	back := c.others(c.leader())[0]
	back.stop()
	levels[back.name] = 1
	back.start()
	c.leader().apply(set("b", "1"))
	back.sees("b", "1")

	// Now the snapshot of level 2 is refused, and names who is behind.
	eventually(t, "the leader knows the level", func() bool {
		m, _ := c.leader().member(back.node.ID())
		return m.FeatureLevel == 1
	})
	l := c.leader()
	before := l.node.Store().View().Index()
	_, err = l.node.RestoreSnapshot(t.Context(), bytes.NewReader(second))
	require.ErrorIs(t, err, raft.ErrFeatureLevel)
	require.ErrorContains(t, err, "not all servers have feature level 2: "+back.node.ID()+" at "+back.address+" (1): upgrade these servers")
	require.Equal(t, before, l.node.Store().View().Index())
	require.Equal(t, "saved", l.node.Store().View().Switch(nil, "a"))

	// So it is by a leader that is itself too old.
	old := start(t, 1, func(cfg *raft.Config) { cfg.FeatureLevel = 1 }).servers[0]
	old.apply(set("a", "old"))
	_, err = old.node.RestoreSnapshot(t.Context(), bytes.NewReader(second))
	require.ErrorIs(t, err, state.ErrSnapshotNewer)
	require.ErrorContains(t, err, "it needs feature level 2, and this one has 1: upgrade remuda")
	require.Equal(t, "old", old.node.Store().View().Switch(nil, "a"))
	require.NoError(t, old.node.Err())
}
