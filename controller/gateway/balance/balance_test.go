package balance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var config = balance.Config{Grace: 15 * time.Second, Suspect: 2 * time.Second, Remember: 10 * time.Minute}

func newTable(t *testing.T) *balance.Table {
	t.Helper()
	table, err := balance.New(config)
	require.NoError(t, err)
	return table
}

// eng is a passing engine of model "m"; options change it.
func eng(id string, options ...func(*replica.Engine)) replica.Engine {
	e := replica.Engine{
		Name: replica.Name{Model: "m", Variant: "v", ID: id}, Role: replica.RolePrimary,
		Address: "10.0.0.1", Port: 8000, Slots: 1, Passing: true,
	}
	for _, o := range options {
		o(&e)
	}
	return e
}

func shadow(e *replica.Engine)             { e.Role, e.Port = replica.RoleShadow, 8001 }
func critical(e *replica.Engine)           { e.Passing = false }
func token(n uint64) func(*replica.Engine) { return func(e *replica.Engine) { e.Token = n } }
func slots(n int) func(*replica.Engine)    { return func(e *replica.Engine) { e.Slots = n } }
func port(n int) func(*replica.Engine)     { return func(e *replica.Engine) { e.Port = n } }
func ofModel(name string) func(*replica.Engine) {
	return func(e *replica.Engine) { e.Name.Model = name }
}

// usable lists what Pick can reach at now, without lasting effect on load.
func usable(t *testing.T, table *balance.Table, now time.Time, model string) []string {
	t.Helper()
	var ids, tried []string
	for {
		p, err := table.Pick(now, balance.Request{Model: model, Tried: tried})
		if err != nil {
			break
		}
		table.Release(now, p)
		ids = append(ids, p.ServiceID)
		tried = append(tried, p.ServiceID)
	}
	return ids
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := balance.New(balance.Config{Grace: -1, Suspect: -2, Remember: -3})
	require.ErrorContains(t, err, "Grace")
	require.ErrorContains(t, err, "Suspect")
	require.ErrorContains(t, err, "Remember")
}

func TestPickErrors(t *testing.T) {
	table := newTable(t)
	_, err := table.Pick(t0, balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrNoList)
	_, err = table.Lookup(t0, "m")
	require.ErrorIs(t, err, balance.ErrNoList)
	require.False(t, table.Ready())

	table.Update(t0, []replica.Engine{eng("a", critical)}, false)
	require.True(t, table.Ready())
	_, err = table.Pick(t0, balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrNoEngine)
	_, err = table.Lookup(t0, "m")
	require.ErrorIs(t, err, balance.ErrNoEngine)
	_, err = table.Pick(t0, balance.Request{Model: "other"})
	require.ErrorIs(t, err, balance.ErrUnknownModel)
	_, err = table.Lookup(t0, "other")
	require.ErrorIs(t, err, balance.ErrUnknownModel)
	require.Empty(t, table.Models(t0))

	table.Update(t0, []replica.Engine{eng("a")}, false)
	require.Equal(t, []balance.Model{{Name: "m", First: t0}}, table.Models(t0.Add(time.Second)))
}

func TestModelStaysKnownForAWhile(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a")}, false)
	gone := t0.Add(time.Hour)
	ch := table.Update(gone, nil, false)
	require.Empty(t, ch.Replicas)
	require.Empty(t, ch.Models)
	_, err := table.Pick(gone, balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrNoEngine, "counted from when it was last there, not from when it was last updated")
	_, err = table.Pick(gone.Add(config.Remember-1), balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrNoEngine)
	_, err = table.Pick(gone.Add(config.Remember), balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrUnknownModel)
	ch = table.Update(gone.Add(config.Remember), nil, false)
	require.Equal(t, []string{"m"}, ch.Models)
	require.Equal(t, []string{"m:v:a"}, ch.Replicas)
	require.Empty(t, table.Loads(gone.Add(config.Remember)))
}

func TestLeastBusy(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(1)), eng("b", slots(3))}, false)
	count := map[string]int{}
	var picks []balance.Pick
	for range 8 {
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		require.NoError(t, err)
		count[p.Name.ID]++
		picks = append(picks, p)
	}
	require.Equal(t, map[string]int{"a": 2, "b": 6}, count, "requests are shared by slots")
	for _, p := range picks {
		if p.Name.ID == "a" {
			table.Release(t0, p)
		}
	}
	p, err := table.Pick(t0, balance.Request{Model: "m"})
	require.NoError(t, err)
	require.Equal(t, "a", p.Name.ID)
}

