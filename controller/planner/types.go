package planner

import (
	"slices"
	"time"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// Observation is what is known of the world at one moment. Plan and Actions do not change it.
type Observation struct {
	Now time.Time
	// Jobs are the replicas' jobs in the Nomads of all pools, by replica name. Those of a pool
	// that is unreachable are the last ones seen.
	Jobs map[string]Job
	// Pools has the view of each Nomad, by the name of its capacity pool; "" is the controller's
	// own. A pool that is missing is unknown.
	Pools map[string]PoolView
	// InFlight are the replicas whose job was written, or is being written, after Jobs were
	// listed: nothing is concluded from their jobs, nor from the lack of one.
	InFlight map[string]bool
	// Engines are what Consul lists of each replica, by replica name. EnginesKnown is
	// false while Consul is unreachable.
	Engines      map[string][]Engine
	EnginesKnown bool
	// PassedAt is when an engine of a replica that has none now was last seen to pass. EnginesSince
	// is from when on that is known.
	PassedAt     map[string]time.Time
	EnginesSince time.Time
	// Loads are what the gateways report of each replica, by replica name, added up.
	Loads map[string]Load
	// TrafficKnown: a live gateway reports, and the leader has received reports for the lifetime of
	// one. While it is false the last request of a replica is unknown.
	TrafficKnown bool
	// GatewaysSince is the latest start of any live gateway: a request before it may be
	// unknown. Zero where there is none.
	GatewaysSince time.Time
	// Demand are the models that clients asked for and that had no replica to serve, or none
	// that was free, with the newest such request.
	Demand map[string]time.Time
}

// passing reports whether an engine of a replica serves.
func (o *Observation) passing(name string) bool {
	return o.EnginesKnown && slices.ContainsFunc(o.Engines[name], func(e Engine) bool { return e.Passing })
}

// PoolView is the view of the Nomad of a capacity pool.
type PoolView struct {
	// JobsKnown is false while it is unreachable: nothing is concluded from its jobs then, and
	// nothing is placed there.
	JobsKnown bool
	// JobsSince is when it was reachable again after an outage, zero if there was none. Nothing is
	// concluded from what it did not do before.
	JobsSince time.Time
}

// Job is a replica's job as Nomad has it.
type Job struct {
	Name replica.Name
	// Pool is the capacity pool whose Nomad has it, "" for the controller's own.
	Pool string
	// Hash is of the variant that it was made from.
	Hash string
	// Placement is where it was placed, according to its meta.
	Placement state.Placement
	// Problem is why its meta is invalid, empty if it is valid.
	Problem string
	// Stopped: it was stopped, by remuda or by another client of Nomad. Ended: it is stopped, and
	// none of its allocations holds anything any more.
	Stopped, Ended bool
	// Index is its JobModifyIndex, which changes with the job's text only.
	Index uint64
	// Drift is how it differs from the replica in the state, empty if it does not or the state has
	// no such replica; see nomad.Job.Drift.
	Drift []string
	// Alloc is its newest allocation, nil if there is none.
	Alloc *Alloc
	// Unplaceable is why Nomad has not placed it, empty if it has or was not asked.
	Unplaceable string
	// Degraded is why a failover pair that serves has no engine that could take over, empty if it
	// has one, is no pair, or was not asked.
	Degraded string
	// Takeover is its last failover, zero if there was none.
	Takeover Takeover
	// StartsWarm: the engines of a new allocation load, and sleep until they are woken.
	StartsWarm bool
	// WeightsLost: a failover pair that sleeps has no copy of its weights in host memory any more.
	WeightsLost bool
}

// Takeover is how an engine of a failover pair came to serve after another one; see api.Takeover.
type Takeover struct {
	From, Cause, Reason string
	Ended, At           time.Time
	Seconds             float64
}

// Alloc is one run of a job.
type Alloc struct {
	ID string
	// Client is Nomad's word of what it does: pending, running, complete, failed, lost
	// or unknown.
	Client string
	// Failed: an engine task has failed for good.
	Failed bool
	// First: the job was written once, and this is the only allocation it ever had.
	First bool
	// Restarts is the highest count of any task, of the engines and beside them, since the
	// allocation began: also of the times when they served.
	Restarts uint64
	// Event is the last thing that happened to an engine task, or, while the replica is
	// starting, to the task that is in the worst way; in Nomad's words.
	Event string
	// Started is when the engine task that started last did so, Oldest when the one did that has run
	// for the longest time; zero before.
	Started, Oldest time.Time
}

// Engine is an engine of a replica as Consul lists it.
type Engine struct {
	// Passing: it serves.
	Passing bool
}

// Load is what all gateways have on a replica.
type Load struct {
	InFlight int
	// LastRequest is when the newest request of all began; zero where there was none.
	LastRequest time.Time
	// Recent are the outcomes of the last half minute, Row the failures since the last answer,
	// however long ago the first of them was.
	Recent, Row Outcomes
}

// Action is something to be done in Nomad or at a replica's shim.
type Action struct {
	Kind Kind
	// Replica is the name as a string, and the ID of the job.
	Replica string
	Name    replica.Name
	// Pool is the capacity pool whose Nomad it is about.
	Pool string
	// Index is the JobModifyIndex that the job of a Register is written over, 0: there
	// is none.
	Index uint64
	// Reason is a sentence.
	Reason string
}

// Kind is what an Action does.
type Kind string

// The kinds of actions. Each may be done again without harm.
const (
	// Register writes the replica's job, as the state has the replica (Model.VariantOf
	// and Model.FailoverOf), over the version with Action.Index. Afterwards the replica
	// is starting, with the new JobIndex.
	Register Kind = "register"
	// Stop stops the job. The state may no longer have its replica.
	Stop Kind = "stop"
	// Purge makes Nomad forget a job that has ended.
	Purge Kind = "purge"
	// Drain takes the replica's engine out of routing and waits until it has no request, at
	// most for Config.DrainTimeout. Its result is an Outcome. The engine knows of every
	// request, also of a gateway that is cut off from the controller.
	Drain Kind = "drain"
	// Sleep makes the replica's engine give its GPU memory back, and verifies that it came back. Its
	// result is an Outcome.
	Sleep Kind = "sleep"
	// Wake makes the replica's engine take the GPUs of its Placement.Memory and serve. Its result is
	// an Outcome. It is also requested for a replica that is serving, or has been starting for long,
	// while none of its engines serves: its shim may be parked.
	Wake Kind = "wake"
)

// The kinds of decisions that Plan makes.
const (
	KindPlace          = "place"
	KindCannotPlace    = "cannot-place"
	KindScaleDown      = "scale-down"
	KindDrained        = "drained"
	KindDrainTimeout   = "drain-timeout"
	KindServing        = "serving"
	KindNotServing     = "not-serving"
	KindLoadFailed     = "load-failed"
	KindRetry          = "retry"
	KindMoveAway       = "move-away"
	KindNodeDraining   = "node-draining"
	KindNodeGone       = "node-gone"
	KindGPUOutOfUse    = "gpu-out-of-use"
	KindCanary         = "canary"
	KindRolloutWaits   = "rollout-waits"
	KindRolling        = "rolling"
	KindRolledBack     = "rolled-back"
	KindRolloutDone    = "rollout-done"
	KindAdopt          = "adopt"
	KindOrphan         = "orphan"
	KindJobProblem     = "job-problem"
	KindJobStopped     = "job-stopped"
	KindJobEdited      = "job-edited"
	KindJobGone        = "job-gone"
	KindVariantRemoved = "variant-removed"
	KindFailover       = "failover" // another engine of a pair serves
	// KindFailoverOrdered: an operator handed a pair over to its standby.
	KindFailoverOrdered = "failover-ordered"
	KindDegraded        = "degraded" // nothing is taken away while the pairs that would be left have no standby
	KindReplaced        = "replaced" // serves and fails its requests: is drained, and another one started
	KindFailing         = "failing"  // serves and fails its requests, and is not replaced now

	KindEvict        = "evict"          // makes room on the GPUs for another model
	KindEvictWarm    = "evict-warm"     // makes room for another WARM replica in the host memory
	KindCalledOff    = "called-off"     // stays HOT: a drain towards WARM, or a sleep, was given up
	KindAsleep       = "asleep"         // sleeps, and its GPU memory is free
	KindWake         = "wake"           // is woken
	KindAwake        = "awake"          // serves again
	KindSleepFailed  = "sleep-failed"   // could not be put to sleep
	KindWakeFailed   = "wake-failed"    // could not be woken
	KindMemoryHeld   = "memory-held"    // sleeps, and its GPU memory did not come back
	KindCannotSleep  = "cannot-sleep"   // its engine has no sleep, or cannot have it
	KindIdle         = "idle"           // HOT without requests for long: it goes WARM or COLD
	KindPruned       = "pruned"         // WARM without requests for long: it goes COLD
	KindLostWarm     = "lost-warm"      // its process began anew or is gone, and its weights with it
	KindSpill        = "spill"          // was placed in an external pool
	KindLeavePool    = "leave-pool"     // leaves an external pool
	KindDedicated    = "dedicated"      // the calendar changes the dedicated set
	KindDemand       = "demand"         // was asked for and had no replicas, or fewer than it should have
	KindReserve      = "reserve"        // is started to be kept WARM
	KindStandIn      = "stand-in"       // is woken because another replica has stopped to serve
	KindReturn       = "return"         // was displaced, and there is room again
	KindWaitsForRoom = "waits-for-room" // its room is being made
)
