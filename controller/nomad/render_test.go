package nomad_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/replica"
)

func device(j *api.Job, task int) *api.RequestedDevice {
	return j.TaskGroups[0].Tasks[task].Resources.Devices[0]
}

func TestPin(t *testing.T) {
	job := pair()
	job.Constraints = []*api.Constraint{api.NewConstraint("${attr.kernel.name}", "=", "linux"), api.NewConstraint("${node.unique.id}", "=", "another")}
	job.Meta = map[string]string{"team": "a"}
	device(job, 1).Constraints = []*api.Constraint{
		api.NewConstraint("${device.ids}", "set_contains_any", "GPU-9#0"),
		api.NewConstraint("${device.attr.memory}", ">=", "40 GiB"),
	}
	device(job, 2).Name = "nvidia/gpu/H100"
	job.TaskGroups[0].Tasks[2].Env = map[string]string{"A": "b"}
	r := request()
	r.Placement.Seats = []string{"GPU-1#3", "GPU-1#1"} // any order, any numbers
	require.NoError(t, nomad.Pin(job, "ml", r))

	id := "meta-llama/Llama:8b:h100:7f3a"
	require.Equal(t, []string{id, id, "ml", "gpu"}, []string{*job.ID, *job.Name, *job.Namespace, *job.NodePool})
	require.Equal(t, []string{"dc7"}, job.Datacenters)
	require.Equal(t, []*api.Constraint{api.NewConstraint("${attr.kernel.name}", "=", "linux"), api.NewConstraint("${node.unique.id}", "=", "node-1")}, job.Constraints)
	require.Equal(t, map[string]string{
		"team": "a", "remuda_model": "meta-llama/Llama:8b", "remuda_variant": "h100", "remuda_replica": id, "remuda_hash": "abc", "remuda_node": "node-1",
		"remuda_seats": "GPU-1#3,GPU-1#1", "remuda_memory": "21474836480", "remuda_host_memory": "18253611008", "remuda_gpus": "GPU-1", "remuda_generation": "0",
	}, job.Meta)
	require.Equal(t, []*api.Constraint{
		api.NewConstraint("${device.attr.memory}", ">=", "40 GiB"),
		api.NewConstraint("${device.ids}", "set_contains_any", "GPU-1#1"),
	}, device(job, 1).Constraints)
	require.Equal(t, "nvidia/gpu", device(job, 2).Name)
	require.Equal(t, []*api.Constraint{api.NewConstraint("${device.ids}", "set_contains_any", "GPU-1#3")}, device(job, 2).Constraints)
	require.Equal(t, map[string]string{"A": "b", "REMUDA_MODEL": "meta-llama/Llama:8b", "REMUDA_VARIANT": "h100", "REMUDA_GROUP": id, "REMUDA_USE_GPUS": "GPU-1", "REMUDA_GENERATION": "0", "REMUDA_VERSION": "0", "REMUDA_CONTROLLER_KEY": "", "REMUDA_GATEWAY_KEY": ""}, job.TaskGroups[0].Tasks[2].Env)
	require.Nil(t, job.TaskGroups[0].Tasks[0].Env)
}

// TestPinStart: REMUDA_START=warm is set for a replica that loads to become WARM, and for no other one.
func TestPinStart(t *testing.T) {
	for load, want := range map[int64]string{0: "", 5: "warm"} {
		job, r := pair(), request()
		r.Placement.LoadMemory = load
		require.NoError(t, nomad.Pin(job, "default", r))
		require.Equal(t, want, job.Meta["remuda_start"])
		for _, task := range job.TaskGroups[0].Tasks[1:] {
			require.Equal(t, want, task.Env["REMUDA_START"])
		}
	}
}

