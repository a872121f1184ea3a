package nomad_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/state"
)

func TestInventory(t *testing.T) {
	c, s := newClient(t)
	a100 := group("A100", "0", "GPU-b", "GPU-a")
	a100.Instances[1].Healthy, a100.Instances[1].HealthDescription = false, "XID 79: fallen off the bus"
	// Seats are sorted by number, whatever Nomad's order is.
	a100.Instances[2], a100.Instances[3] = a100.Instances[3], a100.Instances[2]
	official := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "T4", Instances: []*api.NodeDevice{{ID: "GPU-official", Healthy: true}}}
	fpga := &api.NodeDeviceResource{Vendor: "xilinx", Type: "fpga", Name: "x", Instances: []*api.NodeDevice{{ID: "F#0", Healthy: true}}}
	s.SetNode(node("2", a100, official, fpga, group("NVIDIA H100 80GB HBM3", "", "GPU-c")))
	s.SetNode(node("cpu-only"))
	s.SetNode(node("once"))
	for id, change := range map[string]func(*api.Node){
		"draining":   func(n *api.Node) { n.Drain = true },
		"strategy":   func(n *api.Node) { n.DrainStrategy = &api.DrainStrategy{} },
		"ineligible": func(n *api.Node) { n.SchedulingEligibility = api.NodeSchedulingIneligible },
		"emptied": func(n *api.Node) {
			n.SchedulingEligibility, n.LastDrain = api.NodeSchedulingIneligible, &api.DrainMetadata{Status: api.DrainStatusComplete}
		},
		"kept": func(n *api.Node) { // its drain was cancelled
			n.SchedulingEligibility, n.LastDrain = api.NodeSchedulingIneligible, &api.DrainMetadata{Status: api.DrainStatusCanceled}
		},
		"starting": func(n *api.Node) { n.Status = api.NodeStatusInit },
		"down":     func(n *api.Node) { n.Status, n.StatusUpdatedAt = api.NodeStatusDown, 1700000000 },
		"away":     func(n *api.Node) { n.Status, n.StatusUpdatedAt = api.NodeStatusDisconnected, 1700000001 },
	} {
		n := node(id, group("H100", "", "GPU-"+id))
		change(n)
		s.SetNode(n)
	}
	nodes, err := c.Inventory(t.Context(), "once", "never")
	require.NoError(t, err)
	const memory = 81559 << 20
	by := map[string]state.Node{}
	var ids []string
	for _, n := range nodes {
		by[n.ID] = n
		ids = append(ids, n.ID)
	}
	require.Equal(t, []string{"2", "away", "down", "draining", "emptied", "ineligible", "kept", "once", "starting", "strategy"}, ids)
	require.Equal(t, state.Node{
		ID: "2", Name: "name-2", Datacenter: "dc1", Pool: "gpu", Ready: true, HostMemory: 1 << 30, CPU: 8000,
		GPUs: []state.GPU{
			{UUID: "GPU-a", Model: "A100", Clique: "0", Memory: memory, Seats: []string{"GPU-a#0", "GPU-a#1"}, Healthy: true},
			{UUID: "GPU-b", Model: "A100", Clique: "0", Memory: memory, Seats: []string{"GPU-b#0", "GPU-b#1"}, Reason: "XID 79: fallen off the bus"},
			{UUID: "GPU-c", Model: "NVIDIA H100 80GB HBM3", Memory: memory, Seats: []string{"GPU-c#0", "GPU-c#1"}, Healthy: true},
		},
	}, by["2"])
	for id, want := range map[string]struct {
		draining bool
		lost     time.Time
	}{
		"draining": {true, time.Time{}}, "strategy": {true, time.Time{}}, "emptied": {true, time.Time{}}, "kept": {}, "ineligible": {}, "starting": {},
		"down": {false, time.Unix(1700000000, 0).UTC()}, "away": {false, time.Unix(1700000001, 0).UTC()},
	} {
		require.False(t, by[id].Ready, id)
		require.Equal(t, want.draining, by[id].Draining, id)
		require.Equal(t, want.lost, by[id].DownSince, id)
	}
	require.Empty(t, by["once"].GPUs)
}

