package placement_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/replica"
)

func node(id string, gpus, seats int, memory int64, edit ...func(*state.Node)) *state.Node {
	n := &state.Node{ID: id, Name: id, Ready: true}
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
	r := placement.Request{Model: &state.Model{Name: "m"}, Variant: &state.Variant{Name: "v", GPUs: gpus, Memory: memory, HostMemory: 7}}
	for _, e := range edit {
		e(&r)
	}
	return r
}

// hold takes bytes and a seat of GPUs, "<gpu>" or "<gpu>#<seat>" each.
func hold(node string, bytes int64, gpus ...string) placement.Taken {
	t := placement.Taken{}
	for _, g := range gpus {
		t.Hold("other", state.Placement{Node: node, Seats: []string{g + "#0"}, Memory: map[string]int64{g: bytes}})
	}
	return t
}

func TestBestFit(t *testing.T) {
	t.Parallel()
	pair := func(r *placement.Request) { r.Model.Failover = true }
	for _, c := range []struct {
		name    string
		nodes   []*state.Node
		taken   placement.Taken
		request placement.Request
		want    []string // seats
	}{
		{"the first of equals", []*state.Node{node("b", 2, 2, 10), node("a", 2, 2, 10)}, nil, request(1, 5), []string{"a-G0#0"}},
		{"the smallest GPU that holds it", []*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 24), node("c", 1, 2, 16)}, nil, request(1, 20), []string{"b-G0#0"}},
		{"the fullest GPU of a node, on its free seat", []*state.Node{node("a", 3, 2, 10)}, hold("a", 4, "a-G1"), request(1, 5), []string{"a-G1#1"}},
		{"exactly the memory that is free", []*state.Node{node("a", 1, 2, 10)}, hold("a", 4, "a-G0"), request(1, 6), []string{"a-G0#1"}},
		{"the fewest seats left, where the memory is the same", []*state.Node{node("a", 1, 4, 10), node("b", 1, 2, 10)}, nil, request(1, 5), []string{"b-G0#0"}},
		{"a pair has two seats of one GPU", []*state.Node{node("a", 2, 2, 10)}, hold("a", 1, "a-G0"), request(1, 5, pair), []string{"a-G1#0", "a-G1#1"}},
		{"a pair on two GPUs", []*state.Node{node("a", 2, 3, 10)}, nil, request(2, 5, pair), []string{"a-G0#0", "a-G0#1", "a-G1#0", "a-G1#1"}},
		{"several GPUs in one clique", []*state.Node{node("a", 4, 1, 10, func(n *state.Node) { n.GPUs[1].Clique, n.GPUs[3].Clique = "d", "d" })}, hold("a", 0, "a-G0"), request(2, 5), []string{"a-G1#0", "a-G3#0"}},
		{"several GPUs of one model", []*state.Node{node("a", 3, 1, 10, func(n *state.Node) { n.GPUs[0].Model = "A100" })}, nil, request(2, 5), []string{"a-G1#0", "a-G2#0"}},
		{"the model that was asked for", []*state.Node{node("a", 2, 1, 10, func(n *state.Node) { n.GPUs[1].Model = "B200" })}, nil, request(1, 5, func(r *placement.Request) { r.Variant.GPUModel = "B200" }), []string{"a-G1#0"}},
		{"GPUs in good order", []*state.Node{node("a", 3, 1, 10, func(n *state.Node) { n.GPUs[0].Healthy, n.GPUs[1].Quarantined = false, true })}, nil, request(1, 5), []string{"a-G2#0"}},
		{"a preferred node before one that fits better", []*state.Node{node("a", 1, 2, 80), node("b", 1, 2, 5)}, nil, request(1, 5, func(r *placement.Request) { r.Prefer = map[string]bool{"a": true} }), []string{"a-G0#0"}},
		{"not an excluded node", []*state.Node{node("a", 1, 2, 5), node("b", 1, 2, 80)}, nil, request(1, 5, func(r *placement.Request) { r.Exclude = map[string]bool{"a": true} }), []string{"b-G0#0"}},
		{"nodes that may be used", []*state.Node{
			node("a", 1, 1, 5, func(n *state.Node) { n.Ready = false }), node("b", 1, 1, 5, func(n *state.Node) { n.Draining = true }),
			node("c", 1, 1, 5, func(n *state.Node) { n.Gone = true }), node("d", 1, 1, 80),
		}, nil, request(1, 5), []string{"d-G0#0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, no := placement.BestFit{}.Place(c.nodes, c.taken, c.request)
			require.Nil(t, no)
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

func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		node    *state.Node
		taken   placement.Taken
		request placement.Request
		want    string
	}{
		{"not ready", node("a", 1, 1, 9, func(n *state.Node) { n.Ready = false }), nil, request(1, 5), "is not ready"},
		{"excluded", node("a", 1, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Exclude = map[string]bool{"a": true} }), "is left out because of what happened there"},
		{"no GPUs", node("a", 0, 0, 0), nil, request(1, 5), "has no GPUs"},
		{"another model", node("a", 2, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Variant.GPUModel = "B200" }), "2 GPUs of another model than B200"},
		{"quarantined", node("a", 1, 1, 9, func(n *state.Node) { n.GPUs[0].Quarantined = true }), nil, request(1, 5), "1 GPU not in good order (quarantined)"},
		{"ill", node("a", 1, 1, 9, func(n *state.Node) { n.GPUs[0].Healthy, n.GPUs[0].Reason = false, "XID 79" }), nil, request(1, 5), "1 GPU not in good order (XID 79)"},
		{"no seat", node("a", 1, 1, 9), hold("a", 0, "a-G0"), request(1, 5), "1 GPU with too few seats free"},
		{"no second seat", node("a", 1, 1, 9), nil, request(1, 5, func(r *placement.Request) { r.Model.Failover = true }), "1 GPU with too few seats free"},
		{"no memory", node("a", 1, 2, 9), hold("a", 5, "a-G0"), request(1, 5), "1 GPU with too little memory free (at most 4 B)"},
		{"no clique", node("a", 2, 1, 9, func(n *state.Node) { n.GPUs[1].Clique = "d" }), nil, request(2, 5), "only 1 GPU that would do in one clique"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, no := placement.BestFit{}.Place([]*state.Node{c.node}, c.taken, c.request)
			require.NotNil(t, no)
			require.Equal(t, map[string]string{"a": c.want}, no.Nodes)
			require.Contains(t, no.Error(), "fits nowhere: a: "+c.want)
		})
	}
	t.Run("grouped", func(t *testing.T) {
		t.Parallel()
		var nodes []*state.Node
		for i := range 6 {
			nodes = append(nodes, node(fmt.Sprintf("n%d", i), 1, 1, 80<<30, func(n *state.Node) { n.Draining = i == 2 }))
		}
		_, no := placement.BestFit{}.Place(nodes, nil, request(2, 100<<30))
		require.Equal(t, "a replica of m:v (2 GPUs with 1 seat and 100 GiB each) fits nowhere: "+
			"n0, n1, n3 and 2 more: 1 GPU with too little memory free (at most 80 GiB); n2: is being drained", no.Error())
	})
	t.Run("of a thousand nodes, short", func(t *testing.T) {
		t.Parallel()
		var nodes []*state.Node
		for i := range 1000 {
			nodes = append(nodes, node(fmt.Sprintf("n%03d", i), 1, 1, int64(i)))
		}
		_, no := placement.BestFit{}.Place(nodes, nil, request(1, 2000))
		require.Len(t, no.Nodes, 1000)
		require.Less(t, len(no.Error()), 1000)
		require.Contains(t, no.Error(), "994 nodes for other reasons")
	})
	t.Run("no nodes", func(t *testing.T) {
		t.Parallel()
		_, no := placement.BestFit{}.Place(nil, nil, request(1, 1))
		require.ErrorContains(t, asError(no), "there are no nodes with GPUs")
	})
}