func TestPinRoles(t *testing.T) {
	seat := func(j *api.Job, task int) string { return device(j, task).Constraints[0].RTarget }
	t.Run("by meta", func(t *testing.T) {
		job := pair()
		job.TaskGroups[0].Tasks[1].Name, job.TaskGroups[0].Tasks[1].Meta = "b", map[string]string{"remuda_role": "shadow"}
		job.TaskGroups[0].Tasks[2].Name, job.TaskGroups[0].Tasks[2].Meta = "a", map[string]string{"remuda_role": "primary"}
		require.NoError(t, nomad.Pin(job, "default", request()))
		require.Equal(t, []string{"GPU-1#1", "GPU-1#0"}, []string{seat(job, 1), seat(job, 2)})
	})
	t.Run("single of any name on four GPUs", func(t *testing.T) {
		job := pair()
		job.TaskGroups[0].Tasks = []*api.Task{engine("vllm", 4)}
		r := request()
		r.Failover, r.Variant.GPUs = false, 4
		r.Placement.Seats = []string{"GPU-1#0", "GPU-2#1", "GPU-3#0", "GPU-4#0"}
		r.Placement.Memory = map[string]int64{"GPU-1": 1, "GPU-2": 1, "GPU-3": 1, "GPU-4": 1}
		require.NoError(t, nomad.Pin(job, "default", r))
		require.Equal(t, "GPU-1#0,GPU-2#1,GPU-3#0,GPU-4#0", seat(job, 0))
	})
	t.Run("pair on two GPUs", func(t *testing.T) {
		job := pair()
		job.TaskGroups[0].Tasks = []*api.Task{engine("shadow", 2), engine("primary", 2)}
		r := request()
		r.Variant.GPUs = 2
		r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-2#1", "GPU-2#0"}
		r.Placement.Memory = map[string]int64{"GPU-1": 1, "GPU-2": 1}
		require.NoError(t, nomad.Pin(job, "default", r))
		require.Equal(t, []string{"GPU-1#1,GPU-2#1", "GPU-1#0,GPU-2#0"}, []string{seat(job, 0), seat(job, 1)})
	})
}

