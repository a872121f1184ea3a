package gatewayreport_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

// counts is a report with counters of the model m: as many seconds as requests finished.
func counts(gateway string, arrived, finished int64) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Counters: []api.ModelCounters{{Model: "m", Counters: api.Counters{Arrived: arrived, Finished: finished, ServedSeconds: float64(finished)}}}}
}

func counted(arrived, finished int64) api.Counters {
	return api.Counters{Arrived: arrived, Finished: finished, ServedSeconds: float64(finished)}
}

func TestCountersGrowByWhatGatewaysCount(t *testing.T) {
	s, c := listening()
	is := func(want api.Counters, why string) {
		t.Helper()
		got, ok := s.Count("m")
		require.True(t, ok, why)
		require.Equal(t, want, got, why)
	}
	_, ok := s.Count("m")
	require.False(t, ok, "nobody counts it")
	s.Put(counts("a", 1000, 900))
	is(counted(0, 0), "what was before is left out")
	s.Put(counts("a", 1010, 905))
	is(counted(10, 5), "ten more")
	s.Put(counts("b", 1_000_000, 1_000_000))
	is(counted(10, 5), "a gateway that is heard late makes no load")
	s.Put(counts("b", 1_000_001, 1_000_000))
	s.Put(counts("a", 1010, 905))
	is(counted(11, 5), "one more")

	// One of them is lost, and heard again.
	c.advance(ttl / 2)
	s.Put(counts("a", 1011, 906))
	c.advance(ttl / 2)
	is(counted(12, 6), "b is gone, and takes nothing with it")
	s.Put(counts("b", 1_000_500, 1_000_400))
	is(counted(12, 6), "b is heard again: what came meanwhile is lost, and nothing counts twice")
	s.Put(counts("b", 1_000_501, 1_000_400))
	is(counted(13, 6), "it goes on")

	// One starts again under another name, as gateways do.
	s.Put(counts("a2", 0, 0))
	s.Put(counts("a2", 4, 1))
	is(counted(17, 7), "the new one counts from nothing")
	// One forgets the model, as it had no engine for long, and counts it anew.
	s.Put(report("a2", 1))
	s.Put(counts("a2", 2, 1))
	is(counted(19, 8), "all that it counts is new")
	s.Put(counts("a2", 1, 1))
	is(counted(19, 8), "of what is lower nobody knows whether it is old or counted anew")
	s.Put(counts("a2", 1, 1))
	is(counted(19, 8), "it is counted anew")
	s.Put(counts("a2", 3, 2))
	is(counted(21, 9), "and goes on")

	s.Begin(1)
	_, ok = s.Count("m")
	require.False(t, ok, "a new time of leading")
	s.Put(counts("a2", 50, 50))
	c.advance(ttl - 1)
	s.Put(counts("a2", 60, 60))
	_, ok = s.Count("m")
	require.False(t, ok, "not every gateway can have reported")
	c.advance(1)
	is(counted(10, 10), "it counts from the first report on")
	c.advance(ttl)
	_, ok = s.Count("m")
	require.False(t, ok, "nobody counts it any more")
}

// Requests that were refused or failed, and the times to first bytes and tokens, are counted as the others are.
func TestRefusedRequestsAreCounted(t *testing.T) {
	s, c := listening()
	is := func(want int64, why string) {
		t.Helper()
		got, ok := s.Count("m")
		require.True(t, ok, why)
		require.Equal(t, api.Counters{Refused: want, Late: 2 * want, Errors: want, Answers: want, FirstByteSeconds: float64(want), FirstTokens: want, FirstTokenSeconds: float64(want)}, got, why)
	}
	refused := func(gateway string, n int64) {
		s.Put(api.GatewayReport{Gateway: gateway, Index: 1, Counters: []api.ModelCounters{{Model: "m", Counters: api.Counters{Refused: n, Late: 2 * n, Errors: n, Answers: n, FirstByteSeconds: float64(n), FirstTokens: n, FirstTokenSeconds: float64(n)}}}})
	}
	refused("a", 100)
	refused("b", 1000)
	is(0, "what was before is left out")
	refused("a", 103)
	refused("b", 1001)
	is(4, "of both")
	refused("a", 2)
	is(4, "lower than it was: nobody knows yet")
	refused("a", 4)
	is(6, "it is counted anew, from there")
	c.advance(ttl / 2)
	refused("a", 5)
	c.advance(ttl / 2)
	is(7, "b is gone, and takes nothing with it")
	refused("b", 5000)
	is(7, "what came meanwhile is lost")
}

// A host that was suspended sends what it had to say when it goes on, and so does a server in
// between: an old report may come after newer ones.
func TestAReportThatComesLateMakesNoLoad(t *testing.T) {
	s, _ := listening()
	s.Put(counts("a", 1_000_000, 999_990))
	s.Put(counts("a", 1_000_020, 1_000_000))
	for i, late := range []api.GatewayReport{counts("a", 1_000_000, 999_990), counts("a", 1_000_010, 999_995), counts("a", 1_000_000, 999_990)} {
		s.Put(late)
		got, ok := s.Count("m")
		require.True(t, ok)
		require.LessOrEqual(t, got.Arrived, int64(30), "late report %d", i)
	}
	s.Put(counts("a", 1_000_030, 1_000_005))
	got, ok := s.Count("m")
	require.True(t, ok)
	require.LessOrEqual(t, got.Arrived, int64(50))

	s, _ = listening()
	s.Put(counts("a", 1_000_000, 999_990))
	s.Put(counts("a", 1_000_020, 1_000_000))
	s.Put(counts("a", 1_000_000, 999_990))
	s.Put(counts("a", 1_000_030, 1_000_005))
	got, ok = s.Count("m")
	require.True(t, ok)
	require.Equal(t, counted(30, 15), got, "a single one costs nothing")
}

