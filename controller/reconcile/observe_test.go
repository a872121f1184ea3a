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
		a := allocOf([]nomad.Allocation{{ID: "a", Desired: "run", Tasks: c.tasks, Seats: seats}})
		require.Equal(t, c.want, a.Event, name)
	}
}

// A task that has to end before the engine starts counts for as long as no engine has
// started; a task beside a running engine does not.
func TestRestartsOfTasksBeforeTheEngine(t *testing.T) {
	seats := map[string][]string{"primary": {"GPU-1#0"}}
	weights := nomad.Task{Name: "weights", State: "pending", Restarts: 7, Started: time.Unix(50, 0)}
	restarts := func(primary nomad.Task) uint64 {
		return allocOf([]nomad.Allocation{{ID: "a", Desired: "run", Tasks: []nomad.Task{weights, primary}, Seats: seats}}).Restarts
	}
	require.EqualValues(t, 7, restarts(nomad.Task{Name: "primary", State: "pending"}))
	require.EqualValues(t, 2, restarts(nomad.Task{Name: "primary", State: "running", Restarts: 2, Started: time.Unix(100, 0)}))
}
