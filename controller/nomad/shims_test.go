package nomad_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/state"
)

func TestShims(t *testing.T) {
	for name, tc := range map[string]struct {
		ports, named map[string]string
		want         []nomad.Shim
	}{
		"none":               {ports: map[string]string{"engine": "h:1"}},
		"no ports":           {},
		"single":             {ports: map[string]string{"engine": "h:1", "shim": "h:2"}, want: []nomad.Shim{{Role: "primary", Address: "h:2"}}},
		"pair":               {ports: map[string]string{"shadow_shim": "h:4", "primary_shim": "h:2", "primary": "h:1"}, want: []nomad.Shim{{Role: "primary", Address: "h:2"}, {Role: "shadow", Address: "h:4"}}},
		"named":              {ports: map[string]string{"shim": "h:2", "admin": "h:3"}, named: map[string]string{"primary": "admin"}, want: []nomad.Shim{{Role: "primary", Address: "h:3"}}},
		"named, and is gone": {ports: map[string]string{"shim": "h:2"}, named: map[string]string{"primary": "admin"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, nomad.Job{ShimPorts: tc.named}.Shims(nomad.Allocation{Ports: tc.ports}))
		})
	}
}

// What Pin writes is what Observe reads, and the ports come from the allocation.
func TestObserveShimsAndGPUs(t *testing.T) {
	c, s := newClient(t)
	job := pair()
	job.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "x"}, {Label: "shadow_shim"}}}}
	job.TaskGroups[0].Tasks[1].Meta = map[string]string{"remuda_shim": "x"}
	r := request()
	r.Variant.Reach, r.Variant.SleepMemory = 2, 7
	r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-2#0", "GPU-2#1"}
	r.Placement.SleepMemory = 7
	require.NoError(t, nomad.Pin(job, "default", r))
	_, err := c.Register(t.Context(), job, 0)
	require.NoError(t, err)
	s.SetAllocation(&api.AllocationListStub{ID: "a", JobID: *job.ID, NodeID: "node-1", AllocatedResources: &api.AllocatedResources{
		Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "x", HostIP: "10.0.0.1", Value: 21000, To: 80}, {Label: "bad", Value: 1}}},
		Tasks: map[string]*api.AllocatedTaskResources{"shadow": {Networks: []*api.NetworkResource{
			{IP: "fd00::1", DynamicPorts: []api.Port{{Label: "shadow_shim", Value: 21001}}, ReservedPorts: []api.Port{{Label: "x", Value: 9}}},
		}}},
	}})
	jobs, err := c.Observe(t.Context())
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	require.Empty(t, jobs[0].Problem)
	require.Equal(t, r.Placement, jobs[0].Placement)
	require.Equal(t, []nomad.Shim{{Role: "primary", Address: "10.0.0.1:21000"}, {Role: "shadow", Address: "[fd00::1]:21001"}}, jobs[0].Shims(jobs[0].Allocations[0]))

	s.EditJob(*job.ID, func(j *api.Job) { j.Meta["remuda_gpus"] = "GPU-9" })
	jobs, err = c.Observe(t.Context())
	require.NoError(t, err)
	require.Empty(t, jobs[0].Problem, "an edit that the controller takes back")
	require.Len(t, jobs[0].Placement.Memory, 2, "it may use all that it has seats on")
	edited := state.Replica{Name: jobs[0].Name, Version: 1, Placement: r.Placement, JobIndex: 1}
	require.NotEmpty(t, jobs[0].Drift(edited))
	s.EditJob(*job.ID, func(j *api.Job) { delete(j.Meta, "remuda_gpus"); delete(j.Meta, "remuda_sleep_memory") })
	jobs, err = c.Observe(t.Context())
	require.NoError(t, err)
	require.Empty(t, jobs[0].Problem, "as an earlier version has written it")
	require.Len(t, jobs[0].Placement.Memory, 2)
}

// A replica wakes on other GPUs of its reach than its job names: that is no drift, and its
// job is not written anew.
func TestGPUsChosenAnewAreNoDrift(t *testing.T) {
	seats := []string{"GPU-1#0", "GPU-2#0", "GPU-3#0"}
	j := nomad.Job{
		ID: name.String(), Name: name, Hash: "abc", Index: 7,
		Placement:   state.Placement{Node: "node-1", Seats: seats, Memory: map[string]int64{"GPU-1": 9}, SleepMemory: 1},
		Allocations: []nomad.Allocation{{ID: "a", Node: "node-1", Client: "running", Seats: map[string][]string{"primary": seats}}},
	}
	r := state.Replica{Name: name, Version: 1, JobIndex: 7, Placement: state.Placement{Node: "node-1", Seats: seats, Memory: map[string]int64{"GPU-3": 9}, SleepMemory: 1}}
	require.Empty(t, j.Drift(r))
	r.Placement.Seats = []string{"GPU-1#1", "GPU-2#0", "GPU-3#0"}
	require.Len(t, j.Drift(r), 2, "seats that are not its own are")
}

// An engine may be at any port of an allocation that runs on the replica's node, but at no shim's.
func TestEngineAddresses(t *testing.T) {
	run := func(ports map[string]string, edit ...func(*nomad.Allocation)) nomad.Allocation {
		a := nomad.Allocation{Node: "n", Client: "running", Ports: ports}
		for _, e := range edit {
			e(&a)
		}
		return a
	}
	as := func(client string) func(*nomad.Allocation) { return func(a *nomad.Allocation) { a.Client = client } }
	single := map[string]string{"engine": "h:1", "shim": "h:2"}
	for name, tc := range map[string]struct {
		allocations []nomad.Allocation
		want        []string
	}{
		"none":   {},
		"single": {[]nomad.Allocation{run(single)}, []string{"h:1"}},
		"pair": {[]nomad.Allocation{run(map[string]string{"shadow": "h:4", "shadow_shim": "h:3", "primary_shim": "h:2", "primary": "h:1"})},
			[]string{"h:1", "h:4"}},
		"other ports":               {[]nomad.Allocation{run(map[string]string{"http": "h:9", "admin": "h:8"})}, []string{"h:8", "h:9"}},
		"before its client runs it": {[]nomad.Allocation{run(single, as("pending"))}, []string{"h:1"}},
		"failed":                    {[]nomad.Allocation{run(single, as("failed"))}, nil},
		"complete":                  {[]nomad.Allocation{run(single, as("complete"))}, nil},
		"out of reach":              {[]nomad.Allocation{run(single, as("unknown"))}, []string{"h:1"}},
		"on another node":           {[]nomad.Allocation{run(single, func(a *nomad.Allocation) { a.Node = "other" })}, nil},
		"the one before drains": {[]nomad.Allocation{run(map[string]string{"engine": "h:7"}), run(single, func(a *nomad.Allocation) { a.Desired = "stop" })},
			[]string{"h:1", "h:7"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, nomad.Job{Allocations: tc.allocations}.EngineAddresses("n"))
		})
	}
}
