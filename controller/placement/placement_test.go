package placement_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/state"
)

const gib = int64(1) << 30

// node has GPUs "<id>-G0" and on, with seats "<id>-G0#0" and on.
func node(id string, gpus, seats int, memory int64, edit ...func(*state.Node)) *state.Node {
	n := &state.Node{ID: id, Name: id, Ready: true, HostMemory: 1000 * gib}
	for g := range gpus {
		gpu := state.GPU{UUID: fmt.Sprintf("%s-G%d", id, g), Model: "H100", Clique: "c", Memory: memory, Healthy: true}
		for s := range seats {
			gpu.Seats = append(gpu.Seats, fmt.Sprintf("%s#%d", gpu.UUID, s))
		}
		n.GPUs = append(n.GPUs, gpu)
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func request(gpus int, memory int64, edit ...func(*placement.Request)) placement.Request {
	r := placement.Request{Model: "m", Variant: &state.Variant{Name: "v", GPUs: gpus, Memory: memory, HostMemory: 7, SleepMemory: 0}}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func anybody(*placement.Tenant) bool { return true }

func evicting(r *placement.Request) { r.MayEvict = anybody }

func config() placement.Config {
	return placement.Config{Rates: placement.DefaultRates(), WarmShare: 0.9}
}

func fleet(nodes []*state.Node, tenants ...placement.Tenant) *placement.Fleet {
	f := placement.NewFleet(nodes, config())
	for _, t := range tenants {
		f.Put(t)
	}
	return f
}

// hot is a tenant with bytes of each of the GPUs, on a seat of each: "<gpu>#<seat>".
func hot(name, node string, bytes int64, seats ...string) placement.Tenant {
	t := placement.Tenant{Name: name, Node: node, Model: name, Holds: state.Holding{Seats: seats, Memory: map[string]int64{}}}
	for _, s := range seats {
		t.Holds.Memory[s[:len(s)-2]] = bytes
	}
	return t
}

// warm is a tenant that sleeps.
func warm(name, node string, host, sleep int64, seats ...string) placement.Tenant {
	t := hot(name, node, sleep, seats...)
	t.Holds.HostMemory = host
	return t
}

// placed is the placement of a tenant.
func placed(t placement.Tenant) state.Placement {
	return state.Placement{Node: t.Node, Seats: t.Holds.Seats, Memory: t.Holds.Memory}
}

// ways of a HOT one: WARM at a cost, where it is below 0 not at all, and COLD.
func ways(t placement.Tenant, toWarm, toCold float64, host int64) placement.Tenant {
	if toWarm >= 0 {
		t.Ways = append(t.Ways, placement.Way{To: state.GoalWarm, Holds: state.Holding{Seats: t.Holds.Seats, HostMemory: host}, Cost: toWarm})
	}
	t.Ways = append(t.Ways, placement.Way{To: state.GoalCold, Cost: toCold})
	return t
}

func cold(t placement.Tenant, cost float64) placement.Tenant { return ways(t, -1, cost, 0) }

func evicted(c placement.Choice) []string {
	var out []string
	for _, e := range c.Evict {
		out = append(out, e.Tenant+" "+string(e.To))
	}
	return out
}

// seats numbers, as sleeping placements have them.
func asleep(t placement.Tenant, gpus ...string) placement.Warm {
	p := state.Placement{Node: t.Node, Seats: t.Holds.Seats, Memory: map[string]int64{}, HostMemory: t.Holds.HostMemory}
	for _, g := range gpus {
		p.Memory[g] = 1
	}
	return placement.Warm{Tenant: t.Name, Placement: p}
}

// A place where every WARM replica could still wake is better than one that fits better. It costs nothing
// else: not a second until the new replica serves, and no eviction.
func TestRoomToWakeIsLeft(t *testing.T) {
	t.Parallel()
	sleeper := warm("w", "a", 5, 1, "a-G0#0")
	sleeper.Woken = map[string]int64{"a-G0": 60}
	elsewhere := sleeper
	elsewhere.Woken = map[string]int64{"a-G1": 60}
	onDisk := func(r *placement.Request) { r.OnDisk = map[string]bool{"a": true} }
	one, two := []*state.Node{node("a", 2, 4, 80)}, []*state.Node{node("a", 2, 4, 80), node("b", 1, 4, 80)}
	busy := hot("h", "a", 70, "a-G1#0")
	for _, tc := range []struct {
		name    string
		nodes   []*state.Node
		request placement.Request
		tenants []placement.Tenant
		want    string
		left    string
	}{
		{"the empty GPU", one, request(1, 40), []placement.Tenant{sleeper}, "a-G1#0", "40"},
		{"beside the one that could wake", one, request(1, 20), []placement.Tenant{sleeper}, "a-G0#1", "59"},
		{"the only free GPU", one, request(1, 40), []placement.Tenant{sleeper, busy}, "a-G0#1", "39"},
		{"both", one, request(2, 40), []placement.Tenant{sleeper}, "a-G0#1 a-G1#0", "39"},
		{"beside one that wakes on another GPU", one, request(1, 40), []placement.Tenant{elsewhere}, "a-G0#1", "39"},
		{"another node", two, request(1, 40), []placement.Tenant{sleeper, busy}, "b-G0#0", "40"},
		{"not if only that one has the weights", two, request(1, 40, onDisk), []placement.Tenant{sleeper, busy}, "a-G0#1", "39"},
	} {
		got, no := fleet(tc.nodes, tc.tenants...).Place(tc.request)
		require.Nil(t, no, tc.name)
		require.Equal(t, tc.want, strings.Join(got.Placement.Seats, " "), tc.name)
		require.Equal(t, tc.left, got.Inputs["memory_left"], tc.name)
		require.Empty(t, got.Evict, tc.name)
	}
}

func TestBestFit(t *testing.T) {
	t.Parallel()
	pair := func(r *placement.Request) { r.Failover = true }
	onDisk := func(nodes ...string) func(*placement.Request) {
		return func(r *placement.Request) {
			r.OnDisk = map[string]bool{}
			for _, n := range nodes {
				r.OnDisk[n] = true
			}
		}
	}
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprint("x", i)
	}
	for _, c := range []struct {
		name    string
		nodes   []*state.Node
		tenants []placement.Tenant
		request placement.Request
		want    []string // seats
	}{
		{"the first of equals", []*state.Node{node("b", 2, 2, 10), node("a", 2, 2, 10)}, nil, request(1, 5), []string{"a-G0#0"}},
		{"the smallest GPU that holds it", []*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 24), node("c", 1, 2, 16)}, nil, request(1, 20), []string{"b-G0#0"}},
		{"the fullest GPU of a node, on its free seat", []*state.Node{node("a", 3, 2, 10)}, []placement.Tenant{hot("o", "a", 4, "a-G1#0")}, request(1, 5), []string{"a-G1#1"}},
		{"exactly the memory that is free", []*state.Node{node("a", 1, 2, 10)}, []placement.Tenant{hot("o", "a", 4, "a-G0#0")}, request(1, 6), []string{"a-G0#1"}},
		{"the fewest seats left, where the memory is the same", []*state.Node{node("a", 1, 4, 10), node("b", 1, 2, 10)}, nil, request(1, 5), []string{"b-G0#0"}},
		{"a pair has two seats of one GPU", []*state.Node{node("a", 2, 2, 10)}, []placement.Tenant{hot("o", "a", 1, "a-G0#0")}, request(1, 5, pair), []string{"a-G1#0", "a-G1#1"}},
		{"a pair on two GPUs", []*state.Node{node("a", 2, 3, 10)}, nil, request(2, 5, pair), []string{"a-G0#0", "a-G0#1", "a-G1#0", "a-G1#1"}},
		{"a set in one clique", []*state.Node{node("a", 4, 1, 10, func(n *state.Node) { n.GPUs[1].Clique, n.GPUs[3].Clique = "d", "d" })}, []placement.Tenant{hot("o", "a", 0, "a-G0#0")}, request(2, 5), []string{"a-G1#0", "a-G3#0"}},
		{"a set of one model", []*state.Node{node("a", 3, 1, 10, func(n *state.Node) { n.GPUs[0].Model = "A100" })}, nil, request(2, 5), []string{"a-G1#0", "a-G2#0"}},
		{"a set on one node", []*state.Node{node("a", 3, 1, 10), node("b", 4, 1, 10)}, nil, request(4, 5), []string{"b-G0#0", "b-G1#0", "b-G2#0", "b-G3#0"}},
		{"the model that was asked for", []*state.Node{node("a", 2, 1, 10, func(n *state.Node) { n.GPUs[1].Model = "B200" })}, nil, request(1, 5, func(r *placement.Request) { r.Variant.GPUModel = "B200" }), []string{"a-G1#0"}},
		{"GPUs in good order", []*state.Node{node("a", 3, 1, 10, func(n *state.Node) { n.GPUs[0].Healthy, n.GPUs[1].Cordoned = false, true })}, nil, request(1, 5), []string{"a-G2#0"}},
		{"a node with the weights before one that fits better", []*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 5)}, nil, request(1, 5, onDisk("a")), []string{"a-G0#0"}},
		{"a node with the weights, where many others have them", []*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 5)}, nil, request(1, 5, onDisk(append(many, "a")...)), []string{"a-G0#0"}},
		{"no node with the weights where they are full", []*state.Node{node("a", 1, 2, 4), node("b", 1, 2, 5)}, nil, request(1, 5, onDisk(append(many, "a")...)), []string{"b-G0#0"}},
		{"not an excluded node", []*state.Node{node("a", 1, 2, 5), node("b", 1, 2, 80)}, nil, request(1, 5, func(r *placement.Request) { r.Exclude = map[string]bool{"a": true} }), []string{"b-G0#0"}},
		{"not of another pool", []*state.Node{node("a", 1, 2, 5, func(n *state.Node) { n.CapacityPool = "cloud" }), node("b", 1, 2, 80)}, nil, request(1, 5), []string{"b-G0#0"}},
		{"the pool that was asked for", []*state.Node{node("a", 1, 2, 80, func(n *state.Node) { n.CapacityPool = "cloud" }), node("b", 1, 2, 5)}, nil, request(1, 5, func(r *placement.Request) { r.Pool = "cloud" }), []string{"a-G0#0"}},
		{"nodes that may be used", []*state.Node{
			node("a", 1, 1, 5, func(n *state.Node) { n.Ready = false }), node("b", 1, 1, 5, func(n *state.Node) { n.Draining = true }),
			node("c", 1, 1, 5, func(n *state.Node) { n.WrittenOff = true }), node("d", 1, 1, 80),
		}, nil, request(1, 5), []string{"d-G0#0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, no := fleet(c.nodes, c.tenants...).Place(c.request)
			require.Nil(t, no)
			require.Equal(t, placement.Free, got.Level)
			require.Equal(t, c.want, got.Placement.Seats)
			require.Equal(t, int64(7), got.Placement.HostMemory)
			require.Len(t, got.Placement.Memory, c.request.Variant.GPUs)
			for _, b := range got.Placement.Memory {
				require.Equal(t, c.request.Variant.Memory, b)
			}
			require.Contains(t, got.Why, got.Placement.Node)
			require.Equal(t, got.Placement.Node, got.Inputs["node"])
		})
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	f := fleet([]*state.Node{node("a", 4, 2, 10)}, hot("o", "a", 6, "a-G1#0"), hot("p", "a", 10, "a-G2#0"))
	got, no := f.Place(request(1, 4, func(r *placement.Request) { r.Variant.Reach = 2 }))
	require.Nil(t, no)
	require.Equal(t, map[string]int64{"a-G1": 4}, got.Placement.Memory)
	require.Equal(t, []string{"a-G1#1", "a-G2#1"}, got.Placement.Seats, "the second seat where no other could be, the memory being full")

	_, no = f.Place(request(1, 4, func(r *placement.Request) { r.Variant.Reach = 5 }))
	require.NotNil(t, no)
	require.Equal(t, map[string]string{"a": "1 GPU with too little free memory (at most 0 B), only 4 GPUs with a free seat in one clique, of the 5 needed"}, no.Nodes())
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	taken := hot("o", "a", 5, "a-G0#0")
	for _, c := range []struct {
		name    string
		node    *state.Node
		tenants []placement.Tenant
		request placement.Request
		want    string
	}{
		{"not ready", node("a", 1, 1, 9, func(n *state.Node) { n.Ready = false }), nil, request(1, 5), "not ready"},
		{"excluded", node("a", 1, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Exclude = map[string]bool{"a": true} }), "excluded because a replica failed there"},
		{"no GPUs", node("a", 0, 0, 0), nil, request(1, 5), "no GPUs"},
		{"another model", node("a", 2, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Variant.GPUModel = "B200" }), "2 GPUs of another model than B200"},
		{"cordoned", node("a", 1, 1, 9, func(n *state.Node) { n.GPUs[0].Cordoned = true }), nil, request(1, 5), "1 GPU out of use (cordoned)"},
		{"ill", node("a", 1, 1, 9, func(n *state.Node) { n.GPUs[0].Healthy, n.GPUs[0].Reason = false, "XID 79" }), nil, request(1, 5), "1 GPU out of use (XID 79)"},
		{"no seat", node("a", 1, 1, 9), []placement.Tenant{taken}, request(1, 5), "1 GPU with too few free seats"},
		{"no second seat", node("a", 1, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Failover = true }), "1 GPU with too few free seats"},
		{"no memory", node("a", 1, 2, 9), []placement.Tenant{taken}, request(1, 5), "1 GPU with too little free memory (at most 4 B)"},
		{"no clique", node("a", 2, 1, 9, func(n *state.Node) { n.GPUs[1].Clique = "d" }), nil, request(2, 5), "only 1 GPU with room in one clique"},
		{"larger than any node", node("a", 2, 1, 9), nil, request(4, 5, evicting), "only 2 GPUs with room in one clique"},
		{"no valid degree", node("a", 4, 1, 9), nil, request(3, 5), "a replica on 3 GPUs: the number of GPUs (tensor-parallel degree) must be 1, 2, 4, 8 or 16"},
		{"impossible even after evicting all", node("a", 1, 2, 9), []placement.Tenant{cold(taken, 1)}, request(1, 10, evicting),
			"1 GPU with too little free memory (at most 9 B), even after evicting 1 replica"},
		{"nothing may be evicted", node("a", 1, 2, 9), []placement.Tenant{cold(taken, 1)}, request(1, 9, func(r *placement.Request) { r.MayEvict = func(*placement.Tenant) bool { return false } }),
			"1 GPU with too little free memory (at most 4 B)"},
		{"no room in the node's memory", node("a", 1, 2, 9, func(n *state.Node) { n.HostMemory = 10 }),
			[]placement.Tenant{{Name: "o", Node: "a", Holds: taken.Holds, Ways: []placement.Way{{To: state.GoalWarm, Holds: state.Holding{Seats: taken.Holds.Seats, HostMemory: 10}, Cost: 1}}}},
			request(1, 9, evicting), "no room in the node's host memory for the replicas that would go WARM, even after evicting 1 replica"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, no := fleet([]*state.Node{c.node}, c.tenants...).Place(c.request)
			require.NotNil(t, no)
			require.Empty(t, got.Evict)
			require.Equal(t, map[string]string{"a": c.want}, no.Nodes())
			require.Regexp(t, "^no room for a replica of .*: a: "+regexp.QuoteMeta(c.want)+"$", no.Error())
		})
	}
	t.Run("grouped", func(t *testing.T) {
		t.Parallel()
		var nodes []*state.Node
		for i := range 6 {
			nodes = append(nodes, node(fmt.Sprintf("n%d", i), 1, 1, 80<<30, func(n *state.Node) { n.Draining = i == 2 }))
		}
		_, no := fleet(nodes).Place(request(2, 100<<30))
		require.Equal(t, "no room for a replica of m:v (2 GPUs with 1 seat and 100 GiB each): "+
			"n0, n1, n3 and 2 more: 1 GPU with too little free memory (at most 80 GiB); n2: draining", no.Error())
	})
	t.Run("of a thousand nodes, short", func(t *testing.T) {
		t.Parallel()
		var nodes []*state.Node
		for i := range 1000 {
			nodes = append(nodes, node(fmt.Sprintf("n%03d", i), 1, 1, int64(i)))
		}
		_, no := fleet(nodes).Place(request(1, 2000))
		require.Len(t, no.Nodes(), 1000)
		require.Less(t, len(no.Error()), 1000)
		require.Contains(t, no.Error(), "994 nodes for other reasons")
	})
	t.Run("no nodes", func(t *testing.T) {
		t.Parallel()
		_, no := fleet(nil).Place(request(1, 1))
		require.ErrorContains(t, asError(no), "there are no nodes with GPUs")
	})
	t.Run("nodes of one name", func(t *testing.T) {
		t.Parallel()
		_, no := fleet([]*state.Node{node("a", 0, 0, 0), node("b", 0, 0, 0, func(n *state.Node) { n.Name = "a" })}).Place(request(1, 1))
		require.Equal(t, map[string]string{"a": "no GPUs", "a b": "no GPUs"}, no.Nodes())
	})
}