func TestInventoryFaults(t *testing.T) {
	t.Parallel()
	for what, broken := range faultyAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s := newFaultyClient(t, what, 2*time.Second)
			s.SetNode(node("1", group("H100", "", "GPU-1")))
			s.Break(broken)
			_, err := c.Inventory(t.Context())
			require.ErrorIs(t, err, nomad.ErrUnreachable)
			s.Break(func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path != "/v1/nodes" && broken(w, r) })
			_, err = c.Inventory(t.Context())
			require.ErrorIs(t, err, nomad.ErrUnreachable, "the node is unread")
			s.Break(nil)
			nodes, err := c.Inventory(t.Context())
			require.NoError(t, err)
			require.Len(t, nodes, 1)
		})
	}
	t.Run("forgotten meanwhile", func(t *testing.T) {
		c, s := newClient(t)
		s.SetNode(node("1", group("H100", "", "GPU-1")))
		s.SetNode(node("2", group("H100", "", "GPU-2")))
		s.Break(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v1/node/2" {
				http.Error(w, "node not found", http.StatusNotFound)
				return true
			}
			return false
		})
		nodes, err := c.Inventory(t.Context())
		require.NoError(t, err)
		require.Len(t, nodes, 1)
	})
	t.Run("no token", func(t *testing.T) {
		c, s := newClient(t)
		s.Break(func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return true
		})
		_, err := c.Inventory(t.Context())
		require.ErrorIs(t, err, nomad.ErrDenied)
		require.ErrorContains(t, err, "list nodes: denied by Nomad: Permission denied (403)")
	})
	t.Run("cancelled", func(t *testing.T) {
		c, s := newClient(t)
		s.Break(faultyAnswers["hang"])
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Inventory(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, nomad.ErrUnreachable, "the caller gave up, not Nomad")
	})
}

func watchNodes(t *testing.T, c *nomad.Client) *watched[[]state.Node] {
	w := newWatched[[]state.Node]()
	follow(t, c, w.ended, func(nodes []state.Node, _ map[string]error) { w.update(nodes) }, w.lostIt)
	return w
}

func follow(t *testing.T, c *nomad.Client, ended chan error, update func([]state.Node, map[string]error), lost func(error)) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- c.WatchNodes(ctx, nil, update, lost) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, next(t, ended, "end of the watch"), context.Canceled)
	})
}

// inventory is what a watch of nodes calls update with: the IDs of those that were read, and
// why the others were not.
type inventory struct {
	read   []string
	unread map[string]error
}

// TestOneNodeThatCannotBeRead: the others are read all the same, before and after, and it is
// unread until it can be read again.
func TestOneNodeThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for what, broken := range faultyAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s := newFaultyClient(t, what, 100*time.Millisecond)
			w := newWatched[inventory]()
			follow(t, c, w.ended, func(nodes []state.Node, unread map[string]error) {
				i := inventory{unread: unread}
				for _, n := range nodes {
					i.read = append(i.read, n.ID)
				}
				w.update(i)
			}, w.lostIt)
			until := func(read, unread []string) inventory {
				t.Helper()
				for {
					i := next(t, w.updates, fmt.Sprintf("inventory with %v and without %v", read, unread))
					if slices.Equal(read, i.read) && slices.Equal(unread, slices.Sorted(maps.Keys(i.unread))) {
						return i
					}
				}
			}
			until(nil, nil)
			s.Break(func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == "/v1/node/2" && broken(w, r) })
			s.SetNode(node("1", group("H100", "", "GPU-1")))
			s.SetNode(node("2", group("H100", "", "GPU-2")))
			until([]string{"1"}, []string{"2"})
			s.SetNode(node("3", group("H100", "", "GPU-3")))
			i := until([]string{"1", "3"}, []string{"2"})
			require.ErrorIs(t, i.unread["2"], nomad.ErrUnreachable)
			require.ErrorContains(t, i.unread["2"], "read node 2")

			s.Break(nil)
			until([]string{"1", "2", "3"}, nil)
			s.Break(func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == "/v1/node/2" && broken(w, r) })
			down := node("2", group("H100", "", "GPU-2"))
			down.Status = api.NodeStatusDown
			s.SetNode(down)
			until([]string{"1", "3"}, []string{"2"})
			s.RemoveNode("2")
			until([]string{"1", "3"}, nil)
		})
	}
}