// badJobs are jobs that cannot be a replica, each for one reason.
var badJobs = []struct {
	name string
	edit func(j *api.Job, r *nomad.Request)
	want string
}{
	{"batch", func(j *api.Job, _ *nomad.Request) { j.Type = new("batch") }, `type is "batch": must be "service"`},
	{"system", func(j *api.Job, _ *nomad.Request) { j.Type = new("system") }, `type is "system": must be "service"`},
	{"sysbatch", func(j *api.Job, _ *nomad.Request) { j.Type = new("sysbatch") }, `type is "sysbatch"`},
	{"periodic", func(j *api.Job, _ *nomad.Request) { j.Periodic = &api.PeriodicConfig{} }, `periodic block`},
	{"parameterized", func(j *api.Job, _ *nomad.Request) { j.ParameterizedJob = &api.ParameterizedJobConfig{} }, `parameterized block`},
	{"multiregion", func(j *api.Job, _ *nomad.Request) {
		j.Multiregion = &api.Multiregion{Regions: []*api.MultiregionRegion{{Name: "a"}}}
	}, `multiregion block`},
	{"namespace", func(j *api.Job, _ *nomad.Request) { j.Namespace = new("other") }, `namespace is "other": must not be set`},
	{"no group", func(j *api.Job, r *nomad.Request) { j.TaskGroups = nil }, `0 groups: must be one, because a replica is one allocation`},
	{"second group", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups = append(j.TaskGroups, &api.TaskGroup{Name: new("b")})
	}, `2 groups: must be one, because a replica is one allocation`},
	{"count", func(j *api.Job, _ *nomad.Request) { j.TaskGroups[0].Count = new(2) }, `group "replica": count is 2: must be 1`},
	{"no allocation", func(j *api.Job, _ *nomad.Request) { j.TaskGroups[0].Count = new(0) }, `count is 0: must be 1`},
	{"scaling", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Scaling = &api.ScalingPolicy{Enabled: new(true)}
	}, `scaling block: not allowed`},
	{"canary", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Update = &api.UpdateStrategy{Canary: new(1)}
	}, `update has canary = 1: must be 0`},
	{"job's canary", func(j *api.Job, _ *nomad.Request) { j.Update = &api.UpdateStrategy{Canary: new(1)} }, `update has canary = 1: must be 0`},
	{"our meta", func(j *api.Job, _ *nomad.Request) { j.Meta = map[string]string{"remuda_replica": "x"} }, `meta remuda_replica: must not be set`},
	{"our meta in a task", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[0].Meta = map[string]string{"remuda_hash": "x"}
	}, `task "lockd": meta remuda_hash: must not be set`},
	{"no device", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[1].Resources, j.TaskGroups[0].Tasks[2].Resources = nil, nil
	}, `no task has a device "nvidia/gpu" block`},
	{"other device", func(j *api.Job, _ *nomad.Request) { device(j, 1).Name = "amd/gpu" }, `1 tasks have a device "nvidia/gpu" block`},
	{"two devices", func(j *api.Job, _ *nomad.Request) {
		res := j.TaskGroups[0].Tasks[1].Resources
		res.Devices = append(res.Devices, &api.RequestedDevice{Name: "gpu"})
	}, `task "primary": second device block for GPUs, "gpu"`},
	{"too few GPUs", func(j *api.Job, _ *nomad.Request) { device(j, 1).Count = new(uint64(0)) }, `device "nvidia/gpu": count is 0: must be 1`},
	{"too many GPUs", func(j *api.Job, _ *nomad.Request) { device(j, 2).Count = new(uint64(2)) }, `task "shadow": device "nvidia/gpu": count is 2: must be 1`},
	{"another model", func(j *api.Job, _ *nomad.Request) { device(j, 1).Name = "nvidia/gpu/A100" }, `model is "A100": must be "H100", as in the variant's gpu block, or "nvidia/gpu"`},
	{"no shadow", func(j *api.Job, _ *nomad.Request) { j.TaskGroups[0].Tasks = j.TaskGroups[0].Tasks[:2] }, `1 tasks have a device "nvidia/gpu" block`},
	{"three engines", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks = append(j.TaskGroups[0].Tasks, engine("third", 1))
	}, `3 tasks have a device`},
	{"roles unknown", func(j *api.Job, _ *nomad.Request) { j.TaskGroups[0].Tasks[1].Name = "a" }, `the tasks with a device "nvidia/gpu" block must be a primary and a shadow`},
	{"role wrong", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[1].Meta = map[string]string{"remuda_role": "boss"}
	}, `meta remuda_role is "boss": must be "primary" or "shadow"`},
	{"role twice", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[2].Meta = map[string]string{"remuda_role": "primary"}
	}, `task "shadow": duplicate primary: task "primary" is one already`},
	{"role without a device", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[0].Meta = map[string]string{"remuda_role": "primary"}
	}, `task "lockd": meta remuda_role is "primary", but the task has no device`},
	{"pair for a single", func(_ *api.Job, r *nomad.Request) { r.Failover, r.Placement.Seats = false, []string{"GPU-1#0"} }, `task "shadow" is a shadow`},
	{"two engines for a single", func(j *api.Job, r *nomad.Request) {
		j.TaskGroups[0].Tasks[2].Name = "b"
		r.Failover, r.Placement.Seats = false, []string{"GPU-1#0"}
	}, `2 tasks have a device "nvidia/gpu" block`},
	{"model's name", func(_ *api.Job, r *nomad.Request) { r.Name.Model = "a b" }, `model: name is "a b"`},
	{"variant's name", func(_ *api.Job, r *nomad.Request) { r.Name.Variant = "a:b" }, `variant: name is "a:b"`},
	{"replica's ID", func(_ *api.Job, r *nomad.Request) { r.Name.ID = "a/b" }, `replica: the ID is "a/b"`},
	{"no node", func(_ *api.Job, r *nomad.Request) { r.Placement.Node, r.Node.ID = "", "" }, `placement: node is ""`},
	{"another node", func(_ *api.Job, r *nomad.Request) { r.Placement.Node = "node-2" }, `node is "node-2": must be "node-1"`},
	{"no seat", func(_ *api.Job, r *nomad.Request) { r.Placement.Seats = nil }, `seats on 0 GPUs: must be 1`},
	{"one seat of a pair", func(_ *api.Job, r *nomad.Request) { r.Placement.Seats = []string{"GPU-1#0"} }, `1 seats on GPU GPU-1: must be 2`},
	{"one seat twice", func(_ *api.Job, r *nomad.Request) {
		r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-1#0"}
	}, `duplicate seat "GPU-1#0"`},
	{"bad seat", func(_ *api.Job, r *nomad.Request) {
		r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-1#01"}
	}, `seat "GPU-1#01": must be <GPU UUID>#<seat>`},
	{"memory nowhere", func(_ *api.Job, r *nomad.Request) { r.Placement.Memory = nil }, `memory on 0 GPUs with a seat: must be on 1, as in the variant`},
	{"memory without a seat", func(_ *api.Job, r *nomad.Request) { r.Placement.Memory = map[string]int64{"GPU-2": 1} }, `memory on 0 GPUs with a seat: must be on 1, as in the variant`},
	{"too few GPUs for its reach", func(j *api.Job, r *nomad.Request) {
		r.Variant.Reach = 3
		r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-2#0", "GPU-2#1", "GPU-3#0", "GPU-3#1"}
		device(j, 1).Count = new(uint64(2))
	}, `task "primary": device "nvidia/gpu": count is 2: must be 3, the reach`},
	{"shim's port unknown", func(j *api.Job, _ *nomad.Request) {
		j.TaskGroups[0].Tasks[1].Meta = map[string]string{"remuda_shim": "admin"}
	}, `task "primary": meta remuda_shim is "admin": must be the label of one of the job's ports`},
	{"two GPUs", func(_ *api.Job, r *nomad.Request) {
		r.Placement.Seats = []string{"GPU-1#0", "GPU-1#1", "GPU-2#0", "GPU-2#1"}
	}, `seats on 2 GPUs: must be 1`},
}

