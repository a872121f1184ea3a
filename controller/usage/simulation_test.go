package usage_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/testkit/long"
)

// cell is a row of usage.
type cell struct{ day, key, model string }

// gateway is a process of a gateway, as api.UsageCounters has its duties.
type gateway struct {
	name  string
	since time.Time
	alive bool
	// counts are the requests of each row that it still has, and total all that it ever had.
	counts, total map[cell]int64
	// undelivered are the rows that it has to send; term is that of the last answer.
	undelivered map[cell]bool
	term        uint64
	// late are reports that are still on their way to the controller, after the gateway gave up.
	late []api.GatewayReport
	// taken is what the present leader has answered to have, and safe what a leader has committed
	// while it led: at least that is counted.
	taken, safe map[cell]int64
	takenTerm   uint64
}

func newGateway(name string, since time.Time) *gateway {
	return &gateway{name: name, since: since, alive: true, counts: map[cell]int64{}, total: map[cell]int64{}, undelivered: map[cell]bool{}, taken: map[cell]int64{}, safe: map[cell]int64{}}
}

// report returns a report with at most n of what is undelivered.
func (g *gateway) report(n int) (r api.GatewayReport, has map[cell]int64) {
	r, has = api.GatewayReport{Gateway: g.name, Index: 1, Since: g.since}, map[cell]int64{}
	for at := range g.undelivered {
		if len(r.Usage) < n {
			r.Usage = append(r.Usage, counters(at.day, at.key, at.model, g.counts[at]))
			has[at] = g.counts[at]
		}
	}
	return r, has
}

// answered is the answer to a report that had these counts.
func (g *gateway) answered(term uint64, has map[cell]int64) {
	if term == 0 {
		return
	}
	if term != g.term {
		g.term = term
		for at := range g.counts {
			g.undelivered[at] = true
		}
	}
	for at, n := range has {
		if g.counts[at] == n {
			delete(g.undelivered, at)
		}
	}
}

// forget drops the counters of days that are not counted any more.
func (g *gateway) forget(now time.Time) {
	for at := range g.counts {
		if !state.CountsUsageOf(at.day, now) {
			delete(g.counts, at)
			delete(g.undelivered, at)
		}
	}
}

// simulation is a cluster with gateways that are killed and cut off, and leaders that change.
type simulation struct {
	t        *rapid.T
	c        *cluster
	gateways []*gateway
	snapshot []byte
}

// TestUsageIsExact: what gateways count is counted once, whatever is lost on the way. Only the
// counts of a killed gateway that no leader had committed may be missing.
func TestUsageIsExact(t *testing.T) {
	for range long.Pick(2, 50) {
		rapid.Check(t, func(t *rapid.T) {
			s := &simulation{t: t, c: newCluster(t, 3)}
			s.c.next = func() outcome {
				return rapid.SampledFrom([]outcome{committed, committed, committed, committed, refused, lost, inLimbo, unheard}).Draw(t, "outcome")
			}
			s.c.setKey("a", state.KeyLimits{TokensPerDay: 1})
			for i := range 3 {
				s.gateways = append(s.gateways, newGateway(fmt.Sprint("g", i), s.c.clock.time()))
			}
			for range rapid.SampledFrom([]int{5, 20, 50, 100, 200}).Draw(t, "steps") {
				s.step()
				s.check()
			}
			s.settle()
		})
	}
}

// steps are what happens; a step that is there more often happens more often.
var steps = []string{
	"requests end", "requests end", "requests end", "requests end", "requests end", "requests end", "report", "report", "report", "report", "report", "commit", "commit", "commit",
	"elect", "kill a server", "snapshot", "kill a gateway", "time passes", "a late report arrives",
}

func (s *simulation) step() {
	g := s.live()
	switch rapid.SampledFrom(steps).Draw(s.t, "step") {
	case "requests end":
		at := cell{state.UsageDay(s.c.clock.time()), rapid.SampledFrom([]string{"a", "b", state.KeyAnonymous}).Draw(s.t, "key"), rapid.SampledFrom([]string{"m", "n"}).Draw(s.t, "model")}
		n := rapid.Int64Range(1, 9).Draw(s.t, "requests")
		g.counts[at] += n
		g.total[at] += n
		g.undelivered[at] = true
	case "report":
		s.report(g, rapid.SampledFrom([]string{"answered", "answered", "answered", "answer lost", "report lost", "late"}).Draw(s.t, "report"))
	case "commit":
		s.commit()
	case "elect":
		s.elect(rapid.SampledFrom(s.c.servers).Draw(s.t, "leader"), rapid.Bool().Draw(s.t, "limbo is committed"))
	case "kill a server": // it comes back; if it led, another one leads
		server := rapid.SampledFrom(s.c.servers).Draw(s.t, "killed")
		server.start(s.snapshot)
		if server == s.c.leader {
			s.elect(rapid.SampledFrom(s.c.servers).Draw(s.t, "leader"), rapid.Bool().Draw(s.t, "limbo is committed"))
		}
	case "snapshot":
		s.snapshot = snapshotOf(s.t, s.c.leader.store)
	case "kill a gateway": // it starts again with the same name or another one
		g.alive = false
		name := g.name
		if rapid.Bool().Draw(s.t, "another name") {
			name = fmt.Sprint("g", len(s.gateways))
		}
		s.c.clock.advance(time.Millisecond)
		s.gateways = append(s.gateways, newGateway(name, s.c.clock.time()))
	case "time passes":
		s.c.clock.advance(time.Duration(rapid.SampledFrom([]int{0, 1, 7, 26}).Draw(s.t, "hours")) * time.Hour)
		for _, g := range s.gateways {
			g.forget(s.c.clock.time())
		}
	case "a late report arrives":
		for _, g := range s.gateways {
			if len(g.late) > 0 {
				s.c.report(g.late[0])
				g.late = g.late[1:]
				return
			}
		}
	}
}

