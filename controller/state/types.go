package state

import (
	"time"

	"remuda/internal/replica"
)

// The names of the fields below are those of the Raft log and of snapshots: one that
// is renamed is lost to the servers of another version. New fields are read as zero
// from older logs, and are left out by older servers.

// Model is what a client names in its request, and how it should run. It comes from
// a model file. Bytes, counts and times are as the file says; defaults are filled in.
type Model struct {
	Name string
	// Variants in the order of the file, the first is preferred where all else is
	// equal.
	Variants []Variant
	// Min and Max bound the replicas of all variants together.
	Min, Max int
	// Priority: a higher one may evict a lower one. 0 to 100, 50 by default.
	Priority int
	// Dedicated replicas are never evicted under pressure. A model can also be dedicated
	// for a time, by the dedicated set; see View.Dedicated.
	Dedicated bool
	// Failover: each replica is a primary with its shadow, on two seats.
	Failover bool
	// Management sets who may change its scale.
	Management Management
	// IdleWarm and IdleCold are how long a replica may be without a request before
	// it goes WARM, and then COLD; 0 is never.
	IdleWarm, IdleCold time.Duration
	// KeepWarm is how many WARM replicas the model has beside those that serve, if there is room:
	// a scale-down leaves so many behind, and missing ones are started. One of them is woken
	// where a replica stops to serve.
	KeepWarm int `json:",omitempty"`
	// Continuation: where an engine breaks a stream off, a gateway may let another one go on
	// from the text that the client has.
	Continuation bool `json:",omitempty"`
	// PassAuthorization: gateways pass the credentials of clients on to the engines.
	PassAuthorization bool `json:",omitempty"`
	// Queue is how requests wait for the model at a gateway.
	Queue Queue `json:",omitzero"`
	// Update is how a rollout replaces the model's replicas, nil if the file sets nothing: a
	// replica goes when its successor serves.
	Update *Update `json:",omitempty"`
	// SLO is how fast answers should be.
	SLO SLO `json:",omitzero"`
	// Scaling is the model's policy for nomad-autoscaler, nil if the file has none.
	Scaling *Scaling `json:",omitempty"`
	// FileReplicas is the number of replicas that the file sets, nil where it sets none.
	FileReplicas *int `json:",omitempty"`
	// Source is the model's part of the file as a person wrote it. It is in versions and in
	// UpsertModel only, and not a part of Hash.
	Source string `json:",omitempty"`
	// Hash is of all that the file says, and what `remuda model apply` compares.
	Hash string
	// Version is the number of the definition above in the table of versions. StableVersion
	// is the one that a rollout falls back on: the last one whose rollout has finished, or
	// that needed none.
	Version, StableVersion int
	// Desired is how many replicas should run, and where, as people or autoscalers asked for
	// last. In a model file it is what a new model begins with. Displaced is the part of it
	// that is not to run for now, and Target bounds the rest.
	Desired   Shares    `json:",omitempty"`
	Displaced Displaced `json:",omitzero"`
	// Unplaceable is why the planner finds no place for a replica that is missing; nil where
	// none is missing, or one is on its way. It does not count as a change of the row.
	Unplaceable *Unplaceable `json:",omitempty"`
	// Stopped: it should have no replicas, whatever else is said.
	Stopped bool
	// ScaledAt is when an operator last lowered the scale, by scaling, stopping or evicting. What
	// clients asked for before that does not count as demand.
	ScaledAt time.Time `json:",omitzero"`
	// Rollouts, by variant, are of the variants whose definition has changed while
	// replicas of another one served, until the new one has taken over. One that was rolled
	// back remains until the next version.
	Rollouts map[string]Rollout `json:",omitempty"`
	// Replacements are of replicas that failed their requests.
	Replacements Replacements `json:",omitzero"`
	// EvictedFor is when replicas of it were last evicted, by the model that they made room
	// for. Sleeps and Starts are what the sleeps and the starts of its variants have shown, by the
	// variant's hash. None of them counts as a change of the row.
	EvictedFor map[string]time.Time `json:",omitempty"`
	Sleeps     map[string]Sleep     `json:",omitempty"`
	Starts     map[string]Start     `json:",omitempty"`

	CreateIndex, ModifyIndex uint64
}

