package balance_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// held is a pick that has not been released.
type held struct {
	balance.Pick
	cost int64
}

// machine drives a table with random updates, picks and outcomes, and knows what the
// last list and orders say.
type machine struct {
	table    *balance.Table
	now      time.Time
	list     map[string]replica.Engine // by service ID
	listed   bool
	top      map[string]replica.Token // of all time: Remember is longer than a run
	draining map[string]bool
	away     bool
	held     []held
}

func (m *machine) pass(rt *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
}

func (m *machine) update(rt *rapid.T) {
	list := rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) replica.Engine {
		e := eng(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "replica"))
		if rapid.Bool().Draw(rt, "shadow") {
			shadow(&e)
		}
		e.Token = replica.Token{Generation: rapid.Uint64Range(0, 1).Draw(rt, "generation"), Counter: rapid.Uint64Range(0, 2).Draw(rt, "token")}
		e.Slots = rapid.IntRange(0, 3).Draw(rt, "slots")
		e.Passing = rapid.Float64Range(0, 1).Draw(rt, "passing") < .8
		e.NodeDown = !e.Passing && rapid.Bool().Draw(rt, "node down")
		return e
	}), 0, 6, replica.Engine.ID).Draw(rt, "engines")
	m.table.Update(m.now, list, false)
	m.list, m.listed = map[string]replica.Engine{}, true
	for _, e := range list {
		m.list[e.ID()] = e
		if e.Token.Compare(m.top[e.Name.ID]) > 0 {
			m.top[e.Name.ID] = e.Token
		}
	}
}

func (m *machine) direct(rt *rapid.T) {
	m.draining = map[string]bool{}
	for _, id := range rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c"})).Draw(rt, "draining") {
		m.draining["m:v:"+id] = true
	}
	m.away = rapid.Bool().Draw(rt, "away")
	m.table.Direct(m.now, balance.Orders{Draining: m.draining, Models: map[string]bool{"m": false}, Away: m.away})
}

// usable tells whether the engine may serve as far as Consul and tokens go.
func (m *machine) usable(e replica.Engine) bool {
	return (e.Passing || e.NodeDown) && e.Token.Compare(m.top[e.Name.ID]) >= 0
}

// others tells whether an engine may serve whose replica does not drain.
func (m *machine) others() bool {
	for _, e := range m.list {
		if m.usable(e) && !m.draining[e.Name.String()] {
			return true
		}
	}
	return false
}

// at is how many requests are held at exactly this process.
func (m *machine) at(p *balance.Endpoint) (n int) {
	for _, h := range m.held {
		if h.ServiceID == p.ServiceID && h.Addr == p.Addr && h.Token == p.Token {
			n++
		}
	}
	return n
}

func (m *machine) pick(rt *rapid.T) {
	r := balance.Request{
		Model: "m", Cost: rapid.Int64Range(1, 5000).Draw(rt, "cost"), Prefix: rapid.Uint64Range(0, 2).Draw(rt, "prefix"),
		Tried: rapid.SliceOf(rapid.SampledFrom([]string{engineA, engineB, engineC, "m:v:a:shadow"})).Draw(rt, "tried"),
	}
	before := m.table.Loads(m.now)
	p, err := m.table.Pick(m.now, r)
	if err != nil {
		m.refused(rt, r, err)
		return
	}
	e, ok := m.list[p.ServiceID]
	if !ok || !m.usable(e) {
		rt.Fatalf("%s was picked, listed as %+v, highest token %d", p.ServiceID, e, m.top[p.Name.ID])
	}
	if m.draining[p.Replica] && (!m.away || m.others()) {
		rt.Fatalf("%s was picked although it drains; away %t, others %t", p.ServiceID, m.away, m.others())
	}
	if n := m.at(p.Endpoint); n >= max(e.Slots, 1) {
		rt.Fatalf("%s has %d requests and %d slots, and was picked; before: %+v", p.ServiceID, n, e.Slots, before)
	}
	m.held = append(m.held, held{p, r.Cost})
}