// live draws a gateway that lives.
func (s *simulation) live() *gateway {
	var live []*gateway
	for _, g := range s.gateways {
		if g.alive {
			live = append(live, g)
		}
	}
	return rapid.SampledFrom(live).Draw(s.t, "gateway")
}

func (s *simulation) report(g *gateway, what string) {
	r, has := g.report(rapid.SampledFrom([]int{1, 2, api.MaxReportUsage}).Draw(s.t, "entries"))
	switch what {
	case "report lost":
		return
	case "late":
		g.late = append(g.late, r)
		return
	}
	term, budgets := s.c.report(r)
	require.Equal(s.t, s.c.term, term)
	s.checkBudget(g, has, budgets["a"])
	if g.takenTerm != term {
		g.takenTerm = term
		clear(g.taken)
	}
	for at, n := range has {
		g.taken[at] = max(g.taken[at], n)
	}
	if what == "answered" {
		g.answered(term, has)
	}
}

// checkBudget: an answer has at least what its gateway has just reported, and never more than there
// was.
func (s *simulation) checkBudget(g *gateway, has map[cell]int64, used api.TokensUsed) {
	day := state.UsageDay(s.c.clock.time())
	var least, most int64
	for _, other := range s.gateways {
		for at, n := range other.total {
			if at.day == day && at.key == "a" {
				most += 10 * n
			}
		}
	}
	for at, n := range has {
		if at.day == day && at.key == "a" {
			least += 10 * n
		}
	}
	require.True(s.t, least <= used.Today && used.Today <= most && used.Today <= used.ThisMonth, "%d tokens of a: must be %d to %d, and at most %d", used.Today, least, most, used.ThisMonth)
}

// commit is one step of the leader. Where nothing is left to count, what was taken is safe.
func (s *simulation) commit() {
	s.c.commit()
	v := s.c.leader.store.View()
	for _, g := range s.gateways {
		if g.takenTerm != s.c.term {
			continue
		}
		for at, n := range g.taken {
			m := state.UsageMark{Day: at.day, Gateway: g.name, Since: g.since, Key: at.key, Model: at.model, Usage: state.Usage(counters(at.day, at.key, at.model, n).Usage)}
			if state.CountsUsageOf(at.day, s.c.clock.time()) && v.Uncounted(&m) == (state.Usage{}) {
				g.safe[at] = max(g.safe[at], n)
			}
		}
	}
}

func (s *simulation) elect(server *server, keepsLimbo bool) { s.c.elect(server, keepsLimbo) }

// check: no row has more than the gateways counted, or less than what was safe.
func (s *simulation) check() {
	least, most := map[cell]int64{}, map[cell]int64{}
	for _, g := range s.gateways {
		for at, n := range g.total {
			most[at] += n
			least[at] += g.safe[at]
		}
	}
	rows := map[cell]int64{}
	for _, r := range s.c.leader.store.View().UsageRows(nil, "") {
		at := cell{r.Day, r.Key, r.Model}
		rows[at] = r.Usage.Requests
		require.LessOrEqual(s.t, r.Usage.Requests, most[at], "counted twice: %v", at)
		require.Equal(s.t, state.Usage(counters(at.day, at.key, at.model, r.Usage.Requests).Usage), r.Usage, "counted in part: %v", at)
	}
	for at, n := range least {
		require.GreaterOrEqual(s.t, rows[at], n, "lost: %v", at)
	}
}

// settle lets everything that lives deliver and commit, and compares each row with what was counted.
func (s *simulation) settle() {
	s.c.next = func() outcome { return committed }
	for range 3 {
		for _, g := range s.gateways {
			for range 20 {
				if g.alive {
					r, has := g.report(api.MaxReportUsage)
					term, _ := s.c.report(r)
					g.answered(term, has)
				}
			}
			require.True(s.t, !g.alive || len(g.undelivered) == 0, "%s has delivered all", g.name)
		}
		s.c.commit()
	}
	s.check()
	v := s.c.leader.store.View()
	for _, g := range s.gateways {
		for at := range g.total {
			var exact, most int64
			for _, other := range s.gateways {
				n := other.safe[at] // of a killed one, or of a day that is over
				if other.alive && state.CountsUsageOf(at.day, s.c.clock.time()) {
					n = other.total[at]
				}
				exact += n
				most += other.total[at]
			}
			is := requests(v, at.day, at.key, at.model)
			require.True(s.t, exact <= is && is <= most, "%v: %d requests: must be %d to %d", at, is, exact, most)
		}
	}
	// Every server has the same, and a gateway that repeats all that it ever counted changes nothing.
	for _, server := range s.c.servers {
		server.catchUp()
		require.Equal(s.t, v.UsageRows(nil, ""), server.store.View().UsageRows(nil, ""))
	}
	entries := len(s.c.entries)
	s.elect(s.c.servers[0], false)
	for _, g := range s.gateways {
		if !g.alive {
			continue
		}
		r, has := g.report(api.MaxReportUsage)
		term, _ := s.c.report(r)
		g.answered(term, has)
		r, _ = g.report(api.MaxReportUsage)
		s.c.report(r)
	}
	s.c.commit()
	require.Len(s.t, s.c.entries, entries)
}