// Scaling is a model's policy as its file has it. Its bounds are the model's.
type Scaling struct {
	// Strategy is the plugin that decides, such as remuda-capacity.
	Strategy string
	// Interval is the time between two evaluations.
	Interval time.Duration
	// Settings are the strategy's keys.
	Settings map[string]string `json:",omitempty"`
}

// Sleep is what the sleeps of a variant's engines have shown.
type Sleep struct {
	// None: the engine has no sleep mode, or it is not known what it keeps asleep.
	None bool `json:",omitempty"`
	// Memory is the most bytes that a sleeping replica has kept of a GPU.
	Memory int64 `json:",omitempty"`
}

// Start is how long starts of a variant's replicas have taken: a moving average, in which the newest
// one counts for a quarter. 0: none was seen. Starts after a failure are left out.
type Start struct {
	// Cold is from a replica's placement until it served first, whatever had to be fetched. Warm is
	// from the order to wake a WARM one until it served.
	Cold, Warm time.Duration `json:",omitempty"`
}

// Queue is how requests wait for a model at a gateway. 0 is the gateway's own setting.
type Queue struct {
	// Length is how many requests wait at most, Wait how long one does.
	Length int           `json:",omitempty"`
	Wait   time.Duration `json:",omitempty"`
	// FirstByte is how long an engine may take until the first byte of its answer.
	FirstByte time.Duration `json:",omitempty"`
}

// SLO is how fast the answers of a model should be, for 95 of 100 requests or tokens. 0 is no goal.
type SLO struct {
	// TTFT is the time to the first token, ITL the time between two tokens.
	TTFT time.Duration `json:",omitempty"`
	ITL  time.Duration `json:",omitempty"`
}

// Management is who may change a model's scale.
type Management string

// The management modes.
const (
	ManagementDisabled  Management = "disabled"  // nobody; what runs stays
	ManagementManual    Management = "manual"    // people
	ManagementUpscaling Management = "upscaling" // people; the autoscaler upwards only
	ManagementFull      Management = "full"      // people and the autoscaler
)

// Variant is one way to run a model.
type Variant struct {
	Name string
	// GPUModel is the device group's model name in Nomad that it needs, as "H100";
	// empty for any.
	GPUModel string
	// GPUs per engine, all on one node and, where there is more than one, in one
	// NVLink clique.
	GPUs int
	// Memory is what one replica takes of each of its GPUs, in bytes.
	Memory int64
	// HostMemory is what a WARM replica takes of its node's memory, in bytes.
	HostMemory int64
	// Weights is how many bytes are loaded, 0: not known, Memory of all GPUs is taken for
	// it. Loading times are estimated from it.
	Weights int64 `json:",omitempty"`
	// SleepMemory is what a WARM replica still takes of each GPU that it served on, in
	// bytes: the CUDA contexts of processes that sleep. It is an estimate, and the least that is
	// charged; see Model.Sleeps.
	SleepMemory int64 `json:",omitempty"`
	// SharedMemory is the part of Memory that replicas of one version share where they use the same
	// GPUs: weights in the GPU memory service. 0: none.
	SharedMemory int64 `json:",omitempty"`
	// Reach is on how many GPUs of one clique an engine has a seat, of which it uses GPUs
	// at a time: a WARM replica may wake on others than those that it slept on. 0: on as
	// many as it uses.
	Reach int `json:",omitempty"`
	// Cost per replica-hour, in any one unit.
	Cost float64
	// Slots is how many requests one engine works on at once; 0: the engine says.
	Slots int
	// Engine is the dialect, as "vllm".
	Engine string
	// Job is the variant's own Nomad job file, HCL2, with the values of its variables.
	Job  string
	Vars map[string]string
	// Hash is of all that a running replica was made from.
	Hash string
}

// RolloutStatus is the stage of the rollout of a changed variant.
type RolloutStatus string

// The statuses.
const (
	RolloutCanary     RolloutStatus = "canary"      // one replica of the new definition is tried beside the old ones
	RolloutRolling    RolloutStatus = "rolling"     // the canary was good: replicas are replaced one after the other
	RolloutRolledBack RolloutStatus = "rolled_back" // the new definition has failed: the stable version is the model's again
)