func (m *machine) refused(rt *rapid.T, r balance.Request, err error) {
	s := m.table.State(m.now, "m")
	switch {
	case !m.listed:
		if !errors.Is(err, balance.ErrNoList) {
			rt.Fatal(err)
		}
	case errors.Is(err, balance.ErrUnknownModel):
		if s.Known {
			rt.Fatalf("unknown, with state %+v", s)
		}
	case errors.Is(err, balance.ErrNoEngine):
		if s.Usable > 0 {
			rt.Fatalf("no engine, with state %+v", s)
		}
	case errors.Is(err, balance.ErrBusy):
		// Whoever waits is woken: by a request's end or by the clock.
		at, ok := m.table.NextProbe(m.now, "m")
		if s.Usable == 0 || !ok && len(m.held) == 0 {
			rt.Fatalf("busy, with state %+v, %d held and nothing to come", s, len(m.held))
		}
		if ok && !at.After(m.now) {
			rt.Fatalf("the next probe is due since %s", m.now.Sub(at))
		}
		if l := m.table.Loads(m.now)[0]; len(r.Tried) == 0 && l.Open == 0 && l.Kept == 0 && l.Free > 0 {
			rt.Fatalf("busy, with free slots: %+v", l)
		}
	default:
		rt.Fatal(err)
	}
}

// end ends one request with a random outcome.
func (m *machine) end(rt *rapid.T) {
	if len(m.held) == 0 {
		rt.Skip("nothing held")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(rt, "which")
	h := m.held[i]
	switch o := rapid.IntRange(0, 9).Draw(rt, "outcome"); {
	case o < 7:
		fault := balance.Fault(o)
		if fault == balance.Cut {
			m.table.Answered(m.now, h.Pick)
		}
		m.table.Failed(m.now, h.Pick, fault)
		if e, ok := m.list[h.ServiceID]; ok && fault == balance.Dial && e.NodeDown {
			e.NodeDown = false // it is dropped
			if e.HostPort() == h.Addr && e.Token == h.Token {
				m.list[h.ServiceID] = e
			}
		}
	case o < 9:
		m.table.Answered(m.now, h.Pick)
	}
	m.table.Release(m.now, h.Pick)
	m.held = append(m.held[:i], m.held[i+1:]...)
}

func (m *machine) check(rt *rapid.T) {
	var cost int64
	for _, h := range m.held {
		cost += h.cost
	}
	for _, l := range m.table.Loads(m.now) {
		if l.InFlight != len(m.held) || l.Work != cost {
			rt.Fatalf("%d in flight with %d tokens, held are %d with %d", l.InFlight, l.Work, len(m.held), cost)
		}
		if n := l.Active + l.Draining + l.Open + l.Kept + l.Fenced + l.NotPassing; n != len(m.list) {
			rt.Fatalf("%d engines counted, %d listed", n, len(m.list))
		}
		if l.Free > l.Slots || l.Free < 0 {
			rt.Fatalf("%d of %d slots are free", l.Free, l.Slots)
		}
	}
	if _, loads := m.table.Flights(64, 1000); len(m.held) > 0 && len(loads) == 0 {
		rt.Fatal("requests without a replica")
	}
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, err := balance.New(config)
		if err != nil {
			rt.Fatal(err)
		}
		m := &machine{table: table, now: t0, top: map[string]replica.Token{}}
		rt.Repeat(map[string]func(*rapid.T){
			"update": m.update, "direct": m.direct, "pass": m.pass, "pick": m.pick, "pick too": m.pick, "end": m.end, "": m.check,
		})
	})
}

// TestEveryEngineComesBack: whatever happened, once the faults end, all engines serve
// again after the longest time for which a breaker opens.
func TestEveryEngineComesBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, err := balance.New(config)
		if err != nil {
			rt.Fatal(err)
		}
		table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b", slots(2)), eng("c", slots(2))}, false)
		now := t0
		for range rapid.IntRange(0, 40).Draw(rt, "requests") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(rt, "ms")) * time.Millisecond)
			p, err := table.Pick(now, balance.Request{Model: "m"})
			if err != nil {
				continue
			}
			if rapid.Bool().Draw(rt, "bad") {
				table.Failed(now, p, balance.Fault(rapid.IntRange(0, 6).Draw(rt, "fault")))
			} else {
				table.Answered(now, p)
			}
			table.Release(now, p)
		}
		now = now.Add(30 * time.Second)
		for range 3 { // each of those that are open gets its probe at once
			serve(rt, table, now)
		}
		if l := table.Loads(now)[0]; l.Active != 3 || l.Free != 6 {
			rt.Fatalf("want three active engines: %+v", l)
		}
	})
}