func asError(r *placement.Refusal) error { return r }

// TestAgainstState: what is chosen is never refused by the state, and what is refused
// could have been put nowhere.
func TestAgainstState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, err := state.New()
		require.NoError(t, err)
		index := uint64(0)
		apply := func(c state.Command) state.Result {
			data, err := state.Encode(c)
			require.NoError(t, err)
			index++
			return s.Apply(index, data)
		}
		flag := func(what string) bool { return rapid.IntRange(0, 5).Draw(t, what) == 0 }
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			n := node(fmt.Sprintf("n%d", i), rapid.IntRange(0, 4).Draw(t, "gpus"), rapid.IntRange(1, 3).Draw(t, "seats"), 10)
			n.Draining = flag("draining")
			for g := range n.GPUs {
				gpu := &n.GPUs[g]
				gpu.Healthy = !flag("ill")
				gpu.Clique = rapid.SampledFrom([]string{"", "c"}).Draw(t, "clique")
				gpu.Model = rapid.SampledFrom([]string{"H100", "A100"}).Draw(t, "model")
				gpu.Memory = rapid.Int64Range(4, 12).Draw(t, "memory")
			}
			require.Nil(t, apply(&state.UpsertNodes{Nodes: []state.Node{*n}}).Err)
		}
		m := state.Model{Name: "m", Max: 100, Management: state.ManagementFull, Hash: "h", Failover: rapid.Bool().Draw(t, "pair")}
		for i := range 3 {
			m.Variants = append(m.Variants, state.Variant{
				Name: fmt.Sprintf("v%d", i), Hash: "h", GPUs: 1 + i, Memory: rapid.Int64Range(0, 6).Draw(t, "bytes"),
				GPUModel: rapid.SampledFrom([]string{"", "H100"}).Draw(t, "wanted"),
			})
		}
		require.Nil(t, apply(&state.UpsertModel{Model: m}).Err)
		for i := range 8 {
			v := s.View()
			variant := &m.Variants[rapid.IntRange(0, 2).Draw(t, "variant")]
			r := placement.Request{Model: &m, Variant: variant}
			at, no := placement.BestFit{}.Place(v.Nodes(nil), v.Ledger(nil), r)
			if no != nil {
				require.Len(t, no.Nodes, len(v.Nodes(nil)))
				require.Zero(t, possible(v, r), no.Error())
				continue
			}
			name := replica.Name{Model: "m", Variant: variant.Name, ID: fmt.Sprint(i)}
			res := apply(&state.Plan{ID: "p", Index: v.Index(), Place: []state.Place{{Name: name, VariantHash: "h", Placement: at.Placement}}})
			require.Nil(t, res.Err)
			require.Positive(t, possible(v, r))
		}
	})
}

