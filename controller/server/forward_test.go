package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/server"
	"remuda/internal/testkit/loopback"
)

func TestWritesAndReadsThroughFollowers(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{acl: true})
	fs := followersOf(t, ms)
	first, err := fs[0].client.BootstrapACL(t.Context())
	require.NoError(t, err)
	a, b := fs[0].as(first.SecretID), fs[1].as(first.SecretID)

	_, err = a.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("meta-llama/Llama-3:8b"))})
	require.NoError(t, err)
	for i := range 20 {
		want := i % 5
		_, err := a.Scale(t.Context(), "meta-llama/Llama-3:8b", api.ScaleRequest{Replicas: want})
		require.NoError(t, err)
		got, meta, err := b.Model(t.Context(), "meta-llama/Llama-3:8b", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, want, got.Model.Replicas, "a read sees what was acknowledged, on whichever server")
		require.True(t, meta.KnownLeader)
		require.Zero(t, meta.LastContact, "the leader answered")
	}
	text, _, err := b.ModelFile(t.Context(), "meta-llama/Llama-3:8b", 0, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, text, `model "meta-llama/Llama-3:8b"`)

	// Refusals come through as they are.
	_, err = fs[1].as("wrong").Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1})
	requireError(t, err, http.StatusUnauthorized, api.CodeNoToken, "unknown ACL token")
	_, err = b.Scale(t.Context(), "x", api.ScaleRequest{Replicas: 1})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `model "x" does not exist`)
	resp, body := fs[0].raw(http.MethodPut, "/v1/evict", first.SecretID, "{\n!")
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, refused(t, body).Message, "invalid character '!'")

	// A blocking query at a follower is the leader's.
	_, at, err := a.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	ch := wait(func() ([]api.Switch, api.QueryMeta, error) {
		return a.Switches(t.Context(), api.QueryOptions{Index: at.Index})
	})
	leaderOf(t, ms).waitWatches(1)
	sw, err := b.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	got := receive(t, ch)
	require.NoError(t, got.err)
	require.Equal(t, []api.Switch{sw}, got.value)

	// A stale one is its own.
	eventually(t, "the follower has it", func() bool { return fs[0].store.View().Switch(nil, "pause-reconcile") == "on" })
	_, at, err = a.Switches(t.Context(), api.QueryOptions{Stale: true})
	require.NoError(t, err)
	require.True(t, at.KnownLeader)
	require.Less(t, at.LastContact, patience)
	ch = wait(func() ([]api.Switch, api.QueryMeta, error) {
		return a.Switches(t.Context(), api.QueryOptions{Index: at.Index, Stale: true})
	})
	fs[0].waitWatches(1)
	_, err = b.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "still"})
	require.NoError(t, err)
	got = receive(t, ch)
	require.NoError(t, got.err)
	require.Equal(t, "still", got.value[0].Value)

	// What gateways report is the leader's to know.
	gw := token(t, b, "gateway")
	reported(t, fs[0].as(gw.SecretID), api.GatewayReport{Gateway: "gw", Index: 1, Replicas: []api.ReplicaLoad{}})
	require.Len(t, leaderOf(t, ms).loads.Gateways(), 1)
	require.Empty(t, fs[0].loads.Gateways())

	// Snapshots go through as streams.
	var saved bytes.Buffer
	require.NoError(t, a.SaveSnapshot(t.Context(), &saved, api.QueryOptions{}))
	_, err = a.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "later"})
	require.NoError(t, err)
	info, err := b.RestoreSnapshot(t.Context(), &saved)
	require.NoError(t, err)
	require.Equal(t, 1, info.Rows["switches"])
	all, _, err := a.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "still", all[0].Value)
	_, err = b.RestoreSnapshot(t.Context(), strings.NewReader("nonsense"))
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "damaged")
}

