package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/agent"
	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/nomadtest"
)

func TestMain(m *testing.M) {
	// hashicorp/raft never answers what lay in its queue when it was shut down, and
	// whoever asked is not told.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("remuda/controller/raft.(*Node).await.func1"))
}

// patience is how long anything may take that happens by itself.
const patience = 60 * time.Second

// devConfig is of an agent in dir that finds a Nomad and no Consul.
func devConfig(t *testing.T, dir string) agent.Config {
	t.Helper()
	cfg := agent.DevConfig()
	cfg.DataDir, cfg.HTTP.Bind, cfg.Raft.Bind = dir, "127.0.0.1:0", "127.0.0.1:0"
	cfg.Nomad.Address, cfg.Consul.Address, cfg.Consul.Service = nomadtest.New(t).URL, "127.0.0.1:1", ""
	return cfg
}

// run runs an agent; the channel has its error when it ends.
func run(t *testing.T, cfg agent.Config) (client *api.Client, stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	urls := make(chan string, 1)
	cfg.OnListen = func(url string) { urls <- url }
	a, err := agent.New(cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { defer close(done); done <- a.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	select {
	case url := <-urls:
		client, err = api.NewClient(api.Config{Addresses: []string{url}})
		require.NoError(t, err)
		t.Cleanup(client.Close)
	case err := <-done:
		t.Fatalf("the agent ended: %v", err)
	}
	return client, stop, done
}

// TestAgentEndsWhenRaftFails: a server that met a command of a newer version ends with
// an error that says so.
func TestAgentEndsWhenRaftFails(t *testing.T) {
	dir := t.TempDir()
	client, stop, ended := run(t, devConfig(t, dir))
	_, err := client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "1"})
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ended)

	store, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	require.NoError(t, err)
	last, err := store.LastIndex()
	require.NoError(t, err)
	var before hraft.Log
	require.NoError(t, store.GetLog(last, &before))
	require.NoError(t, store.StoreLog(&hraft.Log{Index: last + 1, Term: before.Term, Type: hraft.LogCommand, Data: []byte{0x70}}))
	require.NoError(t, store.Close())

	a, err := agent.New(devConfig(t, dir))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = a.Run(ctx)
	require.ErrorContains(t, err, "this server has failed")
	require.ErrorIs(t, err, state.ErrUnknownCommand)
}

// TestServersShareTheSecretOfAFile: a server with the secret joins, and one with another
// secret does not.
func TestServersShareTheSecretOfAFile(t *testing.T) {
	file := func(secret string) string {
		path := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
		return path
	}
	address := loopback.Free(t)
	server := func(secret string, edit func(*agent.Config)) *api.Client {
		cfg := devConfig(t, t.TempDir())
		cfg.Raft.Secret, cfg.Raft.SecretFile = "", file(secret)
		edit(&cfg)
		client, _, _ := run(t, cfg)
		return client
	}
	join := func(cfg *agent.Config) { cfg.BootstrapExpect, cfg.Join = 0, []string{address} }
	first := server("0123456789abcdef", func(cfg *agent.Config) { cfg.Raft.Bind = address })
	stranger := server("fedcba9876543210", join)
	server("0123456789abcdef", join)
	var members api.RaftConfiguration
	require.Eventually(t, func() bool {
		var err error
		members, _, err = first.RaftConfiguration(t.Context(), api.QueryOptions{})
		return err == nil && len(members.Servers) == 2
	}, patience, 10*time.Millisecond)
	leader, err := stranger.Leader(t.Context())
	require.NoError(t, err)
	require.Empty(t, leader.ID)
}

// TestAgentAnswersWaitingQueriesWhenItStops: nobody who watches holds it up.
func TestAgentAnswersWaitingQueriesWhenItStops(t *testing.T) {
	cfg := devConfig(t, t.TempDir())
	cfg.HTTP.Drain = patience
	client, stop, ended := run(t, cfg)
	_, err := client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "1"})
	require.NoError(t, err)
	_, meta, err := client.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		_, _, err := client.Switches(t.Context(), api.QueryOptions{Index: meta.Index, Wait: api.MaxWait})
		answered <- err
	}()
	stop()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("a waiting query holds the agent up")
	}
	<-answered
}

// TestAgentWithPools: each Nomad is watched, and one that is away is said to be, while the
// other goes on.
func TestAgentWithPools(t *testing.T) {
	cfg := devConfig(t, t.TempDir())
	far := nomadtest.New(t)
	cloud, away := agent.DefaultPool("cloud"), agent.DefaultPool("away")
	cloud.Nomad.Address, cloud.Nomad.NodePool, cloud.Management, cloud.Price = far.URL, "gpu", "full", 2
	away.Nomad.Address = "http://127.0.0.1:1"
	cfg.Pools = []agent.Pool{cloud, away}
	client, _, _ := run(t, cfg)
	var pools []api.Pool
	require.Eventually(t, func() bool {
		var err error
		pools, _, err = client.Pools(t.Context(), api.QueryOptions{})
		return err == nil && len(pools) == 3 && pools[0].Known && pools[2].Known && pools[1].Error != "" && pools[1].Error != "this server is not the leader"
	}, patience, 10*time.Millisecond)
	require.Equal(t, []string{"", "away", "cloud"}, []string{pools[0].Name, pools[1].Name, pools[2].Name})
	require.False(t, pools[1].Known)
	require.Contains(t, pools[1].Error, "connection refused")
	require.Equal(t, []any{far.URL, "gpu", "full", 2.0, 1}, []any{pools[2].Address, pools[2].NodePool, pools[2].Management, pools[2].Price, pools[2].Batch})
	require.Equal(t, cfg.Nomad.Address, pools[0].Address)

	self, err := client.AgentSelf(t.Context())
	require.NoError(t, err)
	require.Empty(t, self.Reconcile.LastError, "the server itself is well")
	require.True(t, self.Reconcile.Nomad.Known)

	_, err = client.Plan(t.Context(), api.PlanRequest{})
	require.NoError(t, err, "what would happen can be asked")
}

// TestAgentTellsWhatHasNoPlace: scalers are told by the API what the planner finds.
func TestAgentTellsWhatHasNoPlace(t *testing.T) {
	cfg := devConfig(t, t.TempDir())
	empty := nomadtest.New(t)
	empty.OnParse(func(nomadapi.JobsParseRequest) (*nomadapi.Job, error) {
		task := nomadapi.NewTask("primary", "docker").Require(&nomadapi.Resources{Devices: []*nomadapi.RequestedDevice{{Name: "nvidia/gpu"}}})
		return nomadapi.NewServiceJob("engine", "engine", "global", 50).AddTaskGroup(nomadapi.NewTaskGroup("replica", 1).AddTask(task)), nil
	})
	cfg.Nomad.Address = empty.URL
	client, _, _ := run(t, cfg)
	_, err := client.ApplyModels(t.Context(), api.ApplyRequest{Files: []api.SourceFile{{Text: `model "m" {
  min = 0
  max = 2
  variant "v" {
    memory      = "10GiB"
    host_memory = "10GiB"
    job         = <<-EOT
      job "engine" {
        group "replica" {}
      }
    EOT
  }
}
`}}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m, _, err := client.Model(t.Context(), "m", api.QueryOptions{})
		return err == nil && strings.Contains(m.Unplaceable["v"], "there are no nodes with GPUs")
	}, patience, 10*time.Millisecond)
}