// possible counts the groups that have enough GPUs, in the plainest way.
func possible(v *state.View, r placement.Request) int {
	found := 0
	for _, n := range v.Nodes(nil) {
		u := v.Usage(nil, n.ID)
		groups := map[string]int{}
		for i := range n.GPUs {
			g := &n.GPUs[i]
			if n.Usable() == "" && g.Healthy && (r.Variant.GPUModel == "" || r.Variant.GPUModel == g.Model) &&
				len(u.FreeSeats(g)) >= r.SeatsPerGPU() && u.FreeMemory(g) >= r.Variant.Memory {
				groups[g.Model+" "+g.Clique]++
			}
		}
		for _, count := range groups {
			if count >= r.Variant.GPUs {
				found++
			}
		}
	}
	return found
}

func TestTaken(t *testing.T) {
	t.Parallel()
	taken := placement.Taken{}
	r := &state.Replica{Name: replica.Name{Model: "m", Variant: "v", ID: "1"}, Tier: state.Hot, Phase: state.Running,
		Placement: state.Placement{Node: "a", Seats: []string{"a-G0#0"}, Memory: map[string]int64{"a-G0": 4}}}
	taken.Hold(r.Name.String(), r.Placement)
	require.Equal(t, r.Name.String(), taken.Of("a").Seats["a-G0#0"])
	require.Equal(t, int64(4), taken.Of("a").Memory["a-G0"])
	taken.Free(r)
	require.Empty(t, taken.Of("a").Seats)
	require.Zero(t, taken.Of("a").Memory["a-G0"])
}

func BenchmarkBestFit(b *testing.B) {
	var nodes []*state.Node
	taken := placement.Taken{}
	for i := range 100 {
		n := node(fmt.Sprintf("n%02d", i), 8, 2, 80)
		nodes = append(nodes, n)
		for g := range n.GPUs {
			taken.Hold("x", state.Placement{Node: n.ID, Seats: n.GPUs[g].Seats[:1], Memory: map[string]int64{n.GPUs[g].UUID: int64(i % 70)}})
		}
	}
	for name, r := range map[string]placement.Request{"fits": request(2, 30), "refused": request(2, 81)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				placement.BestFit{}.Place(nodes, taken, r)
			}
		})
	}
}