func TestEqualsTakeTurns(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a"), eng("b"), eng("c")}, false)
	var order string
	for range 6 {
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		require.NoError(t, err)
		order += p.Name.ID
		table.Release(t0, p)
	}
	require.Equal(t, "abcabc", order)
}

func TestTokens(t *testing.T) {
	cases := []struct {
		name string
		list []replica.Engine
		want []string
	}{
		{"higher token wins", []replica.Engine{eng("a", token(41)), eng("a", shadow, token(42))}, []string{"m:v:a:shadow"}},
		{"listing order is no matter", []replica.Engine{eng("a", shadow, token(42)), eng("a", token(41))}, []string{"m:v:a:shadow"}},
		{"a failing holder blocks the fenced one", []replica.Engine{eng("a", token(41)), eng("a", shadow, token(42), critical)}, nil},
		{"no lock, no fencing", []replica.Engine{eng("a"), eng("a", shadow)}, []string{"m:v:a:primary", "m:v:a:shadow"}},
		{"a token beats none", []replica.Engine{eng("a"), eng("a", shadow, token(1))}, []string{"m:v:a:shadow"}},
		{"replicas do not fence each other", []replica.Engine{eng("a", token(1)), eng("b", token(9))}, []string{"m:v:a:primary", "m:v:b:primary"}},
		{"one ID listed twice", []replica.Engine{eng("a", token(7), port(1)), eng("a", token(8), port(2)), eng("a", token(7), port(3))}, []string{"m:v:a:primary"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			table := newTable(t)
			table.Update(t0, c.list, false)
			require.ElementsMatch(t, c.want, usable(t, table, t0, "m"))
		})
	}
	t.Run("of one ID listed twice the higher token's address is used", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, cases[6].list, false)
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, "10.0.0.1:2", p.Addr)
	})
	t.Run("the highest token outlives the replica's engines", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", token(41)), eng("a", shadow, token(42))}, false)
		table.Update(t0, []replica.Engine{eng("a", token(41))}, false)
		require.Empty(t, usable(t, table, t0, "m"))
		table.Update(t0, nil, false)
		table.Update(t0, []replica.Engine{eng("a", token(41))}, false)
		require.Empty(t, usable(t, table, t0, "m"), "a frozen holder came back after its successor left")
		table.Update(t0, nil, false)
		later := t0.Add(config.Remember)
		require.Equal(t, []string{"m:v:a"}, table.Expire(later).Replicas)
		table.Update(later, []replica.Engine{eng("a", token(1))}, false)
		require.Len(t, usable(t, table, later, "m"), 1)
	})
}

