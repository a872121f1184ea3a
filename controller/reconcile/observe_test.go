package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
)

// The event that is told is of the task that is in the worst way.
func TestAllocationTellsWhy(t *testing.T) {
	waiting := nomad.Task{Name: "primary", State: "pending", Event: "Task received by client"}
	dead := nomad.Task{Name: "lockd", State: "dead", Failed: true, Event: "no such file"}
	seats := map[string][]string{"primary": {"GPU-1#0"}}
	for name, c := range map[string]struct {
		tasks []nomad.Task
		want  string
	}{
		"an engine":                    {[]nomad.Task{waiting}, "primary: Task received by client"},
		"a task beside it has failed":  {[]nomad.Task{dead, waiting}, "lockd: no such file"},
		"the order does not matter":    {[]nomad.Task{waiting, dead}, "lockd: no such file"},
		"a failed engine comes first":  {[]nomad.Task{dead, {Name: "primary", State: "dead", Failed: true, Restarts: 2, Event: "exit 1"}}, "primary: exit 1"},
		"a task before it fails again": {[]nomad.Task{waiting, {Name: "weights", State: "pending", Restarts: 3, Event: "exit 2"}}, "weights: exit 2"},
	} {
		a := allocOf([]nomad.Allocation{{ID: "a", Desired: "run", Tasks: c.tasks, Seats: seats}}, true)
		require.Equal(t, c.want, a.Event, name)
	}
}

// Any task can keep the engines from serving: one that has to end before they start, or a
// lockd that ends again and again while they wait for its lock.
func TestRestartsOfTasksBesideTheEngine(t *testing.T) {
	seats := map[string][]string{"primary": {"GPU-1#0"}}
	lockd := nomad.Task{Name: "lockd", State: "pending", Restarts: 7, Started: time.Unix(50, 0), Event: "exit 1"}
	waits := nomad.Task{Name: "primary", State: "running", Restarts: 1, Started: time.Unix(100, 0), Event: "Task started by client"}
	for name, c := range map[string]struct {
		primary  nomad.Task
		starting bool
		event    string
	}{
		"the engine has not started":      {nomad.Task{Name: "primary", State: "pending"}, true, "lockd: exit 1"},
		"the engine waits for its lock":   {waits, true, "lockd: exit 1"},
		"the engine has served, and ends": {waits, false, "primary: Task started by client"},
	} {
		a := allocOf([]nomad.Allocation{{ID: "a", Desired: "run", Tasks: []nomad.Task{lockd, c.primary}, Seats: seats}}, c.starting)
		require.EqualValues(t, 7, a.Restarts, name)
		require.Equal(t, c.event, a.Event, name)
		require.False(t, a.Failed, name)
	}
}
