package gateway

import (
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/internal/replica"
)

func placedEngine(edit ...func(*replica.Engine)) replica.Engine {
	e := replica.Engine{
		Name: replica.Name{Model: "m", Variant: "v", ID: "a"}, Role: replica.RolePrimary,
		Address: "10.0.0.1", Port: 21000, Token: replica.Token{Generation: 7, Counter: 3}, Slots: 8, Passing: true,
	}
	for _, f := range edit {
		f(&e)
	}
	return e
}

// placedState has replica m:v:a, a pair.
func placedState(edit ...func(*api.GatewayReplica)) api.GatewayState {
	r := api.GatewayReplica{Name: "m:v:a", Model: "m", Variant: "v", Status: "serving", Addresses: []string{"10.0.0.1:21000", "10.0.0.1:21001", "[fd00::1]:80"}, Generation: 7, MaxSlots: 16}
	for _, f := range edit {
		f(&r)
	}
	return api.GatewayState{Replicas: []api.GatewayReplica{r}}
}

func TestPlaced(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		engine func(*replica.Engine)
		slots  int // 0: it is refused
		reason string
	}{
		{name: "placed", engine: func(*replica.Engine) {}, slots: 8},
		{name: "the shadow", engine: func(e *replica.Engine) { e.Role, e.Port = replica.RoleShadow, 21001 }, slots: 8},
		{name: "does not pass", engine: func(e *replica.Engine) { e.Passing = false }, slots: 8},
		{name: "of the allocation before", engine: func(e *replica.Engine) { e.Token.Generation = 6 }, slots: 8},
		{name: "IPv4 in IPv6", engine: func(e *replica.Engine) { e.Address = "::ffff:10.0.0.1" }, slots: 8},
		{name: "IPv6 in another spelling", engine: func(e *replica.Engine) { e.Address, e.Port = "fd00:0::0:1", 80 }, slots: 8},
		{name: "more slots than it has", engine: func(e *replica.Engine) { e.Slots = 1 << 20 }, slots: 16},
		{name: "another replica", engine: func(e *replica.Engine) { e.Name.ID = "b" }, reason: "the controller has no replica of this name"},
		{name: "another model", engine: func(e *replica.Engine) { e.Name.Model = "n" }, reason: "the controller has no replica of this name"},
		{name: "another port", engine: func(e *replica.Engine) { e.Port = 1 }, reason: "address is 10.0.0.1:1: must be one that Nomad gave to the replica"},
		{name: "another host", engine: func(e *replica.Engine) { e.Address = "10.0.0.2" }, reason: "address is 10.0.0.2:21000: must be one that Nomad gave to the replica"},
		{name: "a name", engine: func(e *replica.Engine) { e.Address = "evil" }, reason: "address is evil:21000: must be one that Nomad gave to the replica"},
		{name: "the highest token", engine: func(e *replica.Engine) { e.Token = replica.Token{Generation: 8} }, reason: "fencing token is 8.0: its generation must be at most 7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := placedEngine(tc.engine)
			use, refused := placed([]replica.Engine{e}, placementsOf(placedState()))
			if tc.slots == 0 {
				require.Empty(t, use)
				require.Equal(t, []refusal{{e, tc.reason}}, refused)
				return
			}
			require.Empty(t, refused)
			e.Slots = tc.slots
			require.Equal(t, []replica.Engine{e}, use)
		})
	}
}

func TestPlacedWithoutAController(t *testing.T) {
	t.Parallel()
	big, huge := placedEngine(func(e *replica.Engine) { e.Slots = replica.MaxSlots }), placedEngine(func(e *replica.Engine) { e.Slots = replica.MaxSlots + 1 })
	use, refused := placed([]replica.Engine{huge, big}, nil)
	require.Equal(t, []replica.Engine{big}, use)
	require.Equal(t, []refusal{{huge, "slots is 4097: must be at most 4096 without a controller"}}, refused)
	use, refused = placed([]replica.Engine{big}, placementsOf(api.GatewayState{}))
	require.Empty(t, use, "a controller without replicas has placed none")
	require.Len(t, refused, 1)
}