func TestSuspectsAreAvoidedButNotLost(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
	p, err := table.Pick(t0, balance.Request{Model: "m"})
	require.NoError(t, err)
	require.Equal(t, "a", p.Name.ID)
	require.True(t, table.DialFailed(t0, p))
	require.False(t, table.DialFailed(t0, p), "the second failure is no news")
	table.Release(t0, p)
	for range 4 {
		p, err := table.Pick(t0.Add(time.Second), balance.Request{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, "b", p.Name.ID, "even when it is the busier one")
	}
	p, err = table.Pick(t0.Add(time.Second), balance.Request{Model: "m", Tried: []string{"m:v:b:primary"}})
	require.NoError(t, err)
	require.Equal(t, "a", p.Name.ID, "better a suspect than none")
	table.Answered(p)
	p, err = table.Pick(t0.Add(time.Second), balance.Request{Model: "m"})
	require.NoError(t, err)
	require.Equal(t, "a", p.Name.ID, "an answer clears it")
	table.DialFailed(t0, p)
	p, err = table.Pick(t0.Add(config.Suspect), balance.Request{Model: "m"})
	require.NoError(t, err)
	require.Equal(t, "a", p.Name.ID, "time clears it")
}

func TestDeregisteredEngineGetsNothing(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
	table.Update(t0, []replica.Engine{eng("b")}, false)
	require.Equal(t, []string{"m:v:b:primary"}, usable(t, table, t0, "m"))
	table.Update(t0, []replica.Engine{eng("b", critical)}, false)
	require.Empty(t, usable(t, table, t0, "m"))
}

func TestNewAddressIsANewEngine(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a")}, false)
	old, err := table.Pick(t0, balance.Request{Model: "m"})
	require.NoError(t, err)
	table.DialFailed(t0, old)
	table.Update(t0, []replica.Engine{eng("a", port(9))}, false)
	require.Equal(t, 8000, old.Port, "an endpoint in use does not change")
	loads := table.Loads(t0)
	require.Equal(t, []balance.Load{{Model: "m", InFlight: 1, Active: 1}}, loads, "not suspect; the old request still counts for the model")
	table.Release(t0, old)
	require.Zero(t, table.Loads(t0)[0].InFlight)
}

func TestOutageGrace(t *testing.T) {
	both := []replica.Engine{eng("a"), eng("b")}
	const a, b = "m:v:a:primary", "m:v:b:primary"
	type step struct {
		after  time.Duration
		list   []replica.Engine
		outage bool
		want   []string
	}
	cases := []struct {
		name  string
		steps []step
		later map[time.Duration][]string
	}{
		{
			"an empty Consul drops nobody at once",
			[]step{{0, nil, true, []string{a, b}}},
			map[time.Duration][]string{15*time.Second - 1: {a, b}, 15 * time.Second: nil},
		},
		{
			"critical after the restart is kept, passing ends the wait",
			[]step{{0, []replica.Engine{eng("a", critical), eng("b", critical)}, true, []string{a, b}}, {time.Second, both, false, []string{a, b}}},
			map[time.Duration][]string{time.Hour: {a, b}},
		},
		{
			"turning critical a moment after the first list is kept as well",
			[]step{{0, both, true, []string{a, b}}, {time.Second, []replica.Engine{eng("a", critical), eng("b")}, false, []string{a, b}}},
			map[time.Duration][]string{15*time.Second - 1: {a, b}, 15 * time.Second: {b}},
		},
		{
			"a missing engine stays missing in later lists",
			[]step{{0, nil, true, []string{a, b}}, {time.Second, []replica.Engine{eng("b")}, false, []string{a, b}}, {14 * time.Second, []replica.Engine{eng("b")}, false, []string{a, b}}, {15 * time.Second, []replica.Engine{eng("b")}, false, []string{b}}},
			map[time.Duration][]string{16 * time.Second: {b}},
		},
		{
			"missing, then critical, then passing",
			[]step{{0, nil, true, []string{a, b}}, {time.Second, []replica.Engine{eng("a", critical)}, false, []string{a, b}}, {2 * time.Second, both, false, []string{a, b}}},
			map[time.Duration][]string{time.Hour: {a, b}},
		},
		{
			"listed after the outage, then deregistered: dropped at once",
			[]step{{0, both, true, []string{a, b}}, {time.Second, []replica.Engine{eng("b")}, false, []string{b}}},
			nil,
		},
		{
			"critical after the outage, then deregistered: dropped at once",
			[]step{{0, []replica.Engine{eng("a", critical), eng("b")}, true, []string{a, b}}, {time.Second, []replica.Engine{eng("b")}, false, []string{b}}},
			nil,
		},
		{
			"critical after the window is critical",
			[]step{{0, both, true, []string{a, b}}, {15 * time.Second, []replica.Engine{eng("a", critical), eng("b")}, false, []string{b}}},
			nil,
		},
		{
			"a second outage begins the grace anew",
			[]step{{0, nil, true, []string{a, b}}, {10 * time.Second, nil, true, []string{a, b}}},
			map[time.Duration][]string{25*time.Second - 1: {a, b}, 25 * time.Second: nil},
		},
		{
			"a newer token ends the grace of the old engine",
			[]step{{0, []replica.Engine{eng("b")}, true, []string{a, b}}, {time.Second, []replica.Engine{eng("a", shadow, token(2)), eng("b")}, false, []string{"m:v:a:shadow", b}}},
			nil,
		},
		{
			"the old address of a moved engine is not kept",
			[]step{{0, []replica.Engine{eng("a", port(9), critical), eng("b")}, true, []string{b}}},
			nil,
		},
		{
			"without an outage nothing is kept",
			[]step{{0, []replica.Engine{eng("a", critical)}, false, nil}},
			nil,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			table := newTable(t)
			table.Update(t0.Add(-time.Hour), both, false)
			for _, s := range c.steps {
				table.Update(t0.Add(s.after), s.list, s.outage)
				require.ElementsMatch(t, s.want, usable(t, table, t0.Add(s.after), "m"), "after %s", s.after)
			}
			for after, want := range c.later {
				require.ElementsMatch(t, want, usable(t, table, t0.Add(after), "m"), "after %s", after)
			}
		})
	}
	t.Run("an engine that was not active is not kept", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", critical)}, false)
		table.Update(t0, nil, true)
		require.Empty(t, usable(t, table, t0, "m"))
	})
	t.Run("a failed connection ends it", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, both, false)
		ch := table.Update(t0, nil, true)
		require.Equal(t, []string{a, b}, ch.Kept)
		require.Equal(t, 2, table.Loads(t0)[0].Kept)
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		require.NoError(t, err)
		require.True(t, table.DialFailed(t0, p))
		table.Release(t0, p)
		require.Equal(t, []string{b}, usable(t, table, t0.Add(5*time.Second), "m"))
		table.Update(t0.Add(6*time.Second), nil, false)
		require.Equal(t, []string{b}, usable(t, table, t0.Add(6*time.Second), "m"))
	})
}

