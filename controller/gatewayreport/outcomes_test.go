package gatewayreport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

// ended is a report of what replica r1 answered and failed, and failed in a row.
func ended(gateway string, answered, failed, inARow int64) api.GatewayReport {
	return report(gateway, 1, api.ReplicaLoad{Name: r1, Answered: answered, Failed: failed, FailedInARow: inARow})
}

func TestOutcomesAreWhatCameSinceTheReportBefore(t *testing.T) {
	s, c := listening()
	is := func(recent, row gatewayreport.Outcomes, why string) {
		t.Helper()
		l := s.Totals()[r1]
		require.Equal(t, recent, l.Recent, why)
		require.Equal(t, row, l.Row, why)
	}
	put := func(r api.GatewayReport) {
		t.Helper()
		require.NoError(t, s.Put(r))
	}
	// wait lets time pass in which gateway b goes on reporting the same.
	wait := func(d time.Duration, same api.GatewayReport) {
		t.Helper()
		for ; d > 0; d -= ttl / 2 {
			c.advance(min(d, ttl/2))
			put(same)
		}
	}
	put(ended("a", 1000, 500, 7))
	is(gatewayreport.Outcomes{}, gatewayreport.Outcomes{}, "what was before is not known to be recent")
	put(ended("a", 1003, 502, 1))
	is(gatewayreport.Outcomes{Answered: 3, Failed: 2}, gatewayreport.Outcomes{Failed: 1}, "one of the failures was before the last answer")
	put(ended("a", 1003, 502, 1))
	is(gatewayreport.Outcomes{Answered: 3, Failed: 2}, gatewayreport.Outcomes{Failed: 1}, "a report that comes twice")
	put(ended("a", 1001, 500, 0))
	put(ended("a", 1003, 502, 1))
	is(gatewayreport.Outcomes{Answered: 3, Failed: 2}, gatewayreport.Outcomes{Failed: 1}, "a report that comes late")

	put(ended("b", 0, 0, 0))
	c.advance(6 * time.Second)
	put(ended("b", 0, 2, 2))
	is(gatewayreport.Outcomes{Answered: 3, Failed: 4, Over: 6 * time.Second}, gatewayreport.Outcomes{Failed: 3, Over: 6 * time.Second}, "at both gateways")
	put(ended("a2", 0, 0, 0)) // a began again, under another name
	put(ended("a2", 1, 0, 0))
	is(gatewayreport.Outcomes{Answered: 4, Failed: 4, Over: 6 * time.Second}, gatewayreport.Outcomes{}, "an answer at any gateway ends the row")
	put(ended("b", 0, 3, 3))
	is(gatewayreport.Outcomes{Answered: 4, Failed: 5, Over: 6 * time.Second}, gatewayreport.Outcomes{Failed: 1}, "another row")

	wait(gatewayreport.RecentTime-6*time.Second, ended("b", 0, 3, 3))
	is(gatewayreport.Outcomes{Answered: 1, Failed: 3}, gatewayreport.Outcomes{Failed: 1}, "the oldest are not recent any more")
	wait(6*time.Second, ended("b", 0, 3, 3))
	is(gatewayreport.Outcomes{}, gatewayreport.Outcomes{Failed: 1}, "the row goes on")
	put(ended("b", 0, 4, 4))
	is(gatewayreport.Outcomes{Failed: 1}, gatewayreport.Outcomes{Failed: 2, Over: gatewayreport.RecentTime}, "slowly")
	wait(2*time.Minute, ended("b", 0, 4, 4))
	is(gatewayreport.Outcomes{}, gatewayreport.Outcomes{}, "without requests for long, it is over")
	put(ended("b", 0, 5, 5))
	is(gatewayreport.Outcomes{Failed: 1}, gatewayreport.Outcomes{Failed: 1}, "and another one begins")

	s.Begin(1)
	is(gatewayreport.Outcomes{}, gatewayreport.Outcomes{}, "a new leader knows nothing")
	put(ended("b", 0, 9, 9))
	is(gatewayreport.Outcomes{}, gatewayreport.Outcomes{}, "and takes nothing old for new")
	put(ended("b", 0, 10, 10))
	is(gatewayreport.Outcomes{Failed: 1}, gatewayreport.Outcomes{Failed: 1}, "but what comes then")
}

