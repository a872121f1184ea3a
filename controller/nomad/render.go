package nomad

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"remuda/controller/modelfile"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// Keys of a replica's job's meta. A task sees them as NOMAD_META_remuda_replica and
// so on, and Observe knows the replicas' jobs by them.
const (
	MetaModel      = "remuda_model"       // the model's name
	MetaVariant    = "remuda_variant"     // the variant's name
	MetaReplica    = "remuda_replica"     // the whole name, which is the failover group's
	MetaHash       = "remuda_hash"        // the hash of the variant's definition
	MetaNode       = "remuda_node"        // the node's ID
	MetaSeats      = "remuda_seats"       // the device IDs, by commas
	MetaMemory     = "remuda_memory"      // bytes of each GPU
	MetaHostMemory = "remuda_host_memory" // bytes of the node's memory while it is WARM
	// MetaGPUs has the UUIDs of the GPUs that it uses first, by commas: those of its seats,
	// or of a variant with a reach some of them. It may wake on others.
	MetaGPUs = "remuda_gpus"
	// MetaGeneration is Request.Generation.
	MetaGeneration = "remuda_generation"
	// MetaSleepMemory are bytes of each GPU while it is WARM; left out where it is 0.
	MetaSleepMemory = "remuda_sleep_memory"
	// MetaStart is StartWarm if the engines of a new allocation load and then sleep until they are woken;
	// left out otherwise.
	MetaStart = "remuda_start"
	// MetaShims has the labels of the shims' ports as role=label, by commas, where tasks
	// have a MetaShim.
	MetaShims = "remuda_shims"
	// MetaNodeJob marks the job that runs lockd and the GPU memory service on every node. Where
	// there is one, replicas are placed only on nodes where all of its tasks run.
	MetaNodeJob = "remuda_node_job"
	// MetaShim is a task's: the label of its shim's port, where that is not the usual one.
	// Job files set it.
	MetaShim = "remuda_shim"
	// MetaRole is a task's: the engine's role where the task's name is not it. Job
	// files set it.
	MetaRole = "remuda_role"
)

// Environment of the engines' tasks.
const (
	EnvModel   = "REMUDA_MODEL"   // the model's name
	EnvVariant = "REMUDA_VARIANT" // the variant's name
	EnvGroup   = "REMUDA_GROUP"   // the failover group, which is the replica's name
	EnvVersion = "REMUDA_VERSION" // the version of the model that the replica runs
	// EnvGeneration is the generation of the engines' fencing tokens: see replica.Token.
	EnvGeneration = "REMUDA_GENERATION"
	// EnvControllerKey is Request.ControllerKey: see replica.Secret.
	EnvControllerKey = "REMUDA_CONTROLLER_KEY"
	// EnvGatewayKey is Request.GatewayKey: see replica.EngineKey.
	EnvGatewayKey = "REMUDA_GATEWAY_KEY"
	// EnvStart has MetaStart.
	EnvStart = "REMUDA_START"
	// EnvUseGPUs has the UUIDs of the GPUs that the engine uses first, by commas, of those
	// on which it has seats.
	EnvUseGPUs = "REMUDA_USE_GPUS"
)

// StartWarm is the value of MetaStart.
const StartWarm = "warm"

// disconnected is how long Nomad waits for a node that it cannot reach before it gives
// the allocations there up. The controller's node grace is far shorter.
const disconnected = 6 * time.Hour

// Nomad's names in constraints.
const (
	nodeID    = "${node.unique.id}"
	deviceIDs = "${device.ids}"
)

// JobID is the ID of a replica's job: its name. Nomad refuses spaces and NUL in IDs
// and nothing else (Job.Validate in nomad/structs), and names have neither.
func JobID(name replica.Name) string { return name.String() }

// Request says which replica's job is wanted.
type Request struct {
	Name     replica.Name
	Variant  state.Variant
	Version  int // of the model
	Failover bool
	// Node and Placement are where it runs. Placement.Node is Node's ID.
	Node      state.Node
	Placement state.Placement
	// Generation is the first part of the fencing tokens of the engines. It is larger than
	// that of the job that this one replaces. So this one always differs, and Nomad makes a new
	// allocation for it: without rescheduling Nomad makes none for an unchanged job whose
	// allocation failed.
	Generation uint64
	// ControllerKey is the public key, in base64, by which the shims know the controller. Empty:
	// they obey the clients of their own machine.
	ControllerKey string
	// GatewayKey is the gateways' public key, in base64, with which the shims make their engines' API
	// keys. Empty: they make none.
	GatewayKey string
}

