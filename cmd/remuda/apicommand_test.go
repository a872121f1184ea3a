package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// said is a controller that answers as it is told, by "METHOD path".
func said(t *testing.T, answers map[string]any) *running {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := answers[r.Method+" "+r.URL.EscapedPath()]
		if !ok {
			a = &api.Error{Status: http.StatusNotFound, Code: api.CodeNoRoute, Message: "not told: " + r.Method + " " + r.URL.EscapedPath()}
		}
		if f, ok := a.(func() any); ok {
			a = f()
		}
		w.Header().Set(api.HeaderIndex, "1")
		if e, ok := a.(*api.Error); ok {
			w.WriteHeader(e.Status)
		}
		_ = json.NewEncoder(w).Encode(a)
	}))
	t.Cleanup(s.Close)
	return &running{t: t, url: s.URL}
}

// TestAScaleDoesNotFailForAnOldRollback: a change that was rolled back before is not
// what was asked for now.
func TestAScaleDoesNotFailForAnOldRollback(t *testing.T) {
	status := func(versions ...int) api.ModelStatus {
		s := api.ModelStatus{Model: api.Model{Name: "m", Target: 2, Version: 1, StableVersion: 1, Rollouts: map[string]api.Rollout{"v": {Status: "rolled_back", Version: 2, Reason: "it did not start"}}}}
		for i, n := range versions {
			s.Replicas = append(s.Replicas, api.Replica{Name: fmt.Sprint("m:v:", i), Model: "m", Variant: "v", Version: n, Current: n == 1, Tier: "HOT", Status: "serving", Goal: "run"})
		}
		return s
	}
	asked := 0
	r := said(t, map[string]any{
		"GET /v1/models":        []api.ModelSummary{{Name: "m", Variants: []string{"v"}}},
		"PUT /v1/model/m/scale": api.ScaleResponse{Model: "m", Target: 2, Changed: true},
		"PUT /v1/model/m/start": api.ScaleResponse{Model: "m", Target: 2, Changed: true},
		"GET /v1/model/m": func() any {
			if asked++; asked < 3 {
				return status(1, 2)
			}
			return status(1, 1)
		},
	})
	r.ok("scale", "m", "2")
	require.Equal(t, 3, asked, "it was watched until both are of what the variant was")
	r.ok("model", "start", "m")
	// Whoever applied the change wants to know.
	_, err := settled(status(1, 1))
	require.ErrorContains(t, err, "was rolled back: it did not start")
}

func TestAScaleOfAStoppedModelSaysSo(t *testing.T) {
	r := said(t, map[string]any{
		"GET /v1/models":        []api.ModelSummary{{Name: "m", Variants: []string{"v"}, Stopped: true, Replicas: 1}},
		"PUT /v1/model/m/scale": api.ScaleResponse{Model: "m", Target: 0, Changed: true},
		"GET /v1/model/m":       api.ModelStatus{Model: api.Model{Name: "m", Stopped: true, Replicas: 2}},
	})
	out := r.ok("scale", "m", "2")
	require.Equal(t, "m is stopped: it will have 2 replicas after \"remuda model start m\".\n", out)
}

func TestWhatToDoAboutAToken(t *testing.T) {
	none := func(message string) map[string]any {
		return map[string]any{"GET /v1/models": &api.Error{Status: http.StatusUnauthorized, Code: api.CodeNoToken, Message: message}}
	}
	got := said(t, none("there is no token yet: `remuda acl bootstrap` makes it")).do("model", "list")
	require.Equal(t, "remuda model list: there is no token yet: `remuda acl bootstrap` makes it\n", got.errout)
	got = said(t, none("the token is not known")).do("model", "list")
	require.Equal(t, "remuda model list: the token is not known: set -token or REMUDA_TOKEN\n", got.errout)
}

// TestALeaderOfBeforeIsNotCalledTheNewOne: a server that passed the question on may
// learn of the new leader later.
func TestALeaderOfBeforeIsNotCalledTheNewOne(t *testing.T) {
	var asked atomic.Int64
	leaders := map[string]any{
		"PUT /v1/operator/raft/transfer-leader": struct{}{},
		"GET /v1/status/leader": func() any {
			if asked.Add(1) < 3 {
				return api.LeaderStatus{ID: "old", Address: "10.0.0.1:1"}
			}
			return api.LeaderStatus{ID: "new", Address: "10.0.0.2:1"}
		},
	}
	require.Equal(t, "The leader is new at 10.0.0.2:1.\n", said(t, leaders).ok("raft", "transfer-leader"))
}

