//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// on counts the model's HOT replicas by node name.
func (f *fleet) on(model string) (map[string]int, error) {
	st, _, err := f.api.Model(f.t.Context(), model, api.QueryOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, r := range st.Replicas {
		if r.Status == "serving" {
			out[r.NodeName]++
		}
	}
	return out, nil
}

// Both nodes have two GPUs with two seats each.
const firstNode, secondNode = "dev", "dev-2"

// fullest is the node with the most replicas, which is to go, and the other one.
func (f *fleet) fullest(model string) (victim, other string) {
	f.t.Helper()
	where, err := f.on(model)
	require.NoError(f.t, err)
	if where[secondNode] > where[firstNode] {
		return secondNode, firstNode
	}
	return firstNode, secondNode
}

// client is the process of a node's Nomad client.
func (f *fleet) client(node string) int {
	if node == firstNode {
		return f.pid("nomad-client")
	}
	return f.pid("nomad-client-2")
}

func (f *fleet) allOn(model, node, not string, n int) {
	f.t.Helper()
	eventually(f.t, 3*time.Minute, "all replicas on "+node, func() error {
		where, err := f.on(model)
		if err == nil && (where[not] != 0 || where[node] != n) {
			err = fmt.Errorf("%v", where)
		}
		return err
	})
}

func nodeDrained(t *testing.T, f *fleet) {
	f.remuda("model", "apply", f.modelFile("m", 6, nil))
	f.hot("m", 6)
	where, err := f.on("m")
	require.NoError(t, err)
	require.Len(t, where, 2, "%v", where)
	f.remuda("scale", "m", "4")
	f.hot("m", 4)

	victim, other := f.fullest("m")
	id := f.nodeID(victim)
	l := f.load("m", 4, 60)
	l.flows(8)
	f.command("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "2m", id)
	f.allOn("m", other, victim, 4)
	f.hot("m", 4)
	l.none()
	// There is no room for a fifth: the status says so, and it comes once there is.
	f.remuda("scale", "-detach", "m", "5")
	eventually(t, time.Minute, "the reason", func() error {
		st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
		if err == nil && !strings.Contains(st.StatusDescription, other) {
			err = fmt.Errorf("%q", st.StatusDescription)
		}
		return err
	})
	require.Contains(t, f.decisions("m"), "cannot-place")
	t.Logf("remuda model status m:\n%s", f.remuda("model", "status", "m"))
	f.undrained(id)
	f.hot("m", 5)
}

// undrained ends a node's drain.
func (f *fleet) undrained(id string) {
	f.t.Helper()
	f.command("nomad", "node", "drain", "-disable", "-yes", id)
}

func (f *fleet) nodeID(name string) string {
	f.t.Helper()
	n, _, err := f.api.Node(f.t.Context(), name, api.QueryOptions{})
	require.NoError(f.t, err)
	return n.Node.ID
}

func nodeBlinks(t *testing.T, f *fleet) {
	victim, _ := f.fullest("m")
	names := f.hot("m", 5)
	before, _ := f.allocations("m")
	pid := f.client(victim)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	eventually(t, 2*time.Minute, "the node to be missed", func() error {
		n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
		if err == nil && n.Node.DownSince.IsZero() {
			err = errors.New("it is not")
		}
		return err
	})
	// Nomad takes a client back only after an update of its allocations that came after the node was
	// found missing. One that goes on in the same moment sends it too early, and never again.
	time.Sleep(2 * time.Second)
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, 4*time.Minute, "the node to be back", func() error {
		n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
		if err == nil && (!n.Node.DownSince.IsZero() || !n.Node.Ready) {
			err = fmt.Errorf("%+v", n.Node)
		}
		return err
	})
	require.Equal(t, names, f.hot("m", 5))
	// Nomad says of the allocations of a node that is back that they run once the client has sent its
	// next update. What was started anew keeps its new ID.
	eventually(t, 30*time.Second, "the same allocations", func() error {
		if after, _ := f.allocations("m"); !maps.Equal(before, after) {
			return fmt.Errorf("something was started anew: %v, had %v", after, before)
		}
		return nil
	})
}

func nodeLost(t *testing.T, f *fleet) {
	f.remuda("scale", "m", "4")
	names := f.hot("m", 4)
	victim, other := f.fullest("m")
	pid := f.client(victim)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	f.allOn("m", other, victim, 4)
	n, _, err := f.api.Node(t.Context(), victim, api.QueryOptions{})
	require.NoError(t, err)
	require.True(t, n.Node.WrittenOff)
	t.Logf("decisions: %v", f.decisions("m"))
	// It comes back: what still runs there is stopped, and it is used again.
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	after := f.hotWithin(5*time.Minute, "m", 4)
	require.False(t, slices.Equal(names, after))
	f.remuda("scale", "m", "6")
	f.hotWithin(5*time.Minute, "m", 6)
}