// TestTheClusterIsChanged hands the leadership over, with a watcher that waits, and
// takes servers out.
func TestTheClusterIsChanged(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	leader := leaderOf(t, ms)
	fs := followersOf(t, ms)
	_, at, err := leader.client.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	var watchers []<-chan result[[]api.Switch]
	for _, m := range ms {
		watchers = append(watchers, wait(func() ([]api.Switch, api.QueryMeta, error) {
			return m.client.Switches(t.Context(), api.QueryOptions{Index: at.Index})
		}))
	}
	leader.waitWatches(3)

	transfer(t, ms, fs[0].client, fs[0].node.ID(), func(to *member) bool { return to == fs[0] })
	fs[0].waitWatches(3) // Those who wait go over, though nothing has changed yet.
	conf, _, err := leader.client.RaftConfiguration(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, conf.Servers, 3)
	for _, s := range conf.Servers {
		require.Equal(t, s.ID == fs[0].node.ID(), s.Leader)
	}
	_, err = fs[1].client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	for _, ch := range watchers {
		got := receive(t, ch)
		require.NoError(t, got.err, "those who wait go on at the new leader")
		require.Len(t, got.value, 1)
	}

	requireError(t, leader.client.TransferLeadership(t.Context(), fs[0].node.ID()), http.StatusConflict, api.CodeConflict, "is already the leader")
	transfer(t, ms, leader.client, "", func(to *member) bool { return to != fs[0] })
	now := leaderOf(t, ms)
	require.NoError(t, now.client.RemovePeer(t.Context(), fs[0].node.ID()))
	conf, _, err = now.client.RaftConfiguration(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, conf.Servers, 2)
}

// transfer asks for another leader until there is one. On a busy machine a transfer takes longer than
// the election timeout; its outcome is unknown then.
func transfer(t *testing.T, ms []*member, client *api.Client, id string, done func(to *member) bool) {
	t.Helper()
	for {
		err := client.TransferLeadership(t.Context(), id)
		if done(leaderOf(t, ms)) {
			return
		}
		if err != nil {
			requireError(t, err, http.StatusGatewayTimeout, api.CodeUnknownOutcome, "leadership transfer timeout")
		}
	}
}

// TestTheLeaderIsKilledWhileClientsWrite looks for writes that were acknowledged and
// are lost, and for changes that a watcher does not see.
func TestTheLeaderIsKilledWhileClientsWrite(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	leader := leaderOf(t, ms)
	fs := followersOf(t, ms)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watchers, writers sync.WaitGroup
	var mu sync.Mutex
	watched := make([]map[string]bool, len(fs))
	for i, f := range fs {
		watched[i] = map[string]bool{}
		watchers.Go(func() {
			_ = api.Watch(ctx, api.QueryOptions{}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
				v, meta, err := f.client.Switches(ctx, q)
				mu.Lock()
				defer mu.Unlock()
				for _, s := range v {
					watched[i][s.Name] = true
				}
				return meta, err
			}, nil)
		})
	}
	var acked sync.Map
	var count atomic.Int64
	killed := make(chan struct{})
	for w, f := range []*member{fs[0], fs[1], leader, leader} {
		writers.Go(func() {
			for i, after := 0, 0; after < 10; i++ {
				select {
				case <-killed:
					after++
					if f == leader {
						return
					}
				default:
				}
				name := fmt.Sprintf("cap-max-replicas/w%d-%d", w, i)
				_, err := f.client.SetSwitch(ctx, name, api.SwitchRequest{Value: "1"})
				var e *api.Error
				switch {
				case err == nil:
					acked.Store(name, true)
					count.Add(1)
				case errors.As(err, &e) && e.Status < 500:
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	eventually(t, "writes", func() bool { return count.Load() > 40 })
	leader.close()
	close(killed)
	writers.Wait()

	rest := leaderOf(t, ms)
	have := map[string]bool{}
	all, _, err := rest.client.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	for _, s := range all {
		have[s.Name] = true
	}
	n := 0
	acked.Range(func(name, _ any) bool {
		n++
		require.True(t, have[name.(string)], "%s was acknowledged and is lost", name)
		return true
	})
	require.Greater(t, n, 40)
	eventually(t, "the watchers have seen everything", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(watched[0]) == len(have) && len(watched[1]) == len(have)
	})
	cancel()
	watchers.Wait()
}

func quick(c *server.Config) { c.LeaderWait = 200 * time.Millisecond }

func TestWithoutALeader(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{server: quick})
	leader := leaderOf(t, ms)
	fs := followersOf(t, ms)
	_, err := leader.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	last := fs[0]
	eventually(t, "it has the switch", func() bool { return last.store.View().Switch(nil, "pause-reconcile") == "on" })
	leader.close()
	fs[1].close()
	eventually(t, "there is no leader", func() bool { return last.node.Leader().ID == "" })

	for _, r := range []struct{ method, path, body string }{
		{"GET", "/v1/models", ""}, {"GET", "/v1/models?index=1&wait=10m", ""}, {"PUT", "/v1/switch/pause-reconcile", `{"Value":"still"}`}, {"PUT", "/v1/operator/snapshot", "x"},
	} {
		resp, body := last.raw(r.method, r.path, "", r.body)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, body)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Equal(t, api.CodeNoLeader, refused(t, body).Code)
	}
	all, meta, err := last.client.Switches(t.Context(), api.QueryOptions{Stale: true})
	require.NoError(t, err)
	require.Equal(t, "on", all[0].Value)
	require.False(t, meta.KnownLeader)
	require.Positive(t, meta.LastContact)
	l, err := last.client.Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, api.LeaderStatus{}, l)
	requireError(t, last.client.Ready(t.Context()), http.StatusServiceUnavailable, api.CodeNoLeader, "no cluster leader is known to this server")
	require.NoError(t, last.client.Live(t.Context()))
	h, err := last.client.AgentHealth(t.Context())
	require.NoError(t, err)
	require.False(t, h.Healthy)
	require.Len(t, h.Problems, 1)
}