func asError(r *placement.Refusal) error { return r }

func TestEviction(t *testing.T) {
	t.Parallel()
	a := func(gpus, seats int) []*state.Node { return []*state.Node{node("a", gpus, seats, 80*gib)} }
	small := []*state.Node{node("a", 2, 2, 80*gib, func(n *state.Node) { n.HostMemory = 100 * gib })}
	for _, c := range []struct {
		name    string
		nodes   []*state.Node
		tenants []placement.Tenant
		request placement.Request
		want    []string
		cost    float64
	}{
		{"the cheapest, not the fewest", a(1, 4), []placement.Tenant{
			cold(hot("big", "a", 50*gib, "a-G0#0"), 90), cold(hot("s1", "a", 15*gib, "a-G0#1"), 20), cold(hot("s2", "a", 15*gib, "a-G0#2"), 20),
		}, request(1, 30*gib, evicting), []string{"s1 cold", "s2 cold"}, 40},
		{"the fewest of those that cost the same", a(1, 4), []placement.Tenant{
			cold(hot("big", "a", 50*gib, "a-G0#0"), 40), cold(hot("s1", "a", 15*gib, "a-G0#1"), 20), cold(hot("s2", "a", 15*gib, "a-G0#2"), 20),
		}, request(1, 30*gib, evicting), []string{"big cold"}, 40},
		{"WARM, which is cheaper, where its seat is not needed", a(1, 2), []placement.Tenant{
			ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib),
		}, request(1, 40*gib, evicting), []string{"o warm"}, 3},
		{"COLD where its seat is needed", a(1, 1), []placement.Tenant{
			ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib),
		}, request(1, 40*gib, evicting), []string{"o cold"}, 60},
		{"no room in memory means COLD", []*state.Node{node("a", 1, 2, 80*gib, func(n *state.Node) { n.HostMemory = 70 * gib })}, []placement.Tenant{
			ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib),
		}, request(1, 40*gib, evicting), []string{"o cold"}, 60},
		{"room in memory at the cost of one that sleeps", small, []placement.Tenant{
			ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib), cold(warm("w", "a", 70*gib, 0, "a-G1#0"), 8), hot("x", "a", 80*gib, "a-G1#1"),
		}, request(1, 40*gib, evicting), []string{"o warm", "w cold"}, 11},
		{"no room in memory where who sleeps is dearer", small, []placement.Tenant{
			ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib), cold(warm("w", "a", 70*gib, 0, "a-G1#0"), 58), hot("x", "a", 80*gib, "a-G1#1"),
		}, request(1, 40*gib, evicting), []string{"o cold"}, 60},
		{"a tenant of two GPUs instead of one on each", a(2, 2), []placement.Tenant{
			cold(hot("two", "a", 40*gib, "a-G0#0", "a-G1#0"), 30), cold(hot("s1", "a", 40*gib, "a-G0#1"), 20), cold(hot("s2", "a", 40*gib, "a-G1#1"), 20),
		}, request(2, 40*gib, evicting), []string{"two cold"}, 30},
		{"one on each instead of a tenant of two GPUs", a(2, 2), []placement.Tenant{
			cold(hot("two", "a", 40*gib, "a-G0#0", "a-G1#0"), 50), cold(hot("s1", "a", 40*gib, "a-G0#1"), 20), cold(hot("s2", "a", 40*gib, "a-G1#1"), 20),
		}, request(2, 40*gib, evicting), []string{"s1 cold", "s2 cold"}, 40},
		{"in one clique", []*state.Node{node("a", 4, 1, 80*gib, func(n *state.Node) { n.GPUs[2].Clique, n.GPUs[3].Clique = "d", "d" })}, []placement.Tenant{
			cold(hot("g0", "a", gib, "a-G0#0"), 1), cold(hot("g1", "a", gib, "a-G1#0"), 50), cold(hot("g2", "a", gib, "a-G2#0"), 20), cold(hot("g3", "a", gib, "a-G3#0"), 20),
		}, request(2, 40*gib, evicting), []string{"g2 cold", "g3 cold"}, 40},
		{"nobody whom it may not", a(1, 2), []placement.Tenant{
			cold(hot("dedicated", "a", 40*gib, "a-G0#0"), 1), cold(hot("o", "a", 40*gib, "a-G0#1"), 50),
		}, request(1, 40*gib, func(r *placement.Request) {
			r.MayEvict = func(t *placement.Tenant) bool { return t.Model != "dedicated" }
		}), []string{"o cold"}, 50},
		{"nobody who has no way", a(1, 2), []placement.Tenant{
			hot("job", "a", 40*gib, "a-G0#0"), cold(hot("o", "a", 40*gib, "a-G0#1"), 50),
		}, request(1, 40*gib, evicting), []string{"o cold"}, 50},
		{"nobody where there is room", a(2, 2), []placement.Tenant{
			cold(hot("o", "a", 40*gib, "a-G0#0"), 0),
		}, request(1, 80*gib, evicting), nil, 0},
		{"for seats of a reach, too", a(2, 1), []placement.Tenant{
			cold(hot("o", "a", 40*gib, "a-G0#0"), 5),
		}, request(1, 80*gib, evicting, func(r *placement.Request) { r.Variant.Reach = 2 }), []string{"o cold"}, 5},
		{"the node where it costs least", []*state.Node{node("a", 1, 1, 80*gib), node("b", 1, 1, 80*gib)}, []placement.Tenant{
			cold(hot("x", "a", gib, "a-G0#0"), 30), cold(hot("y", "b", gib, "b-G0#0"), 20),
		}, request(1, 80*gib, evicting), []string{"y cold"}, 20},
		{"the first node by name, where all is equal, wherever it was looked first", []*state.Node{node("a", 1, 3, 80*gib), node("b", 1, 3, 80*gib)}, []placement.Tenant{
			hot("j", "a", 40*gib, "a-G0#0"), cold(hot("x", "a", 40*gib, "a-G0#1"), 20), hot("k", "b", 40*gib, "b-G0#0"), cold(hot("y", "b", 20*gib, "b-G0#1"), 20),
		}, request(1, 30*gib, evicting), []string{"x cold"}, 20},
		{"a node with the weights, where that saves more than it costs", []*state.Node{node("a", 1, 1, 80*gib), node("b", 1, 1, 80*gib)}, []placement.Tenant{
			cold(hot("x", "a", gib, "a-G0#0"), 30),
		}, request(1, 80*gib, evicting, func(r *placement.Request) { r.OnDisk = map[string]bool{"a": true} }), []string{"x cold"}, 30},
		{"no node with the weights, where that costs more than it saves", []*state.Node{node("a", 1, 1, 80*gib), node("b", 1, 1, 80*gib)}, []placement.Tenant{
			cold(hot("x", "a", gib, "a-G0#0"), 300),
		}, request(1, 80*gib, evicting, func(r *placement.Request) { r.OnDisk = map[string]bool{"a": true} }), nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := fleet(c.nodes, c.tenants...)
			got, no := f.Place(c.request)
			require.Nil(t, no)
			require.Equal(t, c.want, evicted(got))
			require.Equal(t, c.cost, got.Cost)
			level := placement.Full
			if c.want == nil {
				level = placement.Free
			}
			require.Equal(t, level, got.Level)
			for _, e := range got.Evict[:min(1, len(got.Evict))] {
				require.Contains(t, got.Why, e.Tenant+" to "+string(e.To))
			}
		})
	}
}