func TestLoadsCountEachEngineOnce(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{
		eng("a"), eng("b", critical), eng("c", token(1)), eng("c", shadow, token(2)), eng("x", ofModel("n")),
	}, false)
	p, err := table.Pick(t0, balance.Request{Model: "n"})
	require.NoError(t, err)
	table.DialFailed(t0, p)
	require.Equal(t, []balance.Load{
		{Model: "m", Active: 2, NotPassing: 1, Fenced: 1},
		{Model: "n", Suspect: 1, InFlight: 1},
	}, table.Loads(t0))
}

// TestProperties drives a table with random updates, picks and releases and
// checks it against what the last list says.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, err := balance.New(config)
		require.NoError(rt, err)
		now := t0
		var list []replica.Engine
		var held []balance.Pick
		listed := false
		top := map[string]uint64{} // of all time: Remember is longer than a run
		rt.Repeat(map[string]func(*rapid.T){
			"update": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(rt, "ms")) * time.Millisecond)
				list = rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) replica.Engine {
					e := eng(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "replica"))
					if rapid.Bool().Draw(rt, "shadow") {
						shadow(&e)
					}
					e.Token = rapid.Uint64Range(0, 3).Draw(rt, "token")
					e.Slots = rapid.IntRange(0, 3).Draw(rt, "slots")
					e.Passing = rapid.Bool().Draw(rt, "passing")
					return e
				}), 0, 6, replica.Engine.ID).Draw(rt, "engines")
				table.Update(now, list, false)
				listed = true
				for _, e := range list {
					top[e.Name.ID] = max(top[e.Name.ID], e.Token)
				}
			},
			"pick": func(rt *rapid.T) {
				p, err := table.Pick(now, balance.Request{Model: "m"})
				if err == nil {
					held = append(held, p)
				}
			},
			"release": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.Skip("nothing held")
				}
				table.Release(now, held[0])
				held = held[1:]
			},
			"": func(rt *rapid.T) {
				if !listed {
					return
				}
				state := map[string]replica.Engine{}
				for _, e := range list {
					state[e.ID()] = e
				}
				for _, id := range usable(t, table, now, "m") {
					e, ok := state[id]
					if !ok || !e.Passing || e.Token < top[e.Name.ID] {
						rt.Fatalf("%s was picked, listed as %+v, highest token %d", id, e, top[e.Name.ID])
					}
				}
				total := 0
				for _, l := range table.Loads(now) {
					total += l.InFlight
					if n := l.Active + l.Suspect + l.Kept + l.Fenced + l.NotPassing; n != len(list) {
						rt.Fatalf("%d engines counted, %d listed", n, len(list))
					}
				}
				if total != len(held) {
					rt.Fatalf("%d in flight, %d held", total, len(held))
				}
			},
		})
	})
}

func BenchmarkPickRelease16Engines(b *testing.B) {
	table, err := balance.New(config)
	require.NoError(b, err)
	var list []replica.Engine
	for i := range 16 {
		list = append(list, eng(fmt.Sprintf("r%02d", i), slots(8)))
	}
	table.Update(t0, list, false)
	b.ReportAllocs()
	for b.Loop() {
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		if err != nil {
			b.Fatal(err)
		}
		table.Release(t0, p)
	}
}
