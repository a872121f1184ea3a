package balance_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var config = balance.Config{Grace: 15 * time.Second, Remember: 10 * time.Minute}

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

func shadow(e *replica.Engine)   { e.Role, e.Port = replica.RoleShadow, 8001 }
func critical(e *replica.Engine) { e.Passing = false }
func token(n uint64) func(*replica.Engine) {
	return func(e *replica.Engine) { e.Token = replica.Token{Counter: n} }
}
func generation(n uint64) func(*replica.Engine) {
	return func(e *replica.Engine) { e.Token.Generation = n }
}

func slots(n int) func(*replica.Engine) { return func(e *replica.Engine) { e.Slots = n } }
func port(n int) func(*replica.Engine)  { return func(e *replica.Engine) { e.Port = n } }
func ofModel(name string) func(*replica.Engine) {
	return func(e *replica.Engine) { e.Name.Model = name }
}

// take picks an engine of model "m".
func take(t require.TestingT, table *balance.Table, now time.Time, tried ...string) balance.Pick {
	p, err := table.Pick(now, balance.Request{Model: "m", Tried: tried})
	require.NoError(t, err)
	return p
}

// busy requires that model "m" has engines and that none takes the request.
func busy(t require.TestingT, table *balance.Table, now time.Time, tried ...string) {
	p, err := table.Pick(now, balance.Request{Model: "m", Tried: tried})
	if err == nil {
		require.Fail(t, "want ErrBusy", "%s was picked", p.ServiceID)
	}
	require.ErrorIs(t, err, balance.ErrBusy)
}

// usable lists what Pick can reach at now where all slots are free, without lasting
// effect on load.
func usable(t *testing.T, table *balance.Table, now time.Time, model string) []string {
	t.Helper()
	var ids []string
	for {
		p, err := table.Pick(now, balance.Request{Model: model, Tried: ids})
		if err != nil {
			require.ErrorIs(t, err, balance.ErrNoEngine)
			require.Empty(t, ids)
			return nil
		}
		table.Release(now, p)
		if slices.Contains(ids, p.ServiceID) { // all have been tried
			return ids
		}
		ids = append(ids, p.ServiceID)
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := balance.New(balance.Config{
		Grace: -1, Remember: -3, Breaker: balance.BreakerConfig{Base: -1, Max: -1, Sole: -1}, Imbalance: balance.Imbalance{Factor: .5, Slack: -1},
	})
	for _, field := range []string{"Grace", "Remember", "Breaker.Base", "Breaker.Max", "Breaker.Sole", "Imbalance.Factor is 0.5", "Imbalance.Slack"} {
		require.ErrorContains(t, err, field)
	}
	_, err = balance.New(balance.Config{Breaker: balance.BreakerConfig{Base: time.Minute, Max: time.Second}, Imbalance: balance.Imbalance{Factor: math.NaN()}})
	require.ErrorContains(t, err, "Breaker.Max is 1s: must be at least Breaker.Base, which is 1m0s")
	require.ErrorContains(t, err, "Imbalance.Factor is NaN")
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
		{"the generation counts first", []replica.Engine{eng("a", token(41), generation(7)), eng("a", shadow, token(2), generation(8))}, []string{"m:v:a:shadow"}},
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
		table.Update(t0, cases[len(cases)-1].list, false)
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
	table.Failed(t0, old, balance.Dial)
	table.Update(t0, []replica.Engine{eng("a", port(9))}, false)
	require.Equal(t, 8000, old.Port, "an endpoint in use does not change")
	loads := table.Loads(t0)
	require.Equal(t, []balance.Load{{Model: "m", InFlight: 1, Work: 1, Slots: 1, Free: 1, Active: 1}}, loads, "closed; the old request still counts for the model")
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
		require.True(t, table.Failed(t0, p, balance.Dial))
		table.Release(t0, p)
		require.Equal(t, []string{b}, usable(t, table, t0.Add(5*time.Second), "m"))
		table.Update(t0.Add(6*time.Second), nil, false)
		require.Equal(t, []string{b}, usable(t, table, t0.Add(6*time.Second), "m"))
	})
}

// TestConsulAwayAgain: engines that are kept over an outage are kept while Consul is
// away once more, and for Grace after that.
func TestConsulAwayAgain(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a")}, false)
	table.Update(t0, nil, true)
	table.Lost(t0.Add(config.Grace - 1))
	much := t0.Add(time.Hour)
	require.Equal(t, []string{"m:v:a:primary"}, usable(t, table, much, "m"))
	require.Empty(t, table.Expire(much))
	table.Update(much, nil, true)
	require.Len(t, usable(t, table, much.Add(config.Grace-1), "m"), 1)
	require.Empty(t, usable(t, table, much.Add(config.Grace), "m"))
	table.Expire(much.Add(config.Grace))
	require.Empty(t, table.Loads(much.Add(config.Grace))[0].Kept)
}
