package reconcile_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/gatewayreport"
	"remuda/controller/nomad"
	"remuda/controller/raft"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/nomadtest"
	"remuda/internal/testkit/shimtest"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// cluster is a real Raft server, a Nomad over HTTP, and the real planner.
type cluster struct {
	t      *testing.T
	dir    string
	nomad  *nomadtest.Server
	client *nomad.Client
	consul *fakeConsul
	loads  *gatewayreport.Store
	edit   func(*reconcile.Config)
	// also, nil: none, is the Nomad of another pool.
	also *nomadtest.Server
	// ports are those of every allocation; serves, nil: yes, whether their engines do.
	ports  []nomadapi.PortMapping
	serves func() bool

	raft  *raft.Node
	r     *reconcile.Reconciler
	close func()
}

// clusterLoadTTL is so long that a report lives until a test moves the clock of loads.
const clusterLoadTTL = time.Hour

func newCluster(t *testing.T) *cluster { return newClusterOf(t, nil) }

// newClusterOf has edit change the reconciler's config.
func newClusterOf(t *testing.T, edit func(*reconcile.Config)) *cluster {
	c := &cluster{t: t, edit: edit, dir: t.TempDir(), nomad: nomadtest.New(t), consul: newFakeConsul()}
	c.loads = gatewayreport.New(clusterLoadTTL, time.Now)
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.Timeout, cfg.Wait, cfg.Settle, cfg.Rate, cfg.Burst = c.nomad.URL, 5*time.Second, 200*time.Millisecond, time.Millisecond, 10_000, 10_000
	client, err := nomad.New(cfg)
	require.NoError(t, err)
	c.client = client
	t.Cleanup(client.Close)
	c.nomad.OnParse(func(nomadapi.JobsParseRequest) (*nomadapi.Job, error) {
		return &nomadapi.Job{
			ID: new("x"), Name: new("x"), Type: new("service"), Namespace: new("default"), Datacenters: []string{"*"}, NodePool: new("default"),
			TaskGroups: []*nomadapi.TaskGroup{{Name: new("replica"), Count: new(1), Tasks: []*nomadapi.Task{{
				Name: "primary", Driver: "raw_exec", Resources: &nomadapi.Resources{Devices: []*nomadapi.RequestedDevice{{Name: "nvidia/gpu", Count: new(uint64(1))}}},
			}}}},
		}, nil
	})
	c.nomad.SetNode(nomadNode("node-1"))
	c.nomad.SetNode(nomadNode("node-2"))
	c.open()
	t.Cleanup(func() { c.close() })
	return c
}

func nomadNode(id string) *nomadapi.Node {
	g := &nomadapi.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]*nomadapi.Attribute{
		"model": {StringVal: new("H100")}, "memory": {IntVal: new(int64(80_000)), Unit: "MiB"},
	}}
	for gpu := range 2 {
		for seat := range 2 {
			g.Instances = append(g.Instances, &nomadapi.NodeDevice{ID: fmt.Sprintf("%s-GPU%d#%d", id, gpu, seat), Healthy: true})
		}
	}
	return &nomadapi.Node{
		ID: id, Name: id, Datacenter: "dc1", NodePool: "default", Status: nomadapi.NodeStatusReady, SchedulingEligibility: nomadapi.NodeSchedulingEligible,
		NodeResources: &nomadapi.NodeResources{Cpu: nomadapi.NodeCpuResources{CpuShares: 8000}, Memory: nomadapi.NodeMemoryResources{MemoryMB: 1024}, Devices: []*nomadapi.NodeDeviceResource{g}},
	}
}

// sub runs a subtest on the cluster.
func (c *cluster) sub(name string, test func(t *testing.T)) {
	outer := c.t
	defer func() { c.t = outer }()
	outer.Run(name, func(t *testing.T) {
		c.t = t
		test(t)
	})
}

