package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/consul"
	"remuda/controller/nomad"
	deviceplugin "remuda/device-plugin"
	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/nomadtest"
	"remuda/internal/testkit/proclog"
	"remuda/internal/testkit/shimtest"
)

// patience is how long anything may take that happens by itself.
const patience = 60 * time.Second

// world is a Nomad with GPUs and a Consul: each job that is registered runs at once,
// with a shim, and its engine appears in Consul; each that is stopped ends.
type world struct {
	t      *testing.T
	nomad  *nomadtest.Server
	consul *consultest.Agent
	shims  map[string]*httptest.Server // by job
}

const gpuA, gpuB = "GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000000"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, nomad: nomadtest.New(t), consul: consultest.New(t), shims: map[string]*httptest.Server{}}
	w.setNode(nil)
	w.nomad.OnParse(func(nomadapi.JobsParseRequest) (*nomadapi.Job, error) {
		engine := &nomadapi.Task{Name: "primary", Driver: "raw_exec", Resources: &nomadapi.Resources{Devices: []*nomadapi.RequestedDevice{{Name: "nvidia/gpu", Count: new(uint64(1))}}}}
		return &nomadapi.Job{
			ID: new("x"), Name: new("x"), Type: new("service"), Namespace: new("default"), Datacenters: []string{"*"}, NodePool: new("default"),
			TaskGroups: []*nomadapi.TaskGroup{{Name: new("replica"), Count: new(1), Tasks: []*nomadapi.Task{engine}}},
		}, nil
	})
	w.run()
	return w
}

// setNode sets the node, whose GPUs are healthy but for those that unhealthy has a reason against.
func (w *world) setNode(unhealthy map[string]string) {
	devices := &nomadapi.NodeDeviceResource{Vendor: deviceplugin.Vendor, Type: deviceplugin.Type, Name: deviceplugin.GroupName("H100", ""), Attributes: map[string]*nomadapi.Attribute{
		deviceplugin.AttrModel:  {StringVal: new("H100")},
		deviceplugin.AttrMemory: {IntVal: new(int64(81559)), Unit: "MiB"},
	}}
	for _, gpu := range []string{gpuA, gpuB} {
		for seat := range 2 {
			devices.Instances = append(devices.Instances, &nomadapi.NodeDevice{
				ID: deviceplugin.Seat{GPU: gpu, Index: seat}.String(), Healthy: unhealthy[gpu] == "", HealthDescription: unhealthy[gpu],
			})
		}
	}
	w.nomad.SetNode(&nomadapi.Node{
		ID: "11111111-2222-4333-8444-555555555555", Name: "gpu-1", Datacenter: "dc1", NodePool: "default", Status: nomadapi.NodeStatusReady, SchedulingEligibility: nomadapi.NodeSchedulingEligible,
		NodeResources: &nomadapi.NodeResources{Cpu: nomadapi.NodeCpuResources{CpuShares: 8000}, Memory: nomadapi.NodeMemoryResources{MemoryMB: 65536}, Devices: []*nomadapi.NodeDeviceResource{devices}},
	})
}

// run has jobs run and end until the test does.
func (w *world) run() {
	nc := nomad.DefaultConfig()
	nc.Address, nc.Settle, nc.Wait = w.nomad.URL, time.Millisecond, time.Second
	client, err := nomad.New(nc)
	require.NoError(w.t, err)
	rc := consul.DefaultRegistrarConfig()
	rc.Address, rc.Cohort, rc.TTL = consul.Address{Addr: w.consul.Addr()}, "world", time.Hour
	registrar, err := consul.NewRegistrar(rc)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = client.WatchJobs(ctx, func(list nomad.Listing) {
			for _, j := range list.Jobs {
				w.follow(ctx, registrar, j)
			}
		}, func(error) {})
	})
	w.t.Cleanup(func() {
		cancel()
		wg.Wait()
		client.Close()
		registrar.Close()
		for _, s := range w.shims {
			s.CloseClientConnections()
			s.Close()
		}
	})
}