// TestLearned: what a search has shown about a group for one who may not evict everybody
// is not held against another who may.
func TestLearned(t *testing.T) {
	t.Parallel()
	f := fleet([]*state.Node{node("a", 1, 2, 80*gib), node("b", 1, 2, 80*gib)},
		cold(hot("x", "a", 40*gib, "a-G0#0"), 5), cold(hot("y", "a", 40*gib, "a-G0#1"), 50), cold(hot("z", "b", 80*gib, "b-G0#0"), 20))
	for _, c := range []struct{ spared, want string }{{"x", "z cold"}, {"", "x cold"}, {"z", "x cold"}, {"x", "z cold"}} {
		got, no := f.Place(request(1, 40*gib, func(r *placement.Request) {
			r.MayEvict = func(t *placement.Tenant) bool { return t.Name != c.spared }
		}))
		require.Nil(t, no)
		require.Equal(t, []string{c.want}, evicted(got))
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	weights := func(r *placement.Request) { r.Variant.Weights = 60 * gib }
	sleeper := cold(warm("w", "a", 60*gib, gib, "a-G0#0"), 90)
	wakes := func(ws ...placement.Warm) func(*placement.Request) {
		return func(r *placement.Request) { r.Warm = ws }
	}
	nodes := []*state.Node{node("a", 2, 2, 80*gib), node("b", 2, 2, 80*gib)}

	t.Run("WARM beats FREE", func(t *testing.T) {
		t.Parallel()
		got, no := fleet(nodes, sleeper).Place(request(1, 80*gib, weights, evicting, wakes(asleep(sleeper, "a-G0"))))
		require.Nil(t, no)
		require.Equal(t, placement.CachedAndFree, got.Level)
		require.Equal(t, "w", got.Wake)
		require.Equal(t, map[string]int64{"a-G0": 80 * gib}, got.Placement.Memory, "what it holds asleep is its own")
		require.Equal(t, []string{"a-G0#0"}, got.Placement.Seats)
		require.Equal(t, 60*gib, got.Placement.HostMemory)
		require.InDelta(t, config().Rates.WarmSeconds(60*gib), got.Seconds, 1e-6)
		require.Contains(t, got.Why, "w is WARM")
	})
	// Cold takes 40 s, 64 GB at 2.5 GB/s and at 1 GB/s, about 130 s; the wake about 4 s.
	for cost, wake := range map[float64]string{100: "w", 140: ""} {
		t.Run(fmt.Sprint("WARM and full against cold and free, at ", cost), func(t *testing.T) {
			t.Parallel()
			f := fleet(nodes, sleeper, cold(hot("o", "a", 40*gib, "a-G0#1"), cost))
			got, no := f.Place(request(1, 78*gib, weights, evicting, wakes(asleep(sleeper, "a-G0"))))
			require.Nil(t, no)
			require.Equal(t, wake, got.Wake)
			if wake != "" {
				require.Equal(t, placement.CachedAndFull, got.Level)
				require.Equal(t, []string{"o cold"}, evicted(got))
				return
			}
			require.Equal(t, placement.Free, got.Level)
			require.Empty(t, got.Evict)
		})
	}
	t.Run("on another GPU that it reaches", func(t *testing.T) {
		t.Parallel()
		far := cold(warm("w", "a", 60*gib, 0, "a-G0#0", "a-G1#0"), 90)
		f := fleet(nodes, far, hot("o", "a", 40*gib, "a-G0#1"))
		r := request(1, 80*gib, weights, wakes(asleep(far, "a-G0")))
		got, no := f.Place(r)
		require.Nil(t, no)
		require.Equal(t, "w", got.Wake)
		require.Equal(t, map[string]int64{"a-G1": 80 * gib}, got.Placement.Memory)
		require.Equal(t, far.Holds.Seats, got.Placement.Seats)
		require.Contains(t, got.Why, "other GPUs")

		f.Drop("o")
		got, no = f.Place(r)
		require.Nil(t, no)
		require.Equal(t, map[string]int64{"a-G0": 80 * gib}, got.Placement.Memory, "where it slept, all else being equal")
	})
	t.Run("not on a GPU that is ill, nor where it is excluded, nor when the fleet does not know it", func(t *testing.T) {
		t.Parallel()
		ill := node("a", 2, 2, 80*gib, func(n *state.Node) { n.GPUs[0].Cordoned = true })
		for _, c := range []struct {
			f    *placement.Fleet
			edit func(*placement.Request)
		}{
			{fleet([]*state.Node{ill, nodes[1]}, sleeper), func(*placement.Request) {}},
			{fleet(nodes, sleeper), func(r *placement.Request) { r.Exclude = map[string]bool{"a": true} }},
			{fleet(nodes), func(*placement.Request) {}},
		} {
			got, no := c.f.Place(request(1, 10*gib, weights, wakes(asleep(sleeper, "a-G0")), c.edit))
			require.Nil(t, no)
			require.Empty(t, got.Wake)
		}
	})
	t.Run("it is not evicted for its own wake", func(t *testing.T) {
		t.Parallel()
		f := fleet(nodes[:1], cold(sleeper, 0), hot("o", "a", 79*gib, "a-G0#1"), hot("p", "a", 80*gib, "a-G1#1"))
		_, no := f.Place(request(1, 80*gib, weights, evicting, wakes(asleep(sleeper, "a-G0"))))
		require.NotNil(t, no)
	})
}

// TestFuture: what is on its way out counts now and not later, and a reservation counts
// in both.
func TestFuture(t *testing.T) {
	t.Parallel()
	n := node("a", 1, 2, 80*gib)
	going := hot("going", "a", 80*gib, "a-G0#0")
	going.After = &state.Holding{Seats: going.Holds.Seats}
	f := fleet([]*state.Node{n}, going)
	r := request(1, 60*gib)
	_, no := f.Place(r)
	require.NotNil(t, no)
	r.Future = true
	c, no := f.Place(r)
	require.Nil(t, no)
	require.Equal(t, []string{"a-G0#1"}, c.Placement.Seats)

	f.Reserve(c, "waits", "m")
	_, no = f.Place(r)
	require.NotNil(t, no)
	f.Drop("going")
	_, no = f.Place(request(1, 30*gib))
	require.NotNil(t, no, "the place is kept")
	f.Drop("waits")
	_, no = f.Place(request(1, 80*gib))
	require.Nil(t, no)
}

// TestReserveEvicts: what a choice evicts is on its way from the reservation on, and is
// nobody's victim any more.
func TestReserveEvicts(t *testing.T) {
	t.Parallel()
	f := fleet([]*state.Node{node("a", 1, 3, 80*gib)}, ways(hot("o", "a", 70*gib, "a-G0#0"), 3, 60, 70*gib))
	c, no := f.Place(request(1, 40*gib, evicting))
	require.Nil(t, no)
	f.Reserve(c, "waits", "m")
	_, no = f.Place(request(1, 40*gib+1, evicting, func(r *placement.Request) { r.Future = true }))
	require.NotNil(t, no)
	c, no = f.Place(request(1, 40*gib, evicting, func(r *placement.Request) { r.Future = true }))
	require.Nil(t, no)
	require.Equal(t, []string{"a-G0#2"}, c.Placement.Seats)
	require.Empty(t, c.Evict)
	require.Equal(t, 110*gib, f.Usage("a").Memory["a-G0"], "both count for now")
}

func TestHoldWake(t *testing.T) {
	t.Parallel()
	sleeper := warm("w", "a", 60*gib, gib, "a-G0#0", "a-G1#0")
	f := fleet([]*state.Node{node("a", 2, 2, 80*gib)}, sleeper, hot("o", "a", 10*gib, "a-G0#1"))
	r := request(1, 80*gib, func(r *placement.Request) { r.Warm = []placement.Warm{asleep(sleeper, "a-G0")} })
	c, no := f.Place(r)
	require.Nil(t, no)
	f.Hold("", c, "m")
	require.Equal(t, map[string]int64{"a-G0": 10 * gib, "a-G1": 80 * gib}, f.Usage("a").Memory)
	require.Equal(t, 60*gib, f.Usage("a").HostMemory)
	require.Equal(t, map[string]string{"a-G0#0": "w", "a-G1#0": "w", "a-G0#1": "o"}, f.Usage("a").Seats)
	_, no = f.Place(request(1, 1, func(r *placement.Request) { r.Variant.GPUs = 2 }))
	require.NotNil(t, no)
}

func TestUsageOfStrangers(t *testing.T) {
	t.Parallel()
	f := fleet(nil, hot("o", "gone", 5, "gone-G0#0"))
	require.Equal(t, int64(5), f.Usage("gone").Memory["gone-G0"])
	require.Empty(t, f.Usage("nowhere").Seats)
	f.Drop("o")
	f.Drop("o")
	require.Empty(t, f.Usage("gone").Seats)
	// A tenant of GPUs and seats that the node has no more takes nothing of the others.
	f = fleet([]*state.Node{node("a", 1, 1, 10)}, hot("o", "a", 5, "a-G7#0", "a-G0#5"))
	_, no := f.Place(request(1, 5))
	require.Nil(t, no)
}

func TestTogether(t *testing.T) {
	t.Parallel()
	anywhere, all := []string{"", ""}, math.Inf(1)
	t.Run("all find a place where the first could take that of the second", func(t *testing.T) {
		t.Parallel()
		f := fleet([]*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 60)})
		got := f.Together([]placement.Request{request(1, 50), request(1, 70)}, anywhere, all)
		require.Equal(t, "b", got[0].Placement.Node)
		require.Equal(t, "a", got[1].Placement.Node)
		// The one that takes any GPU would fit best on the A100.
		f = fleet([]*state.Node{node("a", 1, 2, 70, func(n *state.Node) { n.GPUs[0].Model = "A100" }), node("h", 1, 2, 80)})
		got = f.Together([]placement.Request{request(1, 65), request(1, 60, func(r *placement.Request) { r.Variant.GPUModel = "A100" })}, anywhere, all)
		require.Equal(t, "h", got[0].Placement.Node)
		require.Equal(t, "a", got[1].Placement.Node)
	})
	t.Run("what is evicted for two is evicted once", func(t *testing.T) {
		t.Parallel()
		// Alone, each would take the cheap one of its GPU.
		f := fleet([]*state.Node{node("a", 2, 4, 80)},
			cold(hot("two", "a", 40, "a-G0#0", "a-G1#0"), 25), cold(hot("s1", "a", 40, "a-G0#1"), 20), cold(hot("s2", "a", 40, "a-G1#1"), 20))
		rs := []placement.Request{request(1, 40, evicting), request(1, 40, evicting)}
		got := f.Together(rs, anywhere, all)
		require.Equal(t, []string{"two cold"}, append(evicted(got[0]), evicted(got[1])...))
		require.Equal(t, 25.0, got[0].Cost+got[1].Cost)
		require.NotEqual(t, got[0].Placement.Seats, got[1].Placement.Seats)
		total := got[0].Seconds + got[1].Seconds + 25
		require.Nil(t, f.Together(rs, anywhere, total), "nothing is cheaper")
		require.NotNil(t, f.Together(rs, anywhere, total+0.001))
	})
	t.Run("there is no place for all", func(t *testing.T) {
		t.Parallel()
		f := fleet([]*state.Node{node("a", 1, 4, 80)}, cold(hot("o", "a", 80, "a-G0#0"), 10))
		require.Nil(t, f.Together([]placement.Request{request(1, 80, evicting), request(1, 79, evicting)}, anywhere, all))
		require.Nil(t, f.Together([]placement.Request{request(1, 81, evicting)}, []string{""}, all))
		require.Nil(t, f.Together([]placement.Request{request(3, 1)}, []string{""}, all), "no tensor-parallel degree")
		require.Nil(t, f.Together(nil, nil, all))
		require.Equal(t, map[string]int64{"a-G0": 80}, f.Usage("a").Memory, "the fleet is as it was")
	})
	t.Run("one WARM replica wakes once", func(t *testing.T) {
		t.Parallel()
		w := warm("w", "a", 10, 0, "a-G0#0")
		r := request(1, 40, func(r *placement.Request) { r.Warm = []placement.Warm{asleep(w, "a-G0")} })
		got := fleet([]*state.Node{node("a", 2, 2, 80)}, w).Together([]placement.Request{r, r}, anywhere, all)
		require.ElementsMatch(t, []placement.Level{placement.CachedAndFree, placement.Free}, []placement.Level{got[0].Level, got[1].Level})
	})
	t.Run("what leaves is gone", func(t *testing.T) {
		t.Parallel()
		leaving := hot("o", "a", 80, "a-G0#0")
		leaving.After = &state.Holding{}
		f := fleet([]*state.Node{node("a", 1, 1, 80)}, leaving)
		got := f.Together([]placement.Request{request(1, 60)}, []string{"a"}, all)
		require.Equal(t, []string{"a-G0#0"}, got[0].Placement.Seats)
		require.True(t, f.Fits(&got[0], true))
		require.False(t, f.Fits(&got[0], false), "it is there now")
	})
}