// open starts the controller with what its directory has.
func (c *cluster) open() {
	address := loopback.Free(c.t)
	store, err := state.New()
	require.NoError(c.t, err)
	rc := raft.DefaultConfig()
	rc.DataDir, rc.Bind, rc.BootstrapExpect, rc.Store = c.dir, address, 1, store
	// One that is alone has nobody to wait for, and cannot lose an election.
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	c.raft, err = raft.Open(rc)
	require.NoError(c.t, err)

	cfg := reconcile.DefaultConfig()
	cfg.Raft, cfg.Nomad, cfg.Consul, cfg.Shims, cfg.Loads = c.raft, c.client, c.consul, shimclient.New(shimclient.Network()), c.loads
	cfg.Resync = 20 * time.Millisecond
	if c.edit != nil {
		c.edit(&cfg)
	}
	c.r, err = reconcile.New(cfg)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.r.Run(ctx)
	}()
	c.close = func() {
		cancel()
		<-ended
		require.NoError(c.t, c.raft.Close())
	}
	c.until("this server leads", func() bool { return c.r.Status().Leading })
}

// until waits for something, and plays the nodes of Nomad meanwhile.
func (c *cluster) until(what string, reached func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for !reached() {
		if time.Now().After(deadline) {
			for _, r := range c.replicas() {
				c.t.Logf("%s %s: %s", r.Name, r.Status, r.LastError)
			}
			for _, d := range c.raft.Store().View().Decisions(nil, "", 20) {
				c.t.Logf("%s %s %s", d.Kind, d.Replica, d.Reason)
			}
			c.t.Fatalf("not within %s: %s; %+v", patience, what, c.r.Status())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *cluster) apply(cmd any) {
	c.t.Helper()
	_, err := c.raft.Apply(c.t.Context(), resolved(c.raft.Store().View(), cmd))
	require.NoError(c.t, err)
}

func (c *cluster) model(replicas int) {
	c.apply(&state.UpsertModel{Model: state.Model{
		Name: "m", Max: 10, Priority: 50, Management: state.ManagementFull, Hash: "h1", Desired: state.Any(replicas),
		Variants: []state.Variant{{Name: "v", GPUModel: "H100", GPUs: 1, Memory: 20 << 30, Cost: 1, Slots: 4, Engine: "vllm", Job: `job "x" {}`, Hash: "vh1"}},
	}, Time: time.Now()})
}

func (c *cluster) scale(n int) {
	c.apply(&state.ScaleRequest{Model: "m", Replicas: &n, Origin: state.OriginOperator})
}

func (c *cluster) replicas() []*state.Replica { return c.raft.Store().View().Replicas(nil) }

// stages counts the replicas of each stage.
func (c *cluster) stages() map[string]int {
	out := map[string]int{}
	for _, r := range c.replicas() {
		out[string(r.Status)]++
	}
	return out
}

// work is what Nomad's nodes and the engines do: what is registered runs and serves,
// what is stopped ends.
func (c *cluster) work() {
	var serving []replica.Engine
	for _, r := range c.replicas() {
		name := r.Name.String()
		server := c.nomad
		job := server.Job(name)
		if job == nil && c.also != nil {
			server = c.also
			job = server.Job(name)
		}
		if job == nil {
			continue
		}
		stopped := job.Stop != nil && *job.Stop
		a := &nomadapi.AllocationListStub{ID: "alloc-" + name, JobID: name, NodeID: r.Placement.Node, DesiredStatus: "run", ClientStatus: "running",
			CreateTime: 1, TaskStates: map[string]*nomadapi.TaskState{"primary": {State: "running", StartedAt: time.Unix(1, 0)}},
			AllocatedResources: &nomadapi.AllocatedResources{Shared: nomadapi.AllocatedSharedResources{Ports: c.ports}}}
		if stopped {
			a.DesiredStatus, a.ClientStatus = "stop", "complete"
		} else if c.serves == nil || c.serves() {
			serving = append(serving, replica.Engine{Name: r.Name, Role: replica.RolePrimary, Passing: true, Token: replica.Token{Counter: 1}})
		}
		server.SetAllocation(a)
	}
	c.consul.serve(serving...)
}

// run waits until so many replicas run, and nothing else is there, and the state knows
// their jobs as they are.
func (c *cluster) run(n int) {
	c.t.Helper()
	c.until(fmt.Sprintf("%d replicas run", n), func() bool {
		c.work()
		for _, r := range c.replicas() {
			if j := c.nomad.Job(r.Name.String()); j == nil || *j.JobModifyIndex != r.JobIndex {
				return false
			}
		}
		s := c.stages()
		return s["serving"] == n && len(c.replicas()) == n
	})
}

// rest asserts that many looks lead to no write.
func (c *cluster) rest() {
	c.t.Helper()
	look := func() {
		before := c.r.Status().LastRunAt
		c.until("another look", func() bool { return c.r.Status().LastRunAt.After(before) })
	}
	look() // what was under way
	look()
	index, writes := c.raft.Store().View().Index(), c.count("PUT /v1/jobs")+c.count("DELETE /v1/job")
	for range 10 {
		look()
	}
	require.Equal(c.t, index, c.raft.Store().View().Index(), "a write to Raft at rest")
	require.Equal(c.t, writes, c.count("PUT /v1/jobs")+c.count("DELETE /v1/job"))
}

func (c *cluster) count(prefix string) int {
	n := 0
	for _, s := range c.nomad.Served() {
		if strings.HasPrefix(s, prefix) && !strings.HasSuffix(s, "parse") {
			n++
		}
	}
	return n
}

func TestWithRealRaftAndNomadsAPI(t *testing.T) {
	c := newCluster(t)
	dir := t.TempDir()
	c.model(2)
	c.run(2)
	c.rest()
	for _, r := range c.replicas() {
		job := c.nomad.Job(r.Name.String())
		require.Equal(t, strings.Join(r.Placement.Seats, ","), job.Meta[nomad.MetaSeats])
		require.Equal(t, *job.JobModifyIndex, r.JobIndex)
	}

	c.sub("Nomad is away for a while", func(t *testing.T) {
		c.nomad.Break(func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
			return true
		})
		c.until("Nomad is missed", func() bool { return !c.r.Status().Jobs.Known && !c.r.Status().Nodes.Known })
		c.scale(3)
		c.rest()
		require.Equal(t, 2, c.stages()["serving"], "nothing is concluded")
		c.nomad.Break(nil)
		c.run(3)
		c.rest()
	})

	c.sub("a job is stopped behind our back", func(t *testing.T) {
		name := c.replicas()[0].Name.String()
		c.nomad.EditJob(name, func(j *nomadapi.Job) { j.Stop = new(true) })
		c.until("it is registered again", func() bool { j := c.nomad.Job(name); return j.Stop == nil || !*j.Stop })
		c.run(3)
		c.rest()
	})

	c.sub("the controller starts anew", func(t *testing.T) {
		registered := c.count("PUT /v1/jobs")
		before := c.replicas()
		c.close()
		c.open()
		c.run(3)
		c.rest()
		require.Equal(t, registered, c.count("PUT /v1/jobs"))
		require.Equal(t, before, c.replicas())
	})

	c.sub("the controller has lost its memory", func(t *testing.T) {
		registered := c.count("PUT /v1/jobs")
		names := func() (out []string) {
			for _, r := range c.replicas() {
				out = append(out, r.Name.String())
			}
			return out
		}
		before := names()
		c.close()
		c.dir = dir
		c.open()
		c.model(3)
		c.until("what runs is adopted", func() bool { c.work(); return c.stages()["serving"] == 3 })
		require.Equal(t, before, names())
		require.Equal(t, registered, c.count("PUT /v1/jobs"), "nothing was registered")
		c.rest()
	})
}

func TestScaleDownWithRealRaftAndNomadsAPI(t *testing.T) {
	c := newCluster(t)
	shims := c.shimServer()
	c.model(2)
	c.run(2)
	c.scale(1)
	var leaving *state.Replica
	c.until("one is being drained", func() bool {
		for _, r := range c.replicas() {
			if r.Status == state.StatusDraining {
				leaving = r
			}
		}
		return leaving != nil
	})
	name := leaving.Name.String()
	// Its request takes a while.
	engine, ended := shimtest.New(name, replica.RolePrimary, false), make(chan struct{})
	engine.OnDrain(func() shimtest.Answer { <-ended; return shimtest.Answer{} })
	shims.Store(engine)
	c.until("the order to drain", func() bool { return len(engine.Orders()) == 1 })
	for range 10 {
		seen := c.r.Status().LastRunAt
		c.until("it looks again", func() bool { return c.r.Status().LastRunAt.After(seen) })
		c.work()
		require.Equal(t, 1, c.stages()["draining"])
	}
	close(ended)
	c.until("it is gone", func() bool { c.work(); return len(c.replicas()) == 1 })
	c.until("Nomad has forgotten it", func() bool { c.work(); return c.nomad.Job(name) == nil })
	c.run(1)
	c.rest()
}