func TestPinRefuses(t *testing.T) {
	for _, tc := range badJobs {
		t.Run(tc.name, func(t *testing.T) {
			job, r := pair(), request()
			tc.edit(job, &r)
			err := nomad.Pin(job, "default", r)
			require.ErrorIs(t, err, nomad.ErrRefused)
			require.ErrorContains(t, err, tc.want)
			var faults nomad.JobFaults
			require.ErrorAs(t, err, &faults)
			if tc.name != "no group" {
				require.Len(t, faults, 1, "one mistake is one fault: %v", err)
			}
			require.Empty(t, job.Constraints, "a job with faults is left as it was")
		})
	}
	t.Run("all at once", func(t *testing.T) {
		job, r := pair(), request()
		job.Type, job.Periodic, job.Namespace = new("batch"), &api.PeriodicConfig{}, new("other")
		job.TaskGroups[0].Count = new(3)
		device(job, 1).Count, device(job, 2).Name = new(uint64(4)), "nvidia/gpu/A100"
		r.Name.ID, r.Placement.Node = "", "x"
		var faults nomad.JobFaults
		require.ErrorAs(t, nomad.Pin(job, "default", r), &faults)
		require.Len(t, faults, 8)
	})
}

func TestRender(t *testing.T) {
	c, s := newClient(t)
	r := request()
	r.Variant.Job = `
variable "slots" {
  type    = number
  default = 1
}
variable "args" { default = [] }
variable "hosts" { type = list(string) }
variable "remuda_replica" { default = "" }
variable "remuda_gpus" { default = 1 }
variable "remuda_reach" { default = 1 }
job "x" {}
`
	r.Variant.Vars = map[string]string{"slots": "4", "args": `["a", "b"]`, "hosts": `["h"]`}
	var sent api.JobsParseRequest
	s.OnParse(func(in api.JobsParseRequest) (*api.Job, error) {
		sent = in
		return pair(), nil
	})
	job, err := c.Render(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, r.Name.String(), *job.ID)
	require.True(t, sent.Canonicalize)
	require.Equal(t, r.Variant.Job, sent.JobHCL)
	require.Equal(t, "slots = \"4\"\nargs = [\"a\", \"b\"]\nhosts = [\"h\"]\nremuda_replica = \"meta-llama/Llama:8b:h100:7f3a\"\nremuda_gpus = \"1\"\nremuda_reach = \"1\"\n", sent.Variables)
	again, err := c.Render(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, job, again, "rendering is deterministic")

	s.OnParse(func(api.JobsParseRequest) (*api.Job, error) { return nil, errors.New("input.hcl:3,1-4: bad") })
	_, err = c.Render(t.Context(), r)
	require.ErrorIs(t, err, nomad.ErrRefused)
	require.ErrorContains(t, err, "input.hcl:3,1-4: bad")
	s.OnParse(func(api.JobsParseRequest) (*api.Job, error) { return &api.Job{Type: new("batch")}, nil })
	_, err = c.Render(t.Context(), r)
	require.ErrorIs(t, err, nomad.ErrRefused)
	r.Variant.Job = "job {"
	_, err = c.Render(t.Context(), r)
	require.ErrorIs(t, err, nomad.ErrRefused)
}