func TestCountersAreAbsentWhereOneDoesNotCount(t *testing.T) {
	s, _ := listening()
	s.Put(counts("a", 5, 5))
	s.Put(queued("old", waits("n", api.QueueDeploying, 1, 0)))
	_, ok := s.Count("m")
	require.True(t, ok, "the old gateway has nothing of it")
	s.Put(queued("old", waits("m", api.QueueDeploying, 1, 0)))
	_, ok = s.Count("m")
	require.False(t, ok, "a part would be taken for all")
	s.Put(report("old", 1, busy(r1, 1)))
	_, ok = s.Count("m")
	require.False(t, ok, "at its engines neither")
	s.Put(report("old", 1))
	got, ok := s.Count("m")
	require.True(t, ok)
	require.Equal(t, counted(0, 0), got)
}

// A report that has no room for all models may have left one out that is not new.
func TestCountersOfAReportThatIsFull(t *testing.T) {
	s, _ := listening()
	full := api.GatewayReport{Gateway: "a", Index: 1}
	for i := range api.MaxReportQueues {
		full.Counters = append(full.Counters, api.ModelCounters{Model: fmt.Sprint("n", i), Counters: api.Counters{Arrived: 1}})
	}
	s.Put(full)
	full.Counters = append([]api.ModelCounters{{Model: "m", Counters: api.Counters{Arrived: 1_000_000, Finished: 1_000_000}}}, full.Counters[1:]...)
	s.Put(full)
	got, ok := s.Count("m")
	require.True(t, ok)
	require.Zero(t, got.Arrived)
	require.Zero(t, got.Finished)
	_, ok = s.Count("n0")
	require.False(t, ok, "it is forgotten")
}

func TestCountersAreNoNews(t *testing.T) {
	s, _ := listening()
	s.Put(counts("a", 1, 0))
	ch := s.Changed()
	s.Put(counts("a", 2, 1))
	select {
	case <-ch:
		t.Fatal("a number wakes nobody")
	default:
	}
}

// Whatever gateways do, the sum never falls while the store listens and a gateway counts,
// and never grows by more than what came.
func TestCountersNeverJump(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, c := listening()
		all := int64(0)
		arrived := map[string]int64{}
		last := int64(0)
		for i := range 4 {
			name := fmt.Sprint("g", i)
			arrived[name] = rapid.Int64Range(0, 1_000_000_000).Draw(t, "before")
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := fmt.Sprint("g", rapid.IntRange(0, 3).Draw(t, "gateway"))
			came := rapid.Int64Range(0, 100).Draw(t, "came")
			all += came
			switch rapid.SampledFrom([]string{"reports", "reports", "reports", "is silent", "restarts", "waits"}).Draw(t, "what") {
			case "is silent":
				arrived[name] += came
				continue
			case "restarts":
				arrived[name] = came
			case "waits":
				c.advance(time.Duration(rapid.Int64Range(0, int64(ttl)).Draw(t, "time")))
				arrived[name] += came
			default:
				arrived[name] += came
			}
			s.Put(counts(name, arrived[name], 0))
			got, ok := s.Count("m")
			require.True(t, ok)
			require.LessOrEqual(t, got.Arrived, all, "no more than came")
			if got.Arrived < last {
				require.Zero(t, got.Arrived, "it began anew: nobody had counted it for a while")
			}
			last = got.Arrived
		}
	})
}

func TestValidateNamesEveryFaultOfCounters(t *testing.T) {
	require.NoError(t, gatewayreport.Validate(counts("g", 2, 1)))
	err := gatewayreport.Validate(api.GatewayReport{Gateway: "g", Counters: []api.ModelCounters{{Model: "a b"}, {Model: "m", Counters: api.Counters{Arrived: -1}},
		{Model: "m", Counters: api.Counters{Finished: math.MaxInt64, ServedSeconds: math.NaN(), Refused: -7, Late: -3}}, {Model: "n", Counters: api.Counters{Refused: math.MaxInt64, Errors: -1, FirstByteSeconds: math.Inf(1), FirstTokens: -2, FirstTokenSeconds: -1}}}})
	for _, want := range []string{`counters of model "a b": name is "a b"`, `counters of model "m": arrived is -1 and finished is 0`,
		`counters of model "m": arrived is -1 and finished is 0`, "arrived is 0 and finished is 9223372036854775807", "served seconds is NaN: must be 0 to 1e+16",
		`counters of model "m": late is -3: must be 0 to 9007199254740991`, `counters of model "m": refused is -7: must be 0 to 9007199254740991`, `counters of model "n": refused is 9223372036854775807`,
		`counters of model "n": errors is -1 and answers is 0: must be 0 to`, `first byte seconds is +Inf`, `first tokens is -2: must be 0 to`, `first token seconds is -1: must be 0 to`} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, gatewayreport.Validate(api.GatewayReport{Gateway: "g", Counters: make([]api.ModelCounters, api.MaxReportQueues+1)}), "1001 models with counters: must be at most 1000")
}