// JobFaults are all reasons for which a job file cannot run as a replica. It wraps
// ErrRefused.
type JobFaults []string

// Error has one line for each fault.
func (f JobFaults) Error() string { return strings.Join(f, "\n") }

// Unwrap makes errors.Is find ErrRefused.
func (f JobFaults) Unwrap() error { return ErrRefused }

// Render makes the replica's job: Nomad parses the variant's job file with its
// variables, and Pin pins it.
func (c *Client) Render(ctx context.Context, r Request) (*api.Job, error) {
	vars, err := variables(r)
	if err != nil {
		return nil, fmt.Errorf("render job %s: %w", JobID(r.Name), err)
	}
	var job api.Job
	// The api package's ParseHCL takes no context.
	err = c.call(ctx, "parse the job file of "+r.Name.String(), func(ctx context.Context) error {
		in := api.JobsParseRequest{JobHCL: r.Variant.Job, Variables: vars, Canonicalize: true}
		_, err := c.api.Raw().Write("/v1/jobs/parse?namespace="+url.QueryEscape(c.namespace), in, &job, c.write(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := Pin(&job, c.namespace, r); err != nil {
		return nil, fmt.Errorf("render job %s: %w", JobID(r.Name), err)
	}
	return &job, nil
}

// Check renders a variant's job as it would be on some node and has Nomad validate
// it, for `remuda model apply`. It returns Nomad's warnings.
func (c *Client) Check(ctx context.Context, m state.Model, v state.Variant) (warnings string, err error) {
	r := Request{
		Name:    replica.Name{Model: m.Name, Variant: v.Name, ID: "00000000-0000-0000-0000-000000000000"},
		Variant: v, Failover: m.Failover,
		Node:      state.Node{ID: "00000000-0000-0000-0000-000000000000", Datacenter: "dc1", Pool: api.NodePoolDefault},
		Placement: state.Placement{Node: "00000000-0000-0000-0000-000000000000", Memory: map[string]int64{}, HostMemory: v.HostMemory},
	}
	for i := range reach(v) {
		uuid := fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
		if i < v.GPUs {
			r.Placement.Memory[uuid] = v.Memory
		}
		for seat := range seatsPerGPU(m.Failover) {
			r.Placement.Seats = append(r.Placement.Seats, fmt.Sprintf("%s#%d", uuid, seat))
		}
	}
	job, err := c.Render(ctx, r)
	if err != nil {
		return "", err
	}
	return c.Validate(ctx, job)
}

// variables is the content of a variables file: the variant's values and the
// reserved variables that the job file declares.
func variables(r Request) (string, error) {
	declared, diags := modelfile.JobVariables(r.Name.Variant, r.Variant.Job)
	if diags.HasErrors() {
		return "", JobFaults{diags.Error()}
	}
	values := maps.Clone(r.Variant.Vars)
	if values == nil {
		values = map[string]string{}
	}
	for name, value := range map[string]string{
		modelfile.VarModel:   r.Name.Model,
		modelfile.VarVariant: r.Name.Variant,
		modelfile.VarReplica: r.Name.String(),
		modelfile.VarGPUs:    strconv.Itoa(r.Variant.GPUs),
		modelfile.VarReach:   strconv.Itoa(reach(r.Variant)),
		modelfile.VarSlots:   strconv.Itoa(r.Variant.Slots),
	} {
		values[name] = value
	}
	var b strings.Builder
	for _, d := range declared {
		value, given := values[d.Name]
		switch {
		case !given:
		case d.Composite:
			fmt.Fprintf(&b, "%s = %s\n", d.Name, value)
		default: // Nomad makes a number of it where the variable is one
			fmt.Fprintf(&b, "%s = %s\n", d.Name, modelfile.Quote(value))
		}
	}
	return b.String(), nil
}

// reach is on how many GPUs each engine of a variant has a seat.
func reach(v state.Variant) int { return max(v.Reach, v.GPUs) }

func seatsPerGPU(failover bool) int {
	if failover {
		return 2
	}
	return 1
}

// Pin turns a parsed job into the replica's: its ID, its node, its seats, its meta
// and its environment. Pins that the job file had are replaced. The error is
// JobFaults, with every fault; the job is then good for nothing.
func Pin(job *api.Job, namespace string, r Request) error {
	p := &pinner{job: job, r: r}
	p.checkJob(namespace)
	p.checkNames()
	seats := p.seats()
	engines := p.engines()
	shims, use := p.shims(engines), strings.Join(p.used(), ",")
	if len(p.faults) > 0 {
		return p.faults
	}
	id := JobID(r.Name)
	job.ID, job.Name, job.Namespace = &id, &id, &namespace
	job.Datacenters = []string{r.Node.Datacenter}
	job.NodePool = new(cmp.Or(r.Node.Pool, api.NodePoolDefault))
	job.Constraints = slices.DeleteFunc(job.Constraints, func(c *api.Constraint) bool { return c.LTarget == nodeID || c.RTarget == nodeID })
	job.Constraints = append(job.Constraints, api.NewConstraint(nodeID, "=", r.Placement.Node))
	if job.Meta == nil {
		job.Meta = map[string]string{}
	}
	maps.Copy(job.Meta, map[string]string{
		MetaModel: r.Name.Model, MetaVariant: r.Name.Variant, MetaReplica: r.Name.String(), MetaHash: r.Variant.Hash,
		MetaNode: r.Placement.Node, MetaSeats: strings.Join(r.Placement.Seats, ","),
		MetaMemory: strconv.FormatInt(r.Variant.Memory, 10), MetaHostMemory: strconv.FormatInt(r.Variant.HostMemory, 10),
	})
	job.Meta[MetaGPUs] = use
	if r.Placement.SleepMemory > 0 {
		job.Meta[MetaSleepMemory] = strconv.FormatInt(r.Placement.SleepMemory, 10)
	}
	if r.Placement.LoadMemory > 0 {
		job.Meta[MetaStart] = StartWarm
	}
	if shims != "" {
		job.Meta[MetaShims] = shims
	}
	p.keepInPlace()
	for role, e := range engines {
		// By vendor and type alone: the group's name has the clique in it, and the
		// seats say all.
		e.device.Name = deviceVendor + "/" + deviceType
		e.device.Count = new(uint64(reach(r.Variant)))
		e.device.Constraints = slices.DeleteFunc(e.device.Constraints, func(c *api.Constraint) bool { return c.LTarget == deviceIDs || c.RTarget == deviceIDs })
		e.device.Constraints = append(e.device.Constraints, api.NewConstraint(deviceIDs, "set_contains_any", strings.Join(seats[role], ",")))
		if e.task.Env == nil {
			e.task.Env = map[string]string{}
		}
		maps.Copy(e.task.Env, map[string]string{
			EnvModel: r.Name.Model, EnvVariant: r.Name.Variant, EnvGroup: r.Name.String(), EnvUseGPUs: use, EnvVersion: strconv.Itoa(r.Version), EnvGeneration: "",
			EnvControllerKey: r.ControllerKey, EnvGatewayKey: r.GatewayKey,
		})
		if delete(e.task.Env, EnvStart); r.Placement.LoadMemory > 0 {
			e.task.Env[EnvStart] = StartWarm
		}
	}
	setGeneration(job, strconv.FormatUint(r.Generation, 10))
	return nil
}

// setGeneration writes the generation into the job and its engines' tasks.
func setGeneration(job *api.Job, generation string) {
	job.Meta[MetaGeneration] = generation
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if _, engine := t.Env[EnvGeneration]; engine {
				t.Env[EnvGeneration] = generation
			}
		}
	}
}

// keepInPlace has Nomad leave an allocation that failed as it is. In a new one there is
// no mark of a parked engine, and none of the GPUs to which one was moved: it would take
// memory that the ledger says is free. The controller itself tries again what failed.
func (p *pinner) keepInPlace() {
	p.job.Reschedule = nil
	for _, g := range p.job.TaskGroups {
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false), Interval: new(time.Duration(0))}
		// Nor one for an allocation on a node that it cannot reach for a while: that one runs
		// on, or the controller writes its replica off. A job file may say something else.
		if g.Disconnect == nil {
			g.Disconnect = &api.DisconnectStrategy{LostAfter: new(disconnected), Replace: new(false), Reconcile: new(api.ReconcileOptionKeepOriginal)}
		}
	}
}