// TestForwardingLoopsEnd has a cluster in which every server says that the API of the
// first is its own.
func TestForwardingLoopsEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ms := cluster(t, 3, settings{server: quick, raft: func(c *raft.Config) { c.API = l.Addr().String() }})
	leader, fs := leaderOf(t, ms), followersOf(t, ms)
	// The address that they name is a follower's.
	requests := atomic.Int64{}
	hs := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		require.NotEmpty(t, r.Header.Get(api.HeaderForwarded))
		fs[0].server.ServeHTTP(w, r)
	})}
	go func() { _ = hs.Serve(l) }()
	defer hs.Close()

	for _, m := range fs {
		requests.Store(0)
		_, err := m.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
		e := requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "no leader responded within 200ms")
		require.Equal(t, time.Second, e.RetryAfter)
		require.Positive(t, requests.Load())
		require.Less(t, requests.Load(), int64(50), "each is passed on once, and tried again with pauses")
	}
	resp, body := fs[0].raw(http.MethodGet, "/v1/models", "", "", api.HeaderForwarded, "somebody")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "true", resp.Header.Get(server.HeaderNotLeader))
	require.Equal(t, api.CodeNoLeader, refused(t, body).Code)
	resp, _ = leader.raw(http.MethodGet, "/v1/models", "", "", api.HeaderForwarded, "somebody")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, leader.store.View().Switch(nil, "pause-reconcile"))
}

// TestALeaderThatBreaksOff answers no request that it takes.
func TestALeaderThatBreaksOff(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var reads, writes atomic.Int64
	hs := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			reads.Add(1)
		} else {
			writes.Add(1)
		}
		panic(http.ErrAbortHandler)
	})}
	go func() { _ = hs.Serve(l) }()
	ms := cluster(t, 3, settings{server: quick, raft: func(c *raft.Config) { c.API = l.Addr().String() }})
	f := followersOf(t, ms)[0]

	_, err = f.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	requireError(t, err, http.StatusGatewayTimeout, api.CodeUnknownOutcome, "check the state before retrying (the outcome is unknown")
	require.Equal(t, int64(1), writes.Load(), "it may have happened: it is not sent again")
	_, _, err = f.client.Switches(t.Context(), api.QueryOptions{})
	requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "no leader responded within 200ms")
	require.Greater(t, reads.Load(), int64(1), "a read is tried again")

	// Where nothing can have been sent, a write is tried again and did not happen.
	require.NoError(t, hs.Close())
	_, err = f.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	requireError(t, err, http.StatusServiceUnavailable, api.CodeNoLeader, "no leader responded within 200ms")
	require.Equal(t, int64(1), writes.Load())
}

func TestAFollowerAsksForTokensItself(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{acl: true})
	f := followersOf(t, ms)[0]
	first, err := f.client.BootstrapACL(t.Context())
	require.NoError(t, err)
	eventually(t, "the follower knows the token", func() bool { return f.store.View().TokenBySecret(first.SecretID) != nil })
	_, _, err = f.client.Models(t.Context(), api.QueryOptions{Stale: true})
	requireError(t, err, http.StatusUnauthorized, api.CodeNoToken, "missing ACL token")
	_, _, err = f.as(first.SecretID).Models(t.Context(), api.QueryOptions{Stale: true})
	require.NoError(t, err)
	self, err := f.as(first.SecretID).AgentSelf(t.Context())
	require.NoError(t, err)
	require.False(t, self.Leader)
	require.Equal(t, f.node.ID(), self.ID)
	require.Equal(t, api.ACLStatus{Enabled: true, Bootstrapped: true}, self.ACL)
	_, err = f.client.AgentSelf(t.Context())
	requireError(t, err, http.StatusUnauthorized, api.CodeNoToken, "missing ACL token")
}

