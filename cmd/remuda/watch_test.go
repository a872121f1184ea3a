package main

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/testkit/proclog"
)

// watched runs a verb with -watch until done says of its output that it is enough.
func (r *running) watched(done func(out string) bool, args ...string) (result, string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	out, errout := &proclog.Buffer{}, &proclog.Buffer{}
	p := &program{ctx: ctx, stdin: strings.NewReader(""), stdout: out, stderr: errout}
	code := make(chan int, 1)
	go func() { code <- p.run(append(args, "-watch", "-address", r.url)) }()
	deadline := time.After(patience)
	for !done(out.String()) {
		select {
		case c := <-code:
			return result{code: c, errout: errout.String()}, out.String()
		case <-deadline:
			r.t.Fatalf("the output is not enough: %s%s", out, errout)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	return result{code: <-code, errout: errout.String()}, out.String()
}

func TestWatch(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	r := said(t, map[string]any{
		"GET /v1/models": func() any {
			mu.Lock()
			defer mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			if asked++; asked == 3 {
				return &api.Error{Status: http.StatusServiceUnavailable, Code: "no_leader", Message: "no leader"}
			}
			return []api.ModelSummary{{Name: map[bool]string{true: "before", false: "after"}[asked < 3]}}
		},
		"GET /v1/gateways": []api.Gateway{{Name: "gw"}},
		"GET /v1/replicas": []api.Replica{},
	})
	// What was there before is not shown again; an outage is.
	after := func(out string) bool { return strings.Contains(out, "after") }
	got, out := r.watched(after, "model", "list")
	require.Zero(t, got.code, got.errout)
	require.Equal(t, 1, strings.Count(out, "before "), out)
	require.Contains(t, out, "cannot reach the controller, retrying: ")
	mu.Lock()
	asked = 0
	mu.Unlock()
	got, out = r.watched(after, "model", "list", "-json")
	require.Zero(t, got.code, got.errout)
	require.NotContains(t, out, "retrying")
	// What has no index is asked for each second.
	got, _ = r.watched(func(out string) bool { return strings.Contains(out, "gw") }, "gateway", "list")
	require.Zero(t, got.code, got.errout)
	// What is gone does not come back.
	got, _ = r.watched(func(string) bool { return false }, "replica", "status", "gone")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `no replica "gone"`)
}

func TestPagesOfATerminal(t *testing.T) {
	tty := terminal{controls: true, height: 5}
	require.Equal(t, "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J", tty.page("a\nb\n", false))
	require.Equal(t, "\x1b[H1\x1b[K\n2\x1b[K\n3\x1b[K\n… 4 more lines\x1b[K\n\x1b[J", tty.page("1\n2\n3\n4\n5\n6\n7\n", false), "one screen")
	require.Equal(t, "\na\n", terminal{}.page("a\n", false))
	require.Equal(t, "a\n", terminal{}.page("a\n", true))
}