func TestWatchNodes(t *testing.T) {
	c, s := newClient(t)
	w := watchNodes(t, c)
	require.Empty(t, next(t, w.updates, "empty inventory"))
	s.SetNode(node("1", group("H100", "", "GPU-1")))
	require.Len(t, next(t, w.updates, "first node"), 1)
	s.SetNode(node("cpu"))
	s.SetNode(node("2", group("H100", "", "GPU-2")))
	require.Len(t, next(t, w.updates, "second node"), 2)

	// Only what has changed is read again.
	before := count(s.Served(), "GET /v1/node/1")
	sick := node("2", group("H100", "", "GPU-2"))
	sick.NodeResources.Devices[0].Instances[0].Healthy = false
	s.SetNode(sick)
	require.False(t, next(t, w.updates, "sick GPU")[1].GPUs[0].Healthy)
	require.Equal(t, before, count(s.Served(), "GET /v1/node/1"))

	// A plugin that is gone leaves a node without GPUs, a node that is gone none.
	s.SetNode(node("2"))
	nodes := next(t, w.updates, "node without its plugin")
	require.Len(t, nodes, 2)
	require.Empty(t, nodes[1].GPUs)
	s.RemoveNode("2")
	require.Len(t, next(t, w.updates, "node that is gone"), 1)

	// What says nothing new is not told.
	s.SetNode(node("cpu"))
	s.SetNode(node("3", group("H100", "", "GPU-3")))
	require.Len(t, next(t, w.updates, "third node"), 2)
	require.Empty(t, w.lost)
}

func TestWatchNodesSurvives(t *testing.T) {
	t.Parallel()
	for what, broken := range faultyAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s := newFaultyClient(t, what, 2*time.Second)
			s.SetNode(node("1", group("H100", "", "GPU-1")))
			w := watchNodes(t, c)
			require.Len(t, next(t, w.updates, "inventory"), 1)
			s.Break(broken)
			require.ErrorIs(t, next(t, w.lost, "loss"), nomad.ErrUnreachable)
			s.SetNode(node("2", group("H100", "", "GPU-2")))
			s.Break(nil)
			require.Len(t, next(t, w.updates, "inventory after the outage"), 2)
			require.Empty(t, w.lost, "one outage is told once")

			// The same nodes after an outage are told all the same.
			s.Break(broken)
			next(t, w.lost, "second loss")
			s.Break(nil)
			require.Len(t, next(t, w.updates, "inventory after the second outage"), 2)
		})
	}
	t.Run("a server that is none of Nomad's", func(t *testing.T) {
		c, s := newClient(t)
		s.Break(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Write([]byte("[]"))
			return true
		})
		w := watchNodes(t, c)
		require.ErrorContains(t, next(t, w.lost, "loss"), "no X-Nomad-Index")
		require.Empty(t, w.updates)
	})
	t.Run("a Nomad that never had anything", func(t *testing.T) {
		c, s := newClient(t)
		s.Break(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("index") != "" {
				select {
				case <-r.Context().Done():
				case <-t.Context().Done():
				}
				return true
			}
			w.Header().Set("X-Nomad-Index", "0")
			w.Header().Set("X-Nomad-LastContact", "0")
			w.Header().Set("X-Nomad-KnownLeader", "true")
			w.Write([]byte("[]"))
			return true
		})
		w := watchNodes(t, c)
		require.Empty(t, next(t, w.updates, "empty inventory"))
		require.Empty(t, w.lost)
	})
	t.Run("index going back", func(t *testing.T) {
		c, s := newClient(t)
		one := node("1", group("H100", "", "GPU-1"))
		s.SetNode(one)
		s.SetNode(node("2", group("H100", "", "GPU-2")))
		w := watchNodes(t, c)
		require.Len(t, next(t, w.updates, "inventory"), 2)
		// The restored server has another node 1 with the same index.
		s.Break(faultyAnswers["503"])
		next(t, w.lost, "loss")
		other := node("1", group("B200", "", "GPU-9"))
		s.SetNode(other)
		s.RemoveNode("2")
		other.ModifyIndex = 11
		s.Restore(3)
		s.Break(nil)
		for {
			if n := next(t, w.updates, "restored inventory"); len(n) == 1 && n[0].GPUs[0].UUID == "GPU-9" {
				break
			}
		}
		s.SetNode(node("4", group("H100", "", "GPU-4")))
		require.Len(t, next(t, w.updates, "inventory after it"), 2, "changes are followed from the lower index on")
	})
}