// Rollout is the way of a changed variant from one definition to the next.
type Rollout struct {
	Status RolloutStatus
	// Version is what is rolled out: the model's, or the one that was rolled back. While
	// Status is RolloutCanary, replicas that must be placed anew are of StableVersion.
	Version int
	// Reason is a sentence for people: why it was rolled back, or what it waits for.
	Reason string
	// Since is when Status was entered.
	Since time.Time
}

// Unplaceable is why no place is found for a replica, and since when.
type Unplaceable struct {
	Reason string
	Since  time.Time
}

// Ongoing reports whether the rollout is neither finished nor rolled back.
func (r Rollout) Ongoing() bool { return r.Status == RolloutCanary || r.Status == RolloutRolling }

// Replica is one running copy of a variant.
type Replica struct {
	// Name has the model, the variant and the ID.
	Name replica.Name
	// Version is the version of the model that it was made from.
	Version int
	Goal    Goal
	Status  Status
	// Served: an engine of it has served.
	Served bool `json:",omitempty"`
	// Placement is where it is. Holds returns what it holds of it; a COLD replica has
	// only the node.
	Placement Placement
	// JobIndex is the JobModifyIndex of its Nomad job that the controller has last
	// written, 0 before it was registered. The job's ID is the replica's name.
	JobIndex uint64
	// Addresses are where its engines may be, as host:port, sorted: those that Nomad gave to its
	// allocations. Generation is the highest one that its engines' fencing tokens may have. Both are
	// as of the last observation, see SetAddresses; ModifyIndex does not change with them.
	Addresses  []string `json:",omitempty"`
	Generation uint64   `json:",omitempty"`
	// Canary: it is the first of its variant's new definition.
	Canary bool
	// MakesRoomFor is the model that it is evicted for while it is drained, put to sleep or
	// stopped; empty where it goes for another reason.
	MakesRoomFor string `json:",omitempty"`
	// SleepingGPUs are the GPUs on which it slept and on which it is not woken. While it wakes, and
	// until its process is gone where that fails, it takes SleepMemory of them as before.
	SleepingGPUs []string `json:",omitempty"`
	// Failures in a row, why the last one was, and when it is tried again. NotPlaced:
	// LastError is that Nomad did not place its job in time. RetryAt of one that starts in another one's
	// place is when that one ended.
	Failures  int
	LastError string
	NotPlaced bool `json:",omitempty"`
	RetryAt   time.Time
	// RestartsBefore are the restarts that do not count against the present start: those
	// of the allocation before the replica ceased to serve, or was adopted.
	RestartsBefore Restarts `json:",omitzero"`
	// Spilled: it was placed in an external pool for lack of room elsewhere, and not because
	// the model's scale has a share there.
	Spilled bool `json:",omitempty"`
	// KeptAt is when its way to WARM was last cancelled, zero for never.
	KeptAt time.Time `json:",omitzero"`
	// Since is when Status was entered, CreatedAt when it was placed.
	Since, CreatedAt time.Time

	CreateIndex, ModifyIndex uint64
}

// Restarts is how often the tasks of an allocation have been restarted.
type Restarts struct {
	Alloc string // the allocation's ID
	Count uint64
}

// Placement is the node and the seats of a replica.
type Placement struct {
	// Node is the Nomad node's ID.
	Node string
	// Seats are device IDs, "<GPU UUID>#<seat>": one of each GPU, and of a failover
	// pair two. There are seats on GPUs that Memory has not where the variant has a Reach.
	Seats []string
	// Memory is how many bytes it takes of each GPU, by UUID, while it is HOT, and those
	// GPUs are the ones that it uses, or used before it went WARM. HostMemory is what it
	// takes of the node's memory, and SleepMemory of each of those GPUs, while it is WARM: as
	// measured when it went to sleep, and as expected before that.
	Memory      map[string]int64
	HostMemory  int64
	SleepMemory int64 `json:",omitempty"`
	// SharedMemory is the part of Memory on each GPU that it shares, see Variant. One that was adopted
	// shares nothing: under which version its engines have their weights is not known.
	SharedMemory int64 `json:",omitempty"`
	// LoadMemory, above 0: it loads to become WARM before it ever serves. Until it sleeps it takes this
	// of each GPU in the place of Memory, and HostMemory. 0 afterwards, and for all others.
	LoadMemory int64 `json:",omitempty"`
}

