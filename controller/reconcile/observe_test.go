package reconcile

import (
	"testing"

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
		"an engine":                   {[]nomad.Task{waiting}, "primary: Task received by client"},
		"a task beside it has failed": {[]nomad.Task{dead, waiting}, "lockd: no such file"},
		"the order does not matter":   {[]nomad.Task{waiting, dead}, "lockd: no such file"},
		"a failed engine comes first": {[]nomad.Task{dead, {Name: "primary", State: "dead", Failed: true, Restarts: 2, Event: "exit 1"}}, "primary: exit 1"},
	} {
		a := allocOf([]nomad.Allocation{{ID: "a", Desired: "run", Tasks: c.tasks, Seats: seats}})
		require.Equal(t, c.want, a.Event, name)
	}
}