// TestPlacedHolds: whatever Consul lists, what is used is at an address of its replica, and each
// engine is used or refused with a reason.
func TestPlacedHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(0, 2)
		var s api.GatewayState
		at := map[string]api.GatewayReplica{}
		for i := range small.Draw(t, "replicas") {
			r := api.GatewayReplica{Name: fmt.Sprintf("m:v:%d", i), Generation: uint64(small.Draw(t, "generation")), MaxSlots: small.Draw(t, "max slots")}
			for p := range 3 {
				if rapid.Bool().Draw(t, "has") {
					r.Addresses = append(r.Addresses, fmt.Sprintf("10.0.0.%d:%d", i, p+1))
				}
			}
			s.Replicas = append(s.Replicas, r)
			at[r.Name] = r
		}
		var list []replica.Engine
		for range rapid.IntRange(0, 6).Draw(t, "engines") {
			list = append(list, placedEngine(func(e *replica.Engine) {
				e.Name.ID = fmt.Sprint(small.Draw(t, "id"))
				e.Address, e.Port = fmt.Sprintf("10.0.0.%d", small.Draw(t, "host")), small.Draw(t, "port")+1
				e.Token.Generation, e.Slots = uint64(rapid.IntRange(0, 3).Draw(t, "token")), rapid.IntRange(1, 1<<20).Draw(t, "slots")
			}))
		}
		use, refused := placed(list, placementsOf(s))
		require.Len(t, list, len(use)+len(refused))
		for _, e := range use {
			r := at[e.Name.String()]
			require.Contains(t, r.Addresses, e.HostPort())
			require.LessOrEqual(t, e.Token.Generation, r.Generation)
			require.LessOrEqual(t, e.Slots, max(r.MaxSlots, 1))
		}
		for _, r := range refused {
			require.NotEmpty(t, r.reason)
			known := at[r.engine.Name.String()]
			at := false
			for _, a := range known.Addresses {
				at = at || a == r.engine.HostPort()
			}
			require.False(t, at && r.engine.Token.Generation <= known.Generation, "%v is the replica's", r.engine)
		}
	})
}

// TestAdmission: nothing is used before both have spoken, and the controller's news change the list
// only where it changes.
func TestAdmission(t *testing.T) {
	t.Parallel()
	var lists [][]replica.Engine
	var outages []bool
	a := &admission{log: hclog.NewNullLogger(), controlled: true, use: func(l []replica.Engine, afterOutage bool) {
		lists, outages = append(lists, l), append(outages, afterOutage)
	}}
	e := placedEngine()
	a.list([]replica.Engine{e}, false)
	require.Empty(t, lists)
	a.place(placedState())
	require.Equal(t, [][]replica.Engine{{e}}, lists)
	a.place(placedState(func(r *api.GatewayReplica) { r.Draining = true }))
	require.Len(t, lists, 1)
	a.list([]replica.Engine{e}, true)
	require.Len(t, lists, 2, "Consul is back: that is news")
	require.Equal(t, []bool{false, true}, outages)

	a.place(placedState(func(r *api.GatewayReplica) { r.Addresses = nil }))
	require.Empty(t, lists[2])
	require.Equal(t, 1, a.refusals())
	a.place(placedState())
	require.Equal(t, []replica.Engine{e}, lists[3])
	require.Zero(t, a.refusals())
}

// TestRefusalsAreLoggedOnce while they last.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log countingWriter
	a := &admission{log: hclog.New(&hclog.LoggerOptions{Output: &log}), controlled: true, use: func([]replica.Engine, bool) {}}
	liar := placedEngine(func(e *replica.Engine) { e.Port = 1 })
	a.place(placedState())
	for range 3 {
		a.list([]replica.Engine{placedEngine(), liar}, false)
	}
	require.Equal(t, 1, log.lines)
	a.list([]replica.Engine{placedEngine()}, false)
	require.Equal(t, 2, log.lines, "it is gone")
	a.list([]replica.Engine{liar}, false)
	require.Equal(t, 3, log.lines)
}

type countingWriter struct{ lines int }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.lines++
	return len(p), nil
}
