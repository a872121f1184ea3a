package state

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Goal is what operators or the planner want of a replica.
type Goal string

// The goals.
const (
	GoalRun  Goal = "run"  // serve, or get there
	GoalWarm Goal = "warm" // sleep with the weights in host memory
	GoalCold Goal = "cold" // end, and remember that the weights are on the node's disk
	GoalGone Goal = "gone" // end, and be deleted
)

// Tier returns the tier that the goal leads to, empty for GoalGone.
func (g Goal) Tier() Tier {
	return map[Goal]Tier{GoalRun: Hot, GoalWarm: Warm, GoalCold: Cold}[g]
}

// Status is what a replica is doing. From it and the goal a new leader knows what to continue.
type Status string

// The statuses.
const (
	StatusPlaced     Status = "placed"     // has its seats and memory; its job is not registered yet
	StatusStarting   Status = "starting"   // its job is registered, and no engine serves yet
	StatusServing    Status = "serving"    // an engine serves
	StatusDraining   Status = "draining"   // gets no new requests; running ones may finish
	StatusSleeping   Status = "sleeping"   // its engine is going to sleep
	StatusWarm       Status = "warm"       // its engine sleeps
	StatusWaking     Status = "waking"     // its engine is waking up
	StatusStopping   Status = "stopping"   // its job is being stopped
	StatusDiscarding Status = "discarding" // its job is being stopped while the engine sleeps
	StatusCold       Status = "cold"       // no job: only the node that has its weights is known
	StatusFailed     Status = "failed"     // could not be started; Retry is the time of the next attempt
)

// Tier is how near a replica is to serving (see docs/glossary.md). It follows from the
// status.
type Tier string

// The tiers.
const (
	Hot  Tier = "HOT"
	Warm Tier = "WARM"
	Cold Tier = "COLD"
)

// Event is what happens to a replica.
type Event string

// The events. The status that follows is in the table of lives.
const (
	EventStarted Event = "started" // its process was started, or Nomad was asked to
	EventServing Event = "serving" // an engine serves, or the way to WARM was cancelled
	EventDrain   Event = "drain"   // it gets no new requests; needs a goal
	EventSleep   Event = "sleep"   // it is drained and goes to sleep
	EventSlept   Event = "slept"   // its engine sleeps, or sleeps on after a wake that was cancelled
	EventWake    Event = "wake"    // it is needed again
	EventStop    Event = "stop"    // its job is stopped; needs a goal unless it has one
	EventStopped Event = "stopped" // its job has ended, and it stays as COLD
	EventFailed  Event = "failed"  // it could not be started
	EventRetry   Event = "retry"   // its job is registered again
)

// Request is what a status asks the controller to do in Nomad or at the shim.
type Request string

// The requests.
const (
	RequestNone     Request = ""
	RequestRegister Request = "register" // register the job
	RequestKeep     Request = "keep"     // keep the job registered as it is
	RequestDrain    Request = "drain"    // take the engine out of routing and wait until it has no request
	RequestSleep    Request = "sleep"    // put the engine to sleep
	RequestWake     Request = "wake"     // wake the engine
	RequestStop     Request = "stop"     // stop the job
)

// life is one row of the table below: what a status means.
type life struct {
	tier  Tier
	goals []Goal // that a replica with this status may have
	// What it holds of its placement beside the seats: the memory to serve with, the
	// memory of a sleeping process, and host memory.
	serving, sleeping, host bool
	request                 Request
	next                    map[Event]Status
}

