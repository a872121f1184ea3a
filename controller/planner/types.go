package planner

import (
	"time"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// Observation is what is known of the world at one moment. Plan and Actions change
// nothing of it.
type Observation struct {
	Now time.Time
	// Jobs are the replicas' jobs in the Nomads of all pools, by replica name. Those of a pool
	// that cannot be asked are the last ones seen.
	Jobs map[string]Job
	// Pools says how each Nomad is seen, by the name of its capacity pool; "" is the
	// controller's own. One that is not here is not known.
	Pools map[string]PoolView
	// InFlight are the replicas whose job was written, or is being written, after Jobs were
	// listed: nothing is concluded from their jobs, nor from the lack of one.
	InFlight map[string]bool
	// Engines are what Consul lists of each replica, by replica name. EnginesKnown is
	// false while Consul cannot be asked.
	Engines      map[string][]Engine
	EnginesKnown bool
	// Loads are what the gateways report of each replica, by replica name, added up.
	Loads map[string]Load
	// TrafficKnown: a live gateway reports, and has been listened to for as long as a
	// report lasts. While it is false nobody knows when a replica was last asked.
	TrafficKnown bool
	// GatewaysSince is the latest start of any live gateway: a request before it may be
	// unknown. Zero where there is none.
	GatewaysSince time.Time
	// Demand are the models that clients asked for and that had no replica to serve, or none
	// that was free, with the newest such request.
	Demand map[string]time.Time
}

// PoolView says how the Nomad of a capacity pool is seen.
type PoolView struct {
	// JobsKnown is false while it cannot be asked: nothing is concluded from its jobs
	// then, and nothing is placed there.
	JobsKnown bool
	// JobsSince is when it was heard again after an outage, zero where there was none:
	// what it did not do before that says nothing.
	JobsSince time.Time
}

// Job is a replica's job as Nomad has it.
type Job struct {
	Name replica.Name
	// Pool is the capacity pool whose Nomad has it, "" for the controller's own.
	Pool string
	// Hash is of the variant that it was made from.
	Hash string
	// Placement is where it was put, as its meta says.
	Placement state.Placement
	// Problem is why its meta cannot be believed, empty where it can.
	Problem string
	// Stopped: it was told to stop, by whomever. Ended: it is stopped, and none of its
	// allocations holds anything any more.
	Stopped, Ended bool
	// Index is its JobModifyIndex, which changes with the job's text only.
	Index uint64
	// Drift says how it differs from the replica in the state, empty where it does
	// not; see nomad.Job.Drift. Of a job whose replica the state lacks it is empty.
	Drift []string
	// Alloc is its newest allocation, nil where there is none.
	Alloc *Alloc
	// Unplaceable is why Nomad has not placed it, empty where it has or was not asked.
	Unplaceable string
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
	// Started is when the engine task that started last did so, zero before.
	Started time.Time
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
	// Stop tells the job to stop. The state may not know its replica any more.
	Stop Kind = "stop"
	// Purge makes Nomad forget a job that has ended.
	Purge Kind = "purge"
	// Drain takes the replica's engine out of routing and waits until it has no request, at
	// most for Config.DrainTimeout. What became of it is an Outcome. The engine knows of every
	// request, also of a gateway that is cut off from the controller.
	Drain Kind = "drain"
	// Sleep has the replica's engine give its GPU memory back, and looks that it came
	// back. What became of it is an Outcome.
	Sleep Kind = "sleep"
	// Wake has the replica's engine take the GPUs of its Placement.Memory and serve. What
	// became of it is an Outcome. It is also asked for a replica that is serving, or for
	// long starting, while nothing serves: its shim may be parked.
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
	KindReplaced       = "replaced" // serves and fails its requests: is drained, and another one started
	KindFailing        = "failing"  // serves and fails its requests, and is not replaced now

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
	KindReturn       = "return"         // was displaced, and there is room again
	KindWaitsForRoom = "waits-for-room" // its room is being made
)