// A gateway that has lost a replica and knows it again counts from nothing; one that was given
// up reports as for the first time.
func TestOutcomesOfAGatewayThatCountsAnew(t *testing.T) {
	s, c := listening()
	put := func(r api.GatewayReport) { require.NoError(t, s.Put(r)) }
	put(ended("a", 10, 0, 0))
	put(report("a", 1))
	put(ended("a", 2, 1, 1))
	require.Equal(t, gatewayreport.Outcomes{Answered: 2, Failed: 1}, s.Totals()[r1].Recent)
	c.advance(ttl)
	put(ended("a", 5, 4, 4))
	require.Equal(t, gatewayreport.Outcomes{Answered: 2, Failed: 1}, s.Totals()[r1].Recent, "what came meanwhile is not known")
}

func TestFailing(t *testing.T) {
	s, c := listening()
	require.NoError(t, s.Put(ended("a", 0, 0, 0)))
	require.NoError(t, s.Put(ended("a", 90, 4, 0)))
	require.False(t, s.Failing(5))
	require.NoError(t, s.Put(ended("a", 90, 5, 1)))
	require.True(t, s.Failing(5))
	c.advance(gatewayreport.RecentTime)
	require.False(t, s.Failing(5))
}

func TestOutcomesOfAReportAreChecked(t *testing.T) {
	for want, r := range map[string]api.ReplicaLoad{
		"answered is -1 and failed is 0: must be 0 to":     {Name: r1, Answered: -1},
		"answered is 0 and failed is -2: must be 0 to":     {Name: r1, Failed: -2},
		"failed in a row is 3: must be 0 to 2, all that f": {Name: r1, Failed: 2, FailedInARow: 3},
		"failed in a row is -1: must be 0 to 0":            {Name: r1, FailedInARow: -1},
		"answered is 9223372036854775807 and failed is 0":  {Name: r1, Answered: 1<<63 - 1},
	} {
		require.ErrorContains(t, gatewayreport.Validate(report("a", 1, r)), want)
	}
	require.NoError(t, gatewayreport.Validate(ended("a", 3, 2, 2)))
}

// TestOutcomesAreNeverMoreThanWhatEnded: whichever reports are lost, come twice or come late,
// no request counts twice.
func TestOutcomesAreNeverMoreThanWhatEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, c := listening()
		type counts struct{ answered, failed, row int64 }
		now := map[string]counts{}
		sent := map[string][]api.GatewayReport{}
		var answered, failed int64
		heard := map[string]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			g := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "gateway")
			n := now[g]
			put := func(r api.GatewayReport) {
				require.NoError(t, s.Put(r))
				heard[g] = c.now
			}
			switch rapid.SampledFrom([]string{"answer", "fail", "report", "again", "late", "wait"}).Draw(t, "what") {
			case "answer":
				n.answered, n.row = n.answered+1, 0
				answered++
			case "fail":
				n.failed, n.row = n.failed+1, n.row+1
				failed++
			case "report":
				r := ended(g, n.answered, n.failed, n.row)
				sent[g] = append(sent[g], r)
				put(r)
			case "again":
				if l := len(sent[g]); l > 0 {
					put(sent[g][l-1])
				}
			case "late": // one that was overtaken by the newest
				// A gateway that was silent for its time to live is forgotten, and nothing tells then
				// that a report is late. Gateways give a report up after a third of that time.
				if l := len(sent[g]); l > 1 && c.now.Sub(heard[g]) < ttl {
					put(sent[g][l-2])
					put(sent[g][l-1])
				}
			case "wait":
				c.advance(time.Second)
			}
			now[g] = n
			l := s.Totals()[r1]
			require.LessOrEqual(t, l.Recent.Answered, answered)
			require.LessOrEqual(t, l.Recent.Failed, failed)
			require.LessOrEqual(t, l.Row.Failed, failed)
			require.Zero(t, l.Row.Answered)
			require.LessOrEqual(t, l.Recent.Over, gatewayreport.RecentTime)
		}
	})
}