func (w *world) follow(ctx context.Context, registrar *consul.Registrar, j nomad.Job) {
	engine := replica.Engine{Name: j.Name, Role: replica.RolePrimary, Address: "127.0.0.1", Port: 1, Token: replica.Token{Counter: 1}, Slots: 4, Passing: true}
	live := len(j.Allocations) > 0 && !j.Allocations[0].Ended()
	if j.Stopped == !live {
		return
	}
	if w.shims[j.ID] == nil {
		w.shims[j.ID] = httptest.NewServer(shimtest.New(j.ID, replica.RolePrimary, false))
	}
	shim := netip.MustParseAddrPort(w.shims[j.ID].Listener.Addr().String())
	alloc := &nomadapi.AllocationListStub{
		ID: fmt.Sprintf("%s-%d", j.Name.ID, j.Index), JobID: j.ID, NodeID: j.Placement.Node, NodeName: "gpu-1", DesiredStatus: "run", ClientStatus: "running", CreateTime: time.Now().UnixNano(), ModifyTime: time.Now().UnixNano(),
		AllocatedResources: &nomadapi.AllocatedResources{Shared: nomadapi.AllocatedSharedResources{Ports: []nomadapi.PortMapping{
			{Label: "shim", HostIP: shim.Addr().String(), Value: int(shim.Port())},
		}}, Tasks: map[string]*nomadapi.AllocatedTaskResources{
			"primary": {Devices: []*nomadapi.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: j.Placement.Seats}}},
		}},
		TaskStates: map[string]*nomadapi.TaskState{"primary": {State: "running", StartedAt: time.Now()}},
	}
	if j.Stopped {
		alloc.ID, alloc.DesiredStatus, alloc.ClientStatus = j.Allocations[0].ID, "stop", "complete"
		alloc.TaskStates["primary"].State = "dead"
		_ = registrar.Deregister(ctx, engine) // The test's end closes Consul too.
	} else {
		_ = registrar.Register(ctx, engine)
	}
	w.nomad.SetAllocation(alloc)
}

// running is an agent that runs in this process.
type running struct {
	t    *testing.T
	url  string
	stop func() int
	err  *proclog.Buffer
}

// startAgent runs `remuda agent` with args until the test ends, or it is stopped.
func startAgent(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out := &lines{out: make(chan string, 10)}
	errs := &proclog.Buffer{}
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: out, stderr: errs}
	code := make(chan int, 1)
	go func() { code <- p.run(append([]string{"agent"}, args...)) }()
	r := &running{t: t, err: errs}
	r.stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() {
		if c := r.stop(); c != 0 {
			t.Errorf("agent: exit code %d\n%s", c, errs)
		}
		if t.Failed() {
			t.Logf("agent's log:\n%s", errs)
		}
	})
	select {
	case line := <-out.out:
		url, ok := strings.CutPrefix(line, "controller listening on ")
		require.True(t, ok, line)
		r.url = url
	case c := <-code:
		code <- c
		t.Fatalf("the agent ended: exit code %d\n%s", c, errs)
	case <-time.After(patience):
		t.Fatalf("the agent does not listen\n%s", errs)
	}
	return r
}

// dev runs an agent for the world, by itself.
func (w *world) dev(args ...string) *running {
	w.t.Helper()
	return startAgent(w.t, append([]string{"-dev", "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr()}, args...)...)
}

// do runs a verb against the agent.
func (r *running) do(args ...string) result {
	r.t.Helper()
	var out, errout bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: &out, stderr: &errout}
	code := p.run(append(args, "-address", r.url))
	return result{code, out.String(), errout.String()}
}

// ok is do for what must work.
func (r *running) ok(args ...string) string {
	r.t.Helper()
	got := r.do(args...)
	require.Equal(r.t, 0, got.code, "remuda %s\n%s%s", strings.Join(args, " "), got.out, got.errout)
	require.Empty(r.t, got.errout)
	return got.out
}

// json is ok with -json, read into v.
func (r *running) json(v any, args ...string) {
	r.t.Helper()
	out := r.ok(append(args, "-json")...)
	d := json.NewDecoder(strings.NewReader(out))
	require.NoError(r.t, d.Decode(v), out)
	require.ErrorIs(r.t, d.Decode(new(any)), io.EOF, "one JSON value: %s", out)
}

// eventually polls for what happens by itself.
func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, patience, 20*time.Millisecond, what)
}

// gateway has a gateway follow the agent, that never has anything in flight: what
// drains has drained at once.
func (r *running) gateway() {
	r.t.Helper()
	client, err := api.NewClient(api.Config{Addresses: []string{r.url}})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = api.Watch(ctx, api.QueryOptions{Wait: time.Second}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
			_, meta, err := client.GatewayState(ctx, q)
			if err == nil {
				_, err = client.GatewayReport(ctx, api.GatewayReport{Gateway: "test", Index: meta.Index})
			}
			return meta, err
		}, nil)
	})
	r.t.Cleanup(func() { cancel(); wg.Wait(); client.Close() })
}