// pinner gathers the faults of one job.
type pinner struct {
	job    *api.Job
	r      Request
	faults JobFaults
}

func (p *pinner) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

// checkJob refuses what cannot be one replica, on one node, for as long as the
// controller wants it.
func (p *pinner) checkJob(namespace string) {
	j := p.job
	if t := text(j.Type, api.JobTypeService); t != api.JobTypeService {
		p.fault("type is %q: must be \"service\": a replica runs until the controller stops it, on the node that the controller chose", t)
	}
	if j.IsPeriodic() {
		p.fault("periodic block: not allowed in a replica's job")
	}
	if j.ParameterizedJob != nil {
		p.fault("parameterized block: not allowed in a replica's job")
	}
	if j.IsMultiregion() {
		p.fault("multiregion block: not allowed in a replica's job")
	}
	if ns := text(j.Namespace, api.DefaultNamespace); ns != api.DefaultNamespace && ns != namespace {
		p.fault("namespace is %q: must not be set: the job runs in the controller's namespace, %q", ns, namespace)
	}
	for _, k := range slices.Sorted(maps.Keys(j.Meta)) {
		if strings.HasPrefix(k, "remuda_") {
			p.fault("meta %s: must not be set: the controller sets it", k)
		}
	}
	p.checkUpdate("", j.Update)
	if len(j.TaskGroups) != 1 {
		p.fault("%d groups: must be one, because a replica is one allocation", len(j.TaskGroups))
	}
	for _, g := range j.TaskGroups {
		in := fmt.Sprintf("group %q: ", text(g.Name, ""))
		if g.Count != nil && *g.Count != 1 {
			p.fault("%scount is %d: must be 1: the controller registers a job for each replica", in, *g.Count)
		}
		if g.Scaling != nil && (g.Scaling.Enabled == nil || *g.Scaling.Enabled) {
			p.fault("%sscaling block: not allowed: \"remuda scale\" and the autoscaler scale models", in)
		}
		p.checkUpdate(in, g.Update)
		for _, t := range g.Tasks {
			for _, k := range slices.Sorted(maps.Keys(t.Meta)) {
				if strings.HasPrefix(k, "remuda_") && k != MetaRole && k != MetaShim {
					p.fault("%stask %q: meta %s: must not be set: the controller sets it", in, t.Name, k)
				}
			}
		}
	}
}