// lives is the whole life of a replica. A replica begins as placed, or is adopted as
// starting, serving or warm; it ends by being removed (see removable).
//
//	placed -> starting -> serving -> draining -> sleeping -> warm -> waking -> serving
//	placed -> starting -> warm, for one that loads to become WARM before it serves (Replica.Loads)
//	any but cold -> stopping or discarding -> removed, or cold
//
// One that is placed, starting or failed has GoalWarm while it loads to become WARM, and GoalRun otherwise.
//
// A process that dies and is started again by Nomad is starting, whatever it was before:
// it will need its GPU.
var lives = map[Status]life{
	StatusPlaced: {
		tier: Hot, goals: []Goal{GoalRun, GoalWarm}, serving: true, request: RequestRegister,
		next: map[Event]Status{EventStarted: StatusStarting, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusStarting: {
		tier: Hot, goals: []Goal{GoalRun, GoalWarm}, serving: true, request: RequestKeep,
		next: map[Event]Status{EventServing: StatusServing, EventSlept: StatusWarm, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusServing: {
		tier: Hot, goals: []Goal{GoalRun}, serving: true, request: RequestKeep,
		next: map[Event]Status{EventDrain: StatusDraining, EventStarted: StatusStarting, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusDraining: {
		tier: Hot, goals: []Goal{GoalWarm, GoalCold, GoalGone}, serving: true, request: RequestDrain,
		next: map[Event]Status{EventDrain: StatusDraining, EventServing: StatusServing, EventSleep: StatusSleeping, EventStarted: StatusStarting, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusSleeping: {
		tier: Hot, goals: []Goal{GoalWarm}, serving: true, host: true, request: RequestSleep,
		next: map[Event]Status{EventSlept: StatusWarm, EventServing: StatusServing, EventStarted: StatusStarting, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusWarm: {
		tier: Warm, goals: []Goal{GoalWarm}, sleeping: true, host: true,
		next: map[Event]Status{EventWake: StatusWaking, EventStarted: StatusStarting, EventStop: StatusDiscarding},
	},
	StatusWaking: {
		tier: Warm, goals: []Goal{GoalRun}, serving: true, host: true, request: RequestWake,
		next: map[Event]Status{EventServing: StatusServing, EventSlept: StatusWarm, EventStarted: StatusStarting, EventFailed: StatusFailed, EventStop: StatusStopping},
	},
	StatusStopping: {
		tier: Hot, goals: []Goal{GoalCold, GoalGone}, serving: true, request: RequestStop,
		next: map[Event]Status{EventStop: StatusStopping, EventStopped: StatusCold},
	},
	StatusDiscarding: {
		tier: Warm, goals: []Goal{GoalCold, GoalGone}, sleeping: true, host: true, request: RequestStop,
		next: map[Event]Status{EventStop: StatusDiscarding, EventStopped: StatusCold},
	},
	StatusCold: {tier: Cold, goals: []Goal{GoalCold}, request: RequestStop},
	StatusFailed: {
		tier: Hot, goals: []Goal{GoalRun, GoalWarm}, serving: true, request: RequestStop,
		next: map[Event]Status{EventRetry: StatusPlaced, EventStarted: StatusStarting, EventServing: StatusServing, EventStop: StatusStopping},
	},
}

// Tier returns the tier of replicas with this status.
func (s Status) Tier() Tier { return lives[s].tier }

// Request returns what a replica with this status asks for.
func (s Status) Request() Request { return lives[s].request }

// Tier returns the tier that r is in.
func (r *Replica) Tier() Tier { return r.Status.Tier() }

// Advance returns r after an event, with the goal that follows from it. Where a status can
// have several goals, the event needs one of them unless r has one of them already; an
// empty goal stands for that. An empty event changes nothing. The time is when the event
// happened, and Since of a status that is entered.
//
// It returns an error if the event cannot happen to r.
func (r *Replica) Advance(e Event, goal Goal, at time.Time) (*Replica, error) {
	next := *r
	if e == "" {
		if goal != "" && goal != r.Goal {
			return nil, fmt.Errorf("goal cannot change from %s to %s without an event", r.Goal, goal)
		}
		return &next, nil
	}
	to, ok := lives[r.Status].next[e]
	if !ok {
		return nil, fmt.Errorf("it is %s: event %q is impossible", r.Status, e)
	}
	allowed := r.goalsOf(to)
	switch {
	case e == EventSleep || e == EventStopped:
		// These only carry out the goal that r has.
		if !slices.Contains(allowed, r.Goal) || goal != "" && goal != r.Goal {
			return nil, fmt.Errorf("it is %s with the goal %s: cannot become %s", r.Status, r.Goal, to)
		}
		goal = r.Goal
	case goal == "" && len(allowed) == 1:
		goal = allowed[0]
	case goal == "":
		goal = r.Goal
	}
	if r.Loads() && to == StatusServing || !r.Loads() && r.Status == StatusStarting && to == StatusWarm {
		return nil, fmt.Errorf("it is %s with the goal %s: cannot become %s", r.Status, r.Goal, to)
	}
	if !slices.Contains(allowed, goal) {
		return nil, fmt.Errorf("%s: goal is %q: must be %s", to, goal, joinGoals(allowed))
	}
	if to != r.Status {
		next.Since = at
	}
	next.Status, next.Goal = to, goal
	next.Served = next.Served || to == StatusServing
	if !next.makesRoom() {
		next.MakesRoomFor = ""
	}
	if to != StatusWaking && to != StatusStopping {
		next.SleepingGPUs = nil
	}
	if to == StatusWarm {
		next.Placement.LoadMemory = 0
	}
	if to == StatusCold {
		next.Placement = Placement{Node: r.Placement.Node}
		next.JobIndex = 0
		next.Addresses, next.Generation = nil, 0
	}
	return &next, nil
}

// checkLife returns an error if no replica can have this status and goal.
func (r *Replica) checkLife() error {
	if _, ok := lives[r.Status]; !ok {
		return fmt.Errorf("replica %s: unknown status %q", r.Name, r.Status)
	}
	if goals := r.goalsOf(r.Status); !slices.Contains(goals, r.Goal) {
		return fmt.Errorf("replica %s: goal is %q: must be %s while it is %s", r.Name, r.Goal, joinGoals(goals), r.Status)
	}
	return nil
}

// goalsOf returns the goals that r may have with a status.
func (r *Replica) goalsOf(s Status) []Goal {
	switch s {
	case StatusPlaced, StatusStarting, StatusFailed:
		if r.Loads() {
			return []Goal{GoalWarm}
		}
		return []Goal{GoalRun}
	}
	return lives[s].goals
}

// Loads reports whether r loads to become WARM before it ever serves.
func (r *Replica) Loads() bool { return r.Placement.LoadMemory > 0 }

func joinGoals(goals []Goal) string {
	words := make([]string, len(goals))
	for i, g := range goals {
		words[i] = string(g)
	}
	return strings.Join(words, " or ")
}

// removable returns why r may not be deleted, empty if it may: what it held must be
// free, because its job is stopped or was never registered, or its node is gone.
func (r *Replica) removable(n *Node) string {
	switch {
	case r.Status == StatusStopping, r.Status == StatusDiscarding, r.Status == StatusCold:
		return ""
	case r.Status == StatusPlaced && r.JobIndex == 0:
		return ""
	case n == nil || n.WrittenOff:
		return ""
	}
	return fmt.Sprintf("it is %s and may still run: stop it first", r.Status)
}

// Ending reports whether the job of r is being stopped.
func (r *Replica) Ending() bool {
	return r.Status == StatusStopping || r.Status == StatusDiscarding
}

// Leaving reports whether r is on its way out, or is COLD: it ends, or has ended and only
// the node that has its weights is known.
func (r *Replica) Leaving() bool { return r.Goal == GoalCold || r.Goal == GoalGone }

// Resting reports whether r is WARM or on its way there. It is not one of its model's
// serving replicas until it is woken.
func (r *Replica) Resting() bool { return r.Goal == GoalWarm }

// Counts reports whether r counts against the target of its model: it serves, or is coming up.
func (r *Replica) Counts() bool { return r.Goal == GoalRun }

// makesRoom reports whether r can be leaving its place for another model.
func (r *Replica) makesRoom() bool {
	return r.Status == StatusDraining || r.Status == StatusSleeping || r.Ending()
}