// elsewhere is a server that is led by one whose API is at url.
type elsewhere struct {
	server.Raft
	url string
}

func (e elsewhere) Leader() raft.Peer                         { return raft.Peer{ID: "other", Address: "10.0.0.1:1"} }
func (e elsewhere) LeaderAPI(context.Context) (string, error) { return e.url, nil }

// TestAForwardedWaitEndsBeforeTheClientsPatience: a client waits for a sixteenth more
// than it asked for, and both servers add to it.
func TestAForwardedWaitEndsBeforeTheClientsPatience(t *testing.T) {
	t.Parallel()
	waits := make(chan string, 1)
	leader := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		waits <- r.URL.Query().Get("wait")
		w.Header().Set(api.HeaderIndex, "1")
		_, _ = w.Write([]byte("[]"))
	}))
	t.Cleanup(leader.Close)
	m := cluster(t, 1, settings{free: true, server: func(c *server.Config) { c.Raft = elsewhere{c.Raft, leader.URL} }})[0]
	const asked = 9 * time.Minute
	for range 10 {
		_, _, err := m.client.Switches(t.Context(), api.QueryOptions{Index: 1, Wait: asked})
		require.NoError(t, err)
		wait, err := time.ParseDuration(receive(t, waits))
		require.NoError(t, err)
		require.LessOrEqual(t, wait+wait/16, asked+asked/16)
		require.Greater(t, wait, asked*9/10)
	}
}

// leaderless is a server that knows its leader only after it was asked some times.
type leaderless struct {
	server.Raft
	left atomic.Int64
}

func (l *leaderless) Leader() raft.Peer {
	if l.left.Add(-1) >= 0 {
		return raft.Peer{}
	}
	return l.Raft.Leader()
}

// TestASnapshotWaitsForALeader as everything else does: nothing of it was read yet.
func TestASnapshotWaitsForALeader(t *testing.T) {
	t.Parallel()
	late := &leaderless{}
	m := cluster(t, 1, settings{server: func(c *server.Config) { late.Raft, c.Raft = c.Raft, late }})[0]
	m.applied("m")
	var saved bytes.Buffer
	require.NoError(t, m.client.SaveSnapshot(t.Context(), &saved, api.QueryOptions{}))
	late.left.Store(5)
	info, err := m.client.RestoreSnapshot(t.Context(), &saved)
	require.NoError(t, err)
	require.Equal(t, 1, info.Rows["models"])
}

// TestAServerIsPromoted: a server that joins is listed as a non-voter with what it waits
// for, until an operator promotes it.
func TestAServerIsPromoted(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	leader := leaderOf(t, ms)
	addresses := []string{loopback.Free(t)}
	late := startMember(t, addresses, 0, settings{raft: func(c *raft.Config) {
		c.BootstrapExpect, c.Join = 0, []string{leader.node.Address()}
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 2*time.Second, 2*time.Second, 2*time.Second
	}})
	id := late.node.ID()
	listed := func() (found api.RaftServer) {
		conf, _, err := leader.client.RaftConfiguration(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		for _, s := range conf.Servers {
			if s.ID == id {
				found = s
			} else {
				require.True(t, s.Voter)
			}
		}
		return found
	}
	require.Eventually(t, func() bool { return listed().ID == id }, patience, 10*time.Millisecond)
	require.False(t, listed().Voter)
	require.NotEmpty(t, listed().PromotionBlocked)
	requireError(t, leader.client.TransferLeadership(t.Context(), id), http.StatusConflict, api.CodeConflict, "is not a voter")
	require.Eventually(t, func() bool { return leader.client.PromotePeer(t.Context(), id) == nil }, patience, 10*time.Millisecond)
	require.True(t, listed().Voter)
	require.Empty(t, listed().PromotionBlocked)
	requireError(t, leader.client.PromotePeer(t.Context(), id), http.StatusConflict, api.CodeConflict, "is already a voter")
}