func (p *pinner) checkUpdate(in string, u *api.UpdateStrategy) {
	if u != nil && u.Canary != nil && *u.Canary > 0 {
		p.fault("%supdate has canary = %d: must be 0: a canary would need the seats that the replica holds; the controller rolls models with canaries", in, *u.Canary)
	}
}

func (p *pinner) checkNames() {
	if err := replica.CheckModel(p.r.Name.Model); err != nil {
		p.fault("model: name %v", err)
	}
	if err := replica.CheckVariant(p.r.Name.Variant); err != nil {
		p.fault("variant: name %v", err)
	}
	if err := replica.CheckVariant(p.r.Name.ID); err != nil {
		p.fault("replica: the ID %v", err)
	}
	if p.r.Placement.Node == "" || p.r.Placement.Node != p.r.Node.ID {
		p.fault("placement: node is %q: must be %q", p.r.Placement.Node, p.r.Node.ID)
	}
}

// seats splits the placement's seats by role: the primary gets the first of each
// GPU, the shadow the second.
func (p *pinner) seats() map[string][]string {
	byGPU := map[string][]string{}
	var order []string
	for _, id := range p.r.Placement.Seats {
		uuid, _, ok := splitSeat(id)
		switch {
		case !ok || strings.Contains(id, ","):
			p.fault("placement: seat %q: must be <GPU UUID>#<seat>", id)
			continue
		case slices.Contains(byGPU[uuid], id):
			p.fault("placement: duplicate seat %q", id)
			continue
		}
		if byGPU[uuid] == nil {
			order = append(order, uuid)
		}
		byGPU[uuid] = append(byGPU[uuid], id)
	}
	if n := reach(p.r.Variant); len(order) != n {
		p.fault("placement: seats on %d GPUs: must be %d, as in the variant", len(order), n)
	}
	want := seatsPerGPU(p.r.Failover)
	out := map[string][]string{}
	for _, uuid := range order {
		ids := byGPU[uuid]
		if len(ids) != want {
			p.fault("placement: %d seats on GPU %s: must be %d", len(ids), uuid, want)
			continue
		}
		// By number, so that the roles do not depend on the order of the list.
		slices.SortFunc(ids, func(a, b string) int {
			_, x, _ := splitSeat(a)
			_, y, _ := splitSeat(b)
			return cmp.Compare(x, y)
		})
		for i, role := range []string{replica.RolePrimary, replica.RoleShadow}[:want] {
			out[role] = append(out[role], ids[i])
		}
	}
	return out
}

// engineTask is a task that asks for our devices.
type engineTask struct {
	task   *api.Task
	device *api.RequestedDevice
}