func TestFits(t *testing.T) {
	t.Parallel()
	w := warm("w", "a", 10, 2, "a-G1#0")
	f := fleet([]*state.Node{node("a", 2, 2, 80), node("down", 1, 1, 80, func(n *state.Node) { n.Ready = false })}, cold(hot("o", "a", 60, "a-G0#0"), 5), w)
	at := func(bytes int64, edit func(*placement.Choice), seats ...string) bool {
		c := placement.Choice{Placement: placed(hot("", "a", bytes, seats...))}
		if edit != nil {
			edit(&c)
		}
		return f.Fits(&c, false)
	}
	require.True(t, at(20, nil, "a-G0#1"))
	require.False(t, at(21, nil, "a-G0#1"), "memory")
	require.False(t, at(20, nil, "a-G0#0"), "seat")
	evicts := func(c *placement.Choice) {
		c.Evict = []placement.Eviction{{Tenant: "o", To: state.GoalCold}, {Tenant: "unknown", To: state.GoalCold}}
	}
	require.True(t, at(80, evicts, "a-G0#0"), "once o is evicted")
	require.False(t, at(80, func(c *placement.Choice) { c.Evict = []placement.Eviction{{Tenant: "o", To: state.GoalWarm}} }, "a-G0#0"), "it has no such way")
	require.True(t, at(80, func(c *placement.Choice) { c.Wake = "w" }, "a-G1#0"), "it wakes in its own place")
	require.False(t, at(80, nil, "a-G1#0"))
	require.False(t, at(1, func(c *placement.Choice) { c.Placement.Node = "down" }, "down-G0#0"))
	require.False(t, at(1, func(c *placement.Choice) { c.Placement.Node = "gone" }, "gone-G0#0"))
}