func TestSeatsTellGPUsApart(t *testing.T) {
	real1, real2 := "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1a2b3c4d-d72c-4106-c12f-20bd9faed9f6"
	sim1, sim2 := "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001"
	mig := "MIG-8932f937-d72c-4106-c12f-20bd9faed9f7"
	for _, tc := range []struct {
		all  []string
		want string
	}{
		{[]string{real1 + "#0", real1 + "#1", real2 + "#0"}, "GPU-8932f937#0,GPU-8932f937#1,GPU-1a2b3c4d#0"},
		{[]string{sim1 + "#0", sim2 + "#1"}, "GPU-…000000000000#0,GPU-…000000000001#1"},
		{[]string{sim1 + "#0"}, "GPU-…000000000000#0"},
		{[]string{real1 + "#0", mig + "#0"}, "GPU-8932f937#0,MIG-8932f937#0"},
		{[]string{"odd", "GPU-x#1"}, "odd,GPU-x#1"},
	} {
		require.Equal(t, tc.want, shortSeats(tc.all)(tc.all))
	}
}

func TestRowsStayOnOneLine(t *testing.T) {
	var b strings.Builder
	table := newTable(&b, "A", "B")
	table.row("1 error occurred:\n\t* out of memory", "x")
	require.NoError(t, table.flush())
	require.Len(t, strings.Split(strings.TrimSpace(b.String()), "\n"), 2, b.String())
}

func TestModelStatusTellsAges(t *testing.T) {
	r := said(t, map[string]any{"GET /v1/model/m": api.ModelStatus{
		Model: api.Model{Name: "m"}, Decisions: []api.Decision{{Time: time.Now().Add(-time.Hour - time.Minute), Kind: "place", Reason: "it fits"}},
	}})
	require.Regexp(t, `(?m)^1h01m +place +- +it fits$`, r.ok("model", "status", "m"))
}

func TestAStartOfNothingSaysSo(t *testing.T) {
	r := said(t, map[string]any{
		"PUT /v1/model/m/start": api.ScaleResponse{Model: "m", Changed: true},
		"GET /v1/model/m":       api.ModelStatus{Model: api.Model{Name: "m"}, StatusDescription: "The model wants no replicas."},
	})
	require.Contains(t, r.ok("model", "start", "m"), `m is started with a target of 0 replicas: scale it up with "remuda scale m N".`)
}

func TestFlagsBeforeTheVerbAreAMistake(t *testing.T) {
	r := remuda(t, "-json", "model", "list")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errout, "put them after the subcommand")
}

// TestWhatWasAskedForIsSoAlready is done, and no failure.
func TestWhatWasAskedForIsSoAlready(t *testing.T) {
	r := said(t, map[string]any{
		"GET /v1/models": []api.ModelSummary{{Name: "llama"}},
		"PUT /v1/evict":  api.EvictResponse{Replicas: []api.Eviction{{Name: "llama:v:1", From: "WARM", To: "WARM", Error: "unchanged: already WARM or on its way there (warm)"}}},
	})
	require.Contains(t, r.ok("evict", "llama", "-to", "warm"), "unchanged: already WARM")
	require.Equal(t, 1, r.do("evict", "llama", "-to", "cold").code)
}

func TestNamesThatAreNearlyRight(t *testing.T) {
	r := said(t, map[string]any{
		"GET /v1/models":              []api.ModelSummary{{Name: "llama"}, {Name: "qwen"}},
		"GET /v1/replicas":            []api.Replica{},
		"GET /v1/acl/tokens":          []api.Token{{Accessor: "3f8a-1"}, {Accessor: "3f8b-2"}, {Accessor: "9c"}},
		"DELETE /v1/acl/token/3f8a-1": struct{}{},
		"DELETE /v1/acl/token/9c":     struct{}{},
	})
	require.Contains(t, r.do("evict", "lama").errout, `no model "lama" (did you mean "llama"?), and no replica "lama"`)
	require.Equal(t, "Deleted token 3f8a-1.\n", r.ok("acl", "token", "delete", "3f8a"))
	require.Equal(t, "Deleted token 9c.\n", r.ok("acl", "token", "delete", "9c"))
	require.Contains(t, r.do("acl", "token", "delete", "3f8").errout, "\"3f8\" is ambiguous: use a longer prefix of one of\n  3f8a-1\n  3f8b-2\n")
	require.Contains(t, r.do("acl", "token", "delete", "x").errout, `no token "x"`)
}

func TestModelListShowsWhatCannotBePlaced(t *testing.T) {
	for want, m := range map[string]api.ModelSummary{
		"cannot-place": {Target: 1, Unplaceable: "no room"},
		"starting":     {Target: 2, Unplaceable: "no room", Counts: api.Counts{Starting: 1}},
		"running":      {Target: 1, Counts: api.Counts{Hot: 1}},
	} {
		require.Equal(t, want, summaryStatus(m))
	}
}

func TestHelp(t *testing.T) {
	require.Equal(t, remuda(t, "-h"), remuda(t, "help"))
	require.Equal(t, remuda(t, "scale", "-h"), remuda(t, "help", "scale"))
	require.Equal(t, remuda(t, "model", "-h"), remuda(t, "help", "model"))
	require.Equal(t, 0, remuda(t, "help", "model", "apply").code)
}
