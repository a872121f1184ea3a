package nomad_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	deviceplugin "remuda/device-plugin"

	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/nomadtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds what must happen.
const soon = time.Minute

func config(s *nomadtest.Server) nomad.Config {
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.Timeout, cfg.Wait, cfg.Settle = s.URL, soon, 200*time.Millisecond, time.Millisecond
	return cfg
}

func newClient(t *testing.T) (*nomad.Client, *nomadtest.Server) {
	t.Helper()
	s := nomadtest.New(t)
	return clientOf(t, config(s)), s
}

// newFaultyClient is newClient for a Nomad that is about to fail in one of faultyAnswers: a
// client that gives up soon, where Nomad hangs.
func newFaultyClient(t *testing.T, what string, limit time.Duration) (*nomad.Client, *nomadtest.Server) {
	t.Helper()
	s := nomadtest.New(t)
	cfg := config(s)
	if what == "hang" {
		cfg.Timeout = limit
	}
	return clientOf(t, cfg), s
}

func clientOf(t *testing.T, cfg nomad.Config) *nomad.Client {
	t.Helper()
	c, err := nomad.New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// group is what the device plugin publishes for GPUs of one model and clique.
func group(model, clique string, gpus ...string) *api.NodeDeviceResource {
	g := &api.NodeDeviceResource{Vendor: deviceplugin.Vendor, Type: deviceplugin.Type, Name: deviceplugin.GroupName(model, clique), Attributes: map[string]*api.Attribute{
		deviceplugin.AttrModel:  {StringVal: new(model)},
		deviceplugin.AttrMemory: {IntVal: new(int64(81559)), Unit: "MiB"},
	}}
	if clique != "" {
		g.Attributes[deviceplugin.AttrClique] = &api.Attribute{StringVal: new(clique)}
	}
	for _, uuid := range gpus {
		for seat := range 2 {
			g.Instances = append(g.Instances, &api.NodeDevice{ID: deviceplugin.Seat{GPU: uuid, Index: seat}.String(), Healthy: true})
		}
	}
	return g
}

func node(id string, groups ...*api.NodeDeviceResource) *api.Node {
	return &api.Node{
		ID: id, Name: "name-" + id, Datacenter: "dc1", NodePool: "gpu", Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 8000}, Memory: api.NodeMemoryResources{MemoryMB: 1024}, Devices: groups},
	}
}

var name = replica.Name{Model: "meta-llama/Llama:8b", Variant: "h100", ID: "7f3a"}

// request is for a pair of engines on one GPU each.
func request() nomad.Request {
	return nomad.Request{
		Name: name, Failover: true,
		Variant:   state.Variant{Name: "h100", GPUModel: "H100", GPUs: 1, Memory: 20 << 30, HostMemory: 17 << 30, Slots: 8, Engine: "vllm", Hash: "abc"},
		Node:      state.Node{ID: "node-1", Datacenter: "dc7", Pool: "gpu"},
		Placement: state.Placement{Node: "node-1", Seats: []string{"GPU-1#0", "GPU-1#1"}, Memory: map[string]int64{"GPU-1": 20 << 30}, HostMemory: 17 << 30},
	}
}

func engine(name string, count uint64) *api.Task {
	return &api.Task{Name: name, Driver: "raw_exec", Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: "nvidia/gpu", Count: &count}}}}
}

// pair is a parsed job of a failover pair.
func pair() *api.Job {
	return &api.Job{
		ID: new("x"), Name: new("x"), Type: new("service"), Namespace: new("default"), Datacenters: []string{"*"}, NodePool: new("default"),
		TaskGroups: []*api.TaskGroup{{Name: new("replica"), Count: new(1), Tasks: []*api.Task{{Name: "lockd", Driver: "raw_exec"}, engine("primary", 1), engine("shadow", 1)}}},
	}
}

// rendered is the pair's job as it is registered.
func rendered(t *testing.T) *api.Job {
	t.Helper()
	job := pair()
	require.NoError(t, nomad.Pin(job, "default", request()))
	return job
}

// stop stops the replica's job.
func stop(ctx context.Context, c *nomad.Client, name replica.Name, index uint64, purge bool) error {
	_, err := c.Stop(ctx, name, index, purge)
	return err
}

// watched receives what a watch tells.
type watched[T any] struct {
	updates chan T
	lost    chan error
	ended   chan error
}

func newWatched[T any]() *watched[T] {
	return &watched[T]{updates: make(chan T, 100), lost: make(chan error, 100), ended: make(chan error, 1)}
}

func (w *watched[T]) update(v T)       { w.updates <- v }
func (w *watched[T]) lostIt(err error) { w.lost <- err }

func next[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(soon):
		t.Fatalf("no %s within %s", what, soon)
		panic("unreachable")
	}
}

// faultyAnswers are ways in which Nomad fails to answer.
var faultyAnswers = map[string]func(w http.ResponseWriter, r *http.Request) bool{
	"500": func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return true
	},
	"503": func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	},
	"wrong JSON": func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Nomad-Index", "12")
		fmt.Fprint(w, `{"a":`)
		return true
	},
	"other JSON": func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Nomad-Index", "12")
		fmt.Fprint(w, `"hello"`)
		return true
	},
	"hang": func(_ http.ResponseWriter, r *http.Request) bool {
		select { // the client's end is seen once its request was read
		case <-r.Context().Done():
		case <-time.After(5 * time.Second):
		}
		return true
	},
	"cut": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
}

func count(requests []string, prefix string) int {
	n := 0
	for _, r := range requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}
