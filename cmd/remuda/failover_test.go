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