// Node is what Nomad reports of a node that has GPUs.
type Node struct {
	ID, Name, Datacenter, Pool string
	// CapacityPool is the external capacity that the node belongs to, by the name of its
	// block in the agent's config; empty: the controller's own Nomad.
	CapacityPool string `json:",omitempty"`
	// Ready: Nomad places on it. Draining: Nomad empties it, or has emptied it and does not place on it.
	Ready, Draining bool
	// DownSince is when it was last heard to be down; zero while it is not. After a
	// grace period it is WrittenOff and its replicas are written off.
	DownSince  time.Time
	WrittenOff bool
	// Unserved: lockd or the GPU memory service does not run on it, although Nomad has the job for
	// them.
	Unserved bool `json:",omitempty"`
	GPUs     []GPU
	// HostMemory in bytes, CPU in MHz, as Nomad has them to give.
	HostMemory int64
	CPU        int64

	CreateIndex, ModifyIndex uint64
}

// GPU is one card, or one MIG instance.
type GPU struct {
	UUID string
	// Model as in Nomad's device group; Clique is its NVLink clique, empty for none.
	Model, Clique string
	// Memory in bytes.
	Memory int64
	// Seats are the device IDs that it offers.
	Seats   []string
	Healthy bool
	// Reason is why it is not healthy.
	Reason string
	// Cordoned: nothing new is placed on it and its replicas leave it until an operator uncordons
	// it. It was cordoned by an operator, or because memory did not come back.
	// CordonReason is why it is cordoned.
	Cordoned     bool
	CordonReason string `json:",omitempty"`
}

// Decision is one thing that the controller decided, with its reason and numbers.
type Decision struct {
	// ID grows by one.
	ID   uint64
	Time time.Time
	// Model and Replica are what it is about; either may be empty.
	Model, Replica string
	// Kind is a word, as "place", "evict", "scale", "roll-back".
	Kind string
	// Reason is a sentence for people. Details are the numbers it was made from.
	Reason  string
	Details map[string]string
}

// Switch is a named setting that operators change while the controller runs, as
// "disable-scaling".
type Switch struct {
	Name, Value string
	ModifyIndex uint64
}

// Token is an ACL token. The secret itself is never stored.
type Token struct {
	// Accessor is the token's public name, Name a remark for people.
	Accessor, Name string
	Role           Role
	// Hash is HashSecret of the secret.
	Hash      string
	CreatedAt time.Time

	CreateIndex, ModifyIndex uint64
}

// Role is what the bearer of a token may do. Without a token nothing is allowed.
type Role string

// The roles.
const (
	RoleOperator   Role = "operator"
	RoleGateway    Role = "gateway"
	RoleAutoscaler Role = "autoscaler"
	RoleReadOnly   Role = "read-only"
)

// Dedicated is the set of models that are dedicated for now, beside those that are dedicated by
// their files. There is at most one; a new one replaces it.
type Dedicated struct {
	// Models has how many replicas each should have at least, 1 or more, by name.
	Models map[string]int
	// Window is the window of the calendar that set it, empty if an operator did.
	Window string `json:",omitempty"`
	// Since is when it was set.
	Since time.Time
	// Released are the models that the set before had and this one has not, sorted.
	Released []string `json:",omitempty"`

	ModifyIndex uint64
}

// Schedule is the calendar that changes the dedicated set by the time of day.
type Schedule struct {
	// File is its text, as `remuda dedicated schedule` read it; the planner evaluates it
	// with package calendar.
	File string

	ModifyIndex uint64
}

// Pace is when the planner last did what it does only so often. There is one at most.
type Pace struct {
	// Pruned is when idle replicas were last sent to WARM or COLD.
	Pruned time.Time `json:",omitzero"`
	// Left is when replicas were last sent away from an external pool, by its name.
	Left map[string]time.Time `json:",omitempty"`
}
