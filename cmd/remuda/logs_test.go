package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// newLogNomad is a Nomad that has the logs of one allocation of a job, by "task kind".
func newLogNomad(t *testing.T, job string, logs map[string]string) {
	t.Helper()
	started := func(after time.Duration) *nomadapi.TaskState {
		return &nomadapi.TaskState{State: "running", StartedAt: time.Unix(1000, 0).Add(after)}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		found := []*nomadapi.AllocationListStub{}
		if r.FormValue("filter") == fmt.Sprintf("JobID == %q", job) && r.FormValue("namespace") == "*" {
			found = append(found,
				&nomadapi.AllocationListStub{ID: "old", JobID: job, CreateTime: 1},
				&nomadapi.AllocationListStub{ID: "new", JobID: job, NodeID: "n", Namespace: "ml", CreateTime: 2, TaskStates: map[string]*nomadapi.TaskState{
					"weights": started(0), "primary": started(time.Second), "shadow": {State: "pending"},
				}})
		}
		_ = json.NewEncoder(w).Encode(found)
	})
	mux.HandleFunc("/v1/client/fs/logs/new", func(w http.ResponseWriter, r *http.Request) {
		text, offset := logs[r.FormValue("task")+" "+r.FormValue("type")], 0
		if _, err := fmt.Sscan(r.FormValue("offset"), &offset); err != nil || r.FormValue("namespace") != "ml" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if r.FormValue("origin") == "end" {
			text = text[max(0, len(text)-offset):]
		}
		_ = json.NewEncoder(w).Encode(nomadapi.StreamFrame{Data: []byte(text), File: "f"})
		w.(http.Flusher).Flush()
		if r.FormValue("follow") == "true" {
			time.Sleep(20 * settle) // the command may notice late on a slow machine that nothing comes
			_ = json.NewEncoder(w).Encode(nomadapi.StreamFrame{Data: []byte("later\n"), File: "f"})
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Setenv("NOMAD_ADDR", s.URL)
}

func TestLogs(t *testing.T) {
	const name = "m:v:718fcccd-1"
	newLogNomad(t, name, map[string]string{
		"weights stdout": "loading\nloaded\n", "primary stdout": "one\ntwo\nthree\n", "primary stderr": "warning\r\nno end",
	})
	r := said(t, map[string]any{"GET /v1/replicas": []api.Replica{{Name: name, ID: "718fcccd-1", Model: "m"}}})
	require.Equal(t, "weights | loading\nweights | loaded\nprimary | one\nprimary | two\nprimary | three\nprimary | warning\nprimary | no end\n", r.ok("logs", "718f"), "by task, in the order in which they started")
	require.Equal(t, "two\nthree\nwarning\nno end\n", r.ok("logs", "m:v", "-task", "primary", "-n", "2"))
	require.Equal(t, "three\n", r.ok("logs", "m:v", "-task", "primary", "-n", "1", "-stdout"))
	require.Equal(t, "warning\nno end\n", r.ok("logs", "m:v", "-task", "primary", "-n", "0", "-stderr"))
	require.Equal(t, "three\nlater\n", r.ok("logs", "m:v", "-task", "primary", "-stdout", "-n", "1", "-f"))

	require.Contains(t, r.do("logs", "m:v", "-task", "primray").errout, `no task "primray" (did you mean "primary"?): the tasks of `+name+` are primary, shadow, weights`)
	require.Contains(t, r.do("logs", "718g").errout, `no replica "718g" (did you mean "718f"?)`)
	require.Equal(t, 2, r.do("logs", "m:v", "-n", "-1").code)
	// A replica that is gone, as far as Nomad knows it.
	gone := said(t, map[string]any{"GET /v1/replicas": []api.Replica{}})
	require.Contains(t, gone.ok("logs", name, "-task", "weights"), "loaded\n")
	got := gone.do("logs", "m:v:2")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `no replica "m:v:2"`)
	require.Contains(t, got.errout, "no allocation of job m:v:2 in the Nomad at http://127.0.0.1:")
}

// TestTailing: however a log arrives, the last lines are passed on, and after them all that follows.
func TestTailing(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var log bytes.Buffer
		for i := range rng.IntN(40) {
			fmt.Fprintf(&log, "%d%s\n", i, strings.Repeat("x", rng.IntN(30)))
		}
		lines := slices.Collect(strings.Lines(log.String()))
		want := rng.IntN(12)
		searched := want * 40 // more than the lines have
		text := log.String()
		if want > 0 {
			text = text[max(0, len(text)-searched):]
		}
		var got strings.Builder
		tail := tailing{lines: want, searched: searched, put: func(b []byte) error { got.Write(b); return nil }}
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			require.NoError(t, tail.add(rest[:n]))
			rest = rest[n:]
		}
		follows := rng.IntN(2) == 0
		if follows {
			require.NoError(t, tail.live())
			require.NoError(t, tail.add([]byte("and ")))
			require.NoError(t, tail.add([]byte("more\nrest")))
		}
		require.NoError(t, tail.end())
		if want > 0 {
			lines = lines[max(0, len(lines)-want):]
		}
		if follows {
			lines = append(lines, "and more\n", "rest")
		}
		require.Equal(t, strings.Join(lines, ""), got.String(), "seed %d", seed)
	}
}
