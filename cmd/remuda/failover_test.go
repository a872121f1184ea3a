package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

func TestFailover(t *testing.T) {
	answered := func(f api.Failover) *running {
		t.Helper()
		return said(t, map[string]any{
			"GET /v1/replicas":                []api.Replica{{Name: "m:v:1", ID: "1"}},
			"POST /v1/replica/m:v:1/failover": f,
		})
	}
	f := api.Failover{Replica: "m:v:1", From: "primary", To: "shadow", Drained: api.Duration(2500 * time.Millisecond), TookOver: api.Duration(230 * time.Millisecond)}
	require.Equal(t, "Draining the engine of m:v:1 that serves, for at most 30s.\nThe primary was drained in 2.50 s and has ended. The shadow serves, 0.23 s after that.\n", answered(f).ok("failover", "m:v"))
	require.Equal(t, "Draining the engine of m:v:1 that serves, for at most 1m0s.\nThe primary was drained in 2.50 s and has ended. The shadow serves, 0.23 s after that.\n", answered(f).ok("failover", "1", "-timeout", "60s"))
	f.Drill, f.Drained = true, 0
	require.Equal(t, "Ending the engine of m:v:1 that serves.\nThe primary has ended. The shadow serves, 0.23 s after that.\n", answered(f).ok("failover", "1", "-drill"))
	var got api.Failover
	answered(f).json(&got, "failover", "1", "-drill")
	require.Equal(t, f, got)
	require.Contains(t, answered(f).do("failover", "2").errout, `no replica "2": see "remuda replica list"`)
}

// Of a model the replica that has not failed over for the longest time is taken, if it can.
func TestFailoverOfAModel(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pair := func(id string, failedOver time.Duration, degraded string) api.Replica {
		return api.Replica{Name: "m:v:" + id, ID: id, Model: "m", Pair: &api.Pair{Serves: "primary", Degraded: degraded, LastFailover: api.Takeover{At: at.Add(failedOver)}}}
	}
	answer := map[string]any{
		"GET /v1/replicas":                []api.Replica{pair("1", -time.Hour, "no standby"), pair("2", 0, ""), pair("3", -time.Minute, ""), {Name: "m:v:4", ID: "4", Model: "m"}},
		"POST /v1/replica/m:v:3/failover": api.Failover{Replica: "m:v:3", From: "primary", To: "shadow", Drill: true},
	}
	require.Contains(t, said(t, answer).ok("failover", "m", "-drill"), "Ending the engine of m:v:3 that serves.")
	answer["GET /v1/replicas"] = []api.Replica{pair("1", 0, "no standby"), pair("2", 0, "no standby")}
	require.Contains(t, said(t, answer).do("failover", "m").errout, `none of the 2 replicas of model m can fail over now: see "remuda replica list"`)
}

// The status of a replica ends with what the engine printed that the last failover replaced.
func TestStatusHasTheLogOfAFailover(t *testing.T) {
	r := api.Replica{Name: "m:v:1", ID: "1", Model: "m", Pair: &api.Pair{Serves: "shadow", LastFailover: api.Takeover{
		From: "primary", Cause: "exited", Reason: "signal: killed", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 0.2, Log: "loading\nout of memory"}}}
	answer := map[string]any{"GET /v1/replicas": []api.Replica{r}, "GET /v1/replica/m:v:1": r}
	require.Regexp(t, `(?s)Last failover += .*the primary ended \(exited: signal: killed\).*\n\nLast lines of the primary before that failover\nloading\nout of memory\n$`, said(t, answer).ok("replica", "status", "1"))
}

// A pair whose standby is missing is marked, with the reason and for how long, and its last failover with the cause.
func TestPairWithoutAStandby(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pair := api.Replica{Name: "m:v:1", ID: "1", Model: "m", Current: true, Tier: "HOT", Status: "serving", Pair: &api.Pair{
		Serves: "shadow", Degraded: "the primary cannot take over: the engine is loading", DegradedSince: time.Now().Add(-90 * time.Second),
		LastFailover: api.Takeover{From: "primary", Cause: "exited", Reason: "signal: killed", At: at, Seconds: 0.154, GPU: "GPU a of node n is unhealthy: XID 79", Log: "the last line\n"},
	}}
	r := said(t, map[string]any{"GET /v1/replicas": []api.Replica{pair}, "GET /v1/replica/m:v:1": pair})
	require.Contains(t, r.ok("replica", "list"), "DEGRADED: the primary cannot take over: the engine is loading")
	status := r.ok("replica", "status", "1")
	require.Regexp(t, `Serves\s+= shadow\n`, status)
	require.Regexp(t, `Standby\s+= missing for 1m3\ds\n`, status)
	require.Regexp(t, `Last failover\s+= .*, in 0.154 s: the primary ended \(exited: signal: killed\); GPU a of node n is unhealthy: XID 79\n`, status)
	require.Regexp(t, `Last lines of the primary before that failover\n\s*the last line`, status)

	pair.Pair.Degraded, pair.Pair.DegradedSince, pair.Pair.StandbySince = "", time.Time{}, time.Now().Add(-5*time.Minute)
	r = said(t, map[string]any{"GET /v1/replicas": []api.Replica{pair}, "GET /v1/replica/m:v:1": pair})
	require.Regexp(t, `Standby\s+= ready for 5m`, r.ok("replica", "status", "1"))
	pair.Pair.StandbySince = time.Time{} // by a server of an older version
	r = said(t, map[string]any{"GET /v1/replicas": []api.Replica{pair}, "GET /v1/replica/m:v:1": pair})
	require.Regexp(t, `Standby\s+= ready\n`, r.ok("replica", "status", "1"))
}