func TestCheck(t *testing.T) {
	c, s := newClient(t)
	s.OnParse(func(api.JobsParseRequest) (*api.Job, error) { return pair(), nil })
	v := request().Variant
	v.Job = "job \"x\" {}\n"
	_, err := c.Check(t.Context(), state.Model{Name: "m", Failover: true}, v)
	require.NoError(t, err)
	_, err = c.Check(t.Context(), state.Model{Name: "m"}, v)
	require.ErrorIs(t, err, nomad.ErrRefused)
	s.Refuse("task b: missing driver", "task a: missing driver")
	_, err = c.Check(t.Context(), state.Model{Name: "m", Failover: true}, v)
	require.ErrorIs(t, err, nomad.ErrRefused)
	require.True(t, strings.HasSuffix(err.Error(), "task a: missing driver\ntask b: missing driver"), "%v", err)
}

func TestJobIDFitsNomad(t *testing.T) {
	id := nomad.JobID(replica.Name{Model: "meta-llama/Llama-3:8b", Variant: "h100", ID: "0c1d6f9e-0000-4000-8000-000000000000"})
	require.NotContains(t, id, " ")
	require.NotContains(t, id, "\x00")
}

// A variant with a reach has a seat on more GPUs than it uses.
func TestPinReach(t *testing.T) {
	job := pair()
	job.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}, {Label: "b"}}}}
	job.TaskGroups[0].Tasks = []*api.Task{engine("primary", 2), engine("shadow", 4)}
	job.TaskGroups[0].Tasks[0].Meta = map[string]string{"remuda_shim": "b"}
	r := request()
	r.Variant.GPUs, r.Variant.Reach = 2, 4
	r.Placement.Seats = nil
	for _, gpu := range []string{"GPU-4", "GPU-2", "GPU-1", "GPU-3"} {
		r.Placement.Seats = append(r.Placement.Seats, gpu+"#0", gpu+"#1")
	}
	r.Placement.Memory, r.Placement.SleepMemory = map[string]int64{"GPU-1": 9, "GPU-2": 9}, 5
	require.NoError(t, nomad.Pin(job, "default", r))
	for task := range 2 {
		require.Equal(t, uint64(4), *device(job, task).Count, "the file may say either")
		require.Equal(t, "GPU-2,GPU-1", job.TaskGroups[0].Tasks[task].Env["REMUDA_USE_GPUS"])
	}
	require.Equal(t, []string{"GPU-2,GPU-1", "5", "primary=b"}, []string{job.Meta["remuda_gpus"], job.Meta["remuda_sleep_memory"], job.Meta["remuda_shims"]})
}

// Nomad leaves what failed to the controller, whatever the job file says: in another
// allocation an engine that was parked would take its GPU again.
func TestPinKeepsNomadFromRescheduling(t *testing.T) {
	job := pair()
	job.Reschedule = &api.ReschedulePolicy{Unlimited: new(true)}
	job.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(3), Unlimited: new(true)}
	r := request()
	r.Generation, r.ControllerKey, r.GatewayKey = 7, "key", "gateways"
	require.NoError(t, nomad.Pin(job, "default", r))
	require.Equal(t, "7", job.Meta["remuda_generation"])
	for _, task := range job.TaskGroups[0].Tasks[1:] { // the first is no engine's
		require.Equal(t, "7", task.Env["REMUDA_GENERATION"])
		require.Equal(t, "key", task.Env["REMUDA_CONTROLLER_KEY"])
		require.Equal(t, "gateways", task.Env["REMUDA_GATEWAY_KEY"])
	}
	job.Canonicalize()
	d := job.TaskGroups[0].Disconnect
	require.NotNil(t, d, "without it Nomad replaces what runs on a node that it misses for a moment")
	require.False(t, *d.Replace)
	require.Equal(t, api.ReconcileOptionKeepOriginal, *d.Reconcile)
	p := job.TaskGroups[0].ReschedulePolicy
	require.Zero(t, *p.Attempts)
	require.False(t, *p.Unlimited)
}