// engines finds the task of each role.
func (p *pinner) engines() map[string]engineTask {
	out := map[string]engineTask{}
	found := 0
	for _, g := range p.job.TaskGroups {
		for _, t := range g.Tasks {
			in := fmt.Sprintf("group %q: task %q: ", text(g.Name, ""), t.Name)
			device, n := p.device(in, t)
			if n == 0 {
				if t.Meta[MetaRole] != "" {
					p.fault("%smeta %s is %q, but the task has no device \"nvidia/gpu\" block", in, MetaRole, t.Meta[MetaRole])
				}
				continue
			}
			found++
			role, ok := p.role(in, t)
			if !ok {
				continue
			}
			if other, taken := out[role]; taken {
				p.fault("%sduplicate %s: task %q is one already", in, role, other.task.Name)
				continue
			}
			out[role] = engineTask{t, device}
		}
	}
	// A single engine may have any name.
	if !p.r.Failover && found == 1 && len(out) == 0 && len(p.faults) == 0 {
		for _, g := range p.job.TaskGroups {
			for _, t := range g.Tasks {
				if device, n := p.device("", t); n == 1 {
					out[replica.RolePrimary] = engineTask{t, device}
				}
			}
		}
	}
	_, primary := out[replica.RolePrimary]
	shadow, hasShadow := out[replica.RoleShadow]
	switch {
	case found == 0:
		p.fault("no task has a device \"nvidia/gpu\" block: each engine's task needs one")
	case p.r.Failover && found != 2:
		p.fault("%d tasks have a device \"nvidia/gpu\" block: must be two, the primary and the shadow, because the model has failover = true", found)
	case !p.r.Failover && hasShadow:
		p.fault("task %q is a shadow: not allowed, because the model has failover = false", shadow.task.Name)
	case !p.r.Failover && found != 1:
		p.fault("%d tasks have a device \"nvidia/gpu\" block: must be one, because the model has failover = false", found)
	case p.r.Failover && len(p.faults) == 0 && (!primary || !hasShadow):
		p.fault("the tasks with a device \"nvidia/gpu\" block must be a primary and a shadow: name them so, or set meta %s in each", MetaRole)
	}
	return out
}

// role reads a task's role from its meta, or without that from its name. A task of
// another name has none, which is a fault only in a pair.
func (p *pinner) role(in string, t *api.Task) (string, bool) {
	if role, set := t.Meta[MetaRole]; set {
		if role == replica.RolePrimary || role == replica.RoleShadow {
			return role, true
		}
		p.fault("%smeta %s is %q: must be \"primary\" or \"shadow\"", in, MetaRole, role)
		return "", false
	}
	if t.Name == replica.RolePrimary || t.Name == replica.RoleShadow {
		return t.Name, true
	}
	return "", false
}

// device finds the task's block for our GPUs and how many it has.
func (p *pinner) device(in string, t *api.Task) (*api.RequestedDevice, int) {
	if t.Resources == nil {
		return nil, 0
	}
	var found *api.RequestedDevice
	n := 0
	for _, d := range t.Resources.Devices {
		if d == nil {
			continue
		}
		model, ours := ourDevice(d.Name)
		if !ours {
			continue
		}
		if n++; n > 1 {
			if in != "" {
				p.fault("%ssecond device block for GPUs, %q: must be one block, with the count of all", in, d.Name)
			}
			continue
		}
		found = d
		if in == "" {
			continue
		}
		count := uint64(1)
		if d.Count != nil {
			count = *d.Count
		}
		switch gpus, all := p.r.Variant.GPUs, reach(p.r.Variant); {
		case count == uint64(gpus) || count == uint64(all):
		case gpus == all:
			p.fault("%sdevice %q: count is %d: must be %d, as in the variant's gpu block (use variable %q in the job file)", in, d.Name, count, gpus, modelfile.VarGPUs)
		default:
			p.fault("%sdevice %q: count is %d: must be %d, the reach in the variant's gpu block (use variable %q in the job file)", in, d.Name, count, all, modelfile.VarReach)
		}
		if model != "" && p.r.Variant.GPUModel != "" && model != p.r.Variant.GPUModel {
			p.fault("%sdevice %q: model is %q: must be %q, as in the variant's gpu block, or \"nvidia/gpu\"", in, d.Name, model, p.r.Variant.GPUModel)
		}
	}
	return found, n
}

// ourDevice reads a device's name, "<type>", "<vendor>/<type>" or
// "<vendor>/<type>/<model>", and tells whether our GPUs can be meant.
func ourDevice(name string) (model string, ours bool) {
	parts := strings.SplitN(name, "/", 3)
	switch len(parts) {
	case 1:
		return "", parts[0] == deviceType
	case 2:
		return "", parts[0] == deviceVendor && parts[1] == deviceType
	}
	return parts[2], parts[0] == deviceVendor && parts[1] == deviceType
}

func text(s *string, otherwise string) string {
	if s == nil || *s == "" {
		return otherwise
	}
	return *s
}
