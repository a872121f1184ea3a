package state

import (
	"fmt"
	"slices"
)

// Stage is where a replica is in its life: its tier and what is being done with it.
type Stage struct {
	Tier  Tier
	Phase Phase
}

func (s Stage) String() string { return fmt.Sprintf("%s %s", s.Tier, s.Phase) }

// Stage returns the stage that r is in.
func (r *Replica) Stage() Stage { return Stage{r.Tier, r.Phase} }

// transitions are the ways on from each stage. Every stage may also be written again,
// with other details. A replica begins as HOT placed, or where it was found when it
// is adopted; it ends by being removed (see removable).
//
//	HOT placed -> starting -> running -> draining -> sleeping -> WARM running
//	WARM running -> waking -> HOT running
//	any but COLD -> stopping -> removed, or COLD running
//
// A process that dies and that Nomad starts anew is HOT starting, wherever it was:
// it will want its GPU.
var transitions = map[Stage][]Stage{
	{Hot, Placed}:    {{Hot, Starting}, {Hot, Failed}, {Hot, Stopping}},
	{Hot, Starting}:  {{Hot, Running}, {Hot, Failed}, {Hot, Stopping}},
	{Hot, Running}:   {{Hot, Draining}, {Hot, Starting}, {Hot, Failed}, {Hot, Stopping}},
	{Hot, Draining}:  {{Hot, Running}, {Hot, Sleeping}, {Hot, Starting}, {Hot, Failed}, {Hot, Stopping}},
	{Hot, Sleeping}:  {{Warm, Running}, {Hot, Running}, {Hot, Starting}, {Hot, Failed}, {Hot, Stopping}},
	{Warm, Running}:  {{Warm, Waking}, {Hot, Starting}, {Warm, Stopping}},
	{Warm, Waking}:   {{Hot, Running}, {Warm, Running}, {Hot, Starting}, {Hot, Failed}, {Hot, Stopping}},
	{Hot, Failed}:    {{Hot, Placed}, {Hot, Starting}, {Hot, Running}, {Hot, Stopping}},
	{Hot, Stopping}:  {{Cold, Running}},
	{Warm, Stopping}: {{Cold, Running}},
	{Cold, Running}:  {},
}

// targets are what a phase may lead to; a phase that is not here has no target.
var targets = map[Phase][]Tier{
	Draining: {"", Warm, Cold},
	Sleeping: {Warm},
	Waking:   {Hot},
	Stopping: {"", Cold},
}

// mayMove returns why r may not become to with that target, empty where it may.
func (r *Replica) mayMove(to Stage, target Tier) string {
	from := r.Stage()
	if to != from && !slices.Contains(transitions[from], to) {
		return fmt.Sprintf("cannot change from %s to %s", from, to)
	}
	allowed, ok := targets[to.Phase]
	if !ok {
		allowed = []Tier{""}
	}
	if !slices.Contains(allowed, target) {
		return fmt.Sprintf("%s cannot have the target %q", to, target)
	}
	if from.Phase == Draining && to.Phase == Sleeping && r.Target != Warm {
		return fmt.Sprintf("cannot sleep: its drain has the target %q", r.Target)
	}
	if from.Phase == Stopping && to.Tier == Cold && r.Target != Cold {
		return fmt.Sprintf("it is stopping with the target %q: cannot become %s", r.Target, to)
	}
	return ""
}

// removable returns why r may not be forgotten, empty where it may: what it held must
// be free, because its job is stopped or was never registered, or its node is gone.
func (r *Replica) removable(n *Node) string {
	switch {
	case r.Phase == Stopping, r.Tier == Cold:
		return ""
	case r.Phase == Placed && r.JobIndex == 0:
		return ""
	case n == nil || n.Gone:
		return ""
	}
	return fmt.Sprintf("it is %s and may still run: stop it first", r.Stage())
}

// Leaving tells whether r is on its way out: it is drained or stopped for good (with no
// target, or COLD), or it is COLD and no more than a memory of where its weights are. It
// does not count as one of its model's replicas any more.
func (r *Replica) Leaving() bool {
	switch r.Phase {
	case Draining, Stopping:
		return r.Target == "" || r.Target == Cold
	}
	return r.Tier == Cold
}

// Resting tells whether r is WARM or on its way there: it keeps the weights at hand and
// serves nobody. It does not count as one of its model's replicas until it is woken.
func (r *Replica) Resting() bool {
	switch r.Stage() {
	case Stage{Warm, Running}:
		return true
	case Stage{Hot, Draining}, Stage{Hot, Sleeping}:
		return r.Target == Warm
	}
	return false
}

// Counts tells whether r is one of its model's replicas: it serves, or is on its way to.
func (r *Replica) Counts() bool { return !r.Leaving() && !r.Resting() }

// counting returns the replicas of a model that count against its target.
func counting(t *txn, model string) []*Replica {
	rs, _ := each[Replica](t.Txn, TableReplicas, byModel, model)
	return slices.DeleteFunc(rs, func(r *Replica) bool { return !r.Counts() })
}

// present returns the replicas of a model that are not on their way out.
func present(t *txn, model string) []*Replica {
	rs, _ := each[Replica](t.Txn, TableReplicas, byModel, model)
	return slices.DeleteFunc(rs, (*Replica).Leaving)
}