func TestSizing(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 0} {
		require.Equal(t, want, placement.Degree(n))
	}
	for _, c := range []struct {
		weights, card int64
		gpus          int
		each          int64
	}{
		{10 * gib, 80 * gib, 1, 10*gib + 3*gib/2 + 500<<20},
		{69 * gib, 80 * gib, 1, 69*gib + 11113227879 + 500<<20},
		{140 * gib, 80 * gib, 4, (161*gib+500<<20)/4 + 0}, // 3 GPUs would do, and 3 is no degree
		{1000 * gib, 80 * gib, 16, (1150*gib + 500<<20) / 16},
		{1200 * gib, 80 * gib, 0, 0},
		{0, 80, 0, 0}, {80, 0, 0, 0}, {1 << 62, 1 << 62, 0, 0},
	} {
		gpus, each := placement.Sizing(c.weights, c.card)
		require.Equal(t, c.gpus, gpus, c.weights)
		require.Equal(t, c.each, each, c.weights)
	}
}

func TestEvictionCost(t *testing.T) {
	t.Parallel()
	r := placement.Rates{Fetch: 1, Disk: 10, Host: 100, Start: 30 * time.Second, Wake: time.Second}
	require.Equal(t, 130.0, r.ColdSeconds(1000, true))
	require.Equal(t, 1130.0, r.ColdSeconds(1000, false))
	require.Equal(t, 11.0, r.WarmSeconds(1000))
	for _, c := range []struct {
		name string
		w    placement.Worth
		to   state.Goal
		want float64
	}{
		{"long idle", placement.Worth{Weights: 1000, Idle: 1000 * time.Hour}, state.GoalCold, 130},
		{"long idle, to WARM", placement.Worth{Weights: 1000, Idle: 1000 * time.Hour}, state.GoalWarm, 11},
		{"in use", placement.Worth{Weights: 1000}, state.GoalCold, 1300},
		{"a request that is still to come by this clock", placement.Worth{Weights: 1000, Idle: -time.Hour}, state.GoalCold, 1300},
		{"used five minutes ago", placement.Worth{Weights: 1000, Idle: 5 * time.Minute}, state.GoalCold, 130 * 5.5},
		{"of a priority", placement.Worth{Weights: 1000, Idle: 1000 * time.Hour, Priority: 50}, state.GoalWarm, 16.5},
		{"failed", placement.Worth{Weights: 1000, Failed: true}, state.GoalCold, 0},
	} {
		require.InDelta(t, c.want, placement.EvictionCost(r, c.w, c.to), 1e-9, c.name)
	}
	require.Equal(t, int64(5), placement.Weights(&state.Variant{Weights: 5, Memory: 7, GPUs: 2}))
	require.Equal(t, int64(14), placement.Weights(&state.Variant{Memory: 7, GPUs: 2}))
}

func TestLevel(t *testing.T) {
	t.Parallel()
	var got []string
	for l := placement.CachedAndFree; l <= placement.CantAccommodate+1; l++ {
		got = append(got, l.String())
	}
	require.True(t, slices.Equal([]string{"CACHED_AND_FREE", "FREE", "CACHED_AND_FULL", "FULL", "CANT_ACCOMMODATE", "Level(5)"}, got), got)
}
