package server_test

import (
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/server"
	"remuda/controller/state"
)

// hostile is text of a user that would be markup, an attribute or a script if it were not escaped.
const hostile = `</script><script>alert(1)</script><img src=x onerror="alert('1')">{{.}}`

// uiPages are the pages, with the role letters of rules that may see them.
var uiPages = map[string]string{
	"/ui": "oar", "/ui/model?name=m": "oar", "/ui/nodes": "oar", "/ui/decisions": "oar", "/ui/usage": "oar", "/ui/servers": "oar", "/ui/try?model=m": "oar",
	"/ui/cordon?node=n1&on=true": "oar", "/ui/evict?model=m": "ogar", "/ui/revert?model=m&version=1": "oar", // a plan that is refused is part of the page
}

// visit asks for a page as a browser does, with the token in the cookie. A form is sent by POST.
func (m *member) visit(path, token string, form url.Values, header ...string) (*http.Response, string) {
	m.t.Helper()
	method, body := http.MethodGet, ""
	if form != nil {
		method, body = http.MethodPost, form.Encode()
	}
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.url+path, strings.NewReader(body))
	require.NoError(m.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		req.AddCookie(&http.Cookie{Name: "remuda_token", Value: token})
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	require.NoError(m.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(m.t, err)
	return resp, string(b)
}

// page is a page that is shown.
func (m *member) page(path, token string) string {
	m.t.Helper()
	resp, body := m.visit(path, token, nil)
	require.Equal(m.t, http.StatusOK, resp.StatusCode, "%s: %s", path, body)
	require.Equal(m.t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"))
	return body
}

// words is the text of a page without markup, with single spaces.
func words(page string) string {
	return html.UnescapeString(strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")), " "))
}

// busy puts the model "m" with a pair that serves, a replica that sleeps, a GPU that is cordoned
// and one that is sick, a gateway and a key onto a member.
func (m *member) busy() (serving string) {
	m.t.Helper()
	m.applied("m")
	hot, warm := m.place("m", "1", 0, 0), m.place("m", "2", 0, 1)
	m.move(hot, state.EventStarted, state.EventServing)
	m.move(warm, state.EventStarted, state.EventServing)
	m.rest(warm.String())
	sick := node("n2", "node-two", 1)
	sick.GPUs[0].Healthy, sick.GPUs[0].Reason = false, "XID 79: fell off the bus"
	m.apply(&state.UpsertNodes{Nodes: []state.Node{sick}})
	_, err := m.client.Cordon(m.t.Context(), "n1", api.CordonRequest{GPU: gpuOf("n1", 1), On: true, Reason: "it is hot"})
	require.NoError(m.t, err)
	m.world.pairs = map[string]api.Pair{hot.String(): {Serves: "shadow", Degraded: "the primary loads its model",
		LastFailover: api.Takeover{From: "primary", Cause: "exited", Reason: "signal: killed", GPU: "GPU a of node n is unhealthy: XID 79", At: epoch, Seconds: 0.25}}}
	reported(m.t, m.client, api.GatewayReport{Gateway: "gateway-one", Index: 1, Since: time.Now(), Replicas: []api.ReplicaLoad{},
		Usage: []api.UsageCounters{used(time.Now().UTC().Format("2006-01-02"), "alice", "m", 1200)}})
	eventually(m.t, "usage is counted", func() bool {
		r, _, err := m.client.Usage(m.t.Context(), api.UsageQuery{}, api.QueryOptions{})
		return err == nil && r.Total.Requests == 1200
	})
	_, err = m.client.SetKey(m.t.Context(), "alice", api.KeyRequest{KeyLimits: api.KeyLimits{Weight: 2, TokensPerDay: 1000000}})
	require.NoError(m.t, err)
	return hot.String()
}

func TestUIPages(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.busy()

	overview := words(m.page("/ui", ""))
	for _, want := range []string{
		"replica m 1 no other engine could take over: the primary loads its model",
		"gpu node-two GPU-n2-0 unhealthy: XID 79: fell off the bus",
		"gpu node-one GPU-n1-1 cordoned: anonymous (no ACL token): it is hot",
		"Nodes 2 of 2 usable GPUs 1 of 3 usable GPU memory 10 GiB HOT, 0 B contexts of WARM, 110 GiB free of 120 GiB Host memory 1 GiB WARM of 200 GiB",
		"m READY 2 2 1 1 0 0 0 0",
		"No tokens: open to all",
	} {
		require.Contains(t, overview, want)
	}

	about := words(m.page("/ui/model?name=m", ""))
	for _, want := range []string{
		"Desired 2 Target 2", "replicas serve: 1 serving, 1 warm.",
		"1 a HOT serving", "shadow serves, no standby: the primary loads its model last failover 2026-01-02 03:04:05 , 0.250 s, primary exited: signal: killed; GPU a of node n is unhealthy: XID 79",
		"2 a WARM warm", "Version 1 of", "node-one", "GPU-n1-0", "Evict all replicas",
	} {
		require.Contains(t, about, want)
	}

	nodes := m.page("/ui/nodes", "")
	require.Contains(t, nodes, `<svg class="bar" role="img" aria-label="10 GiB HOT, 0 B moving, 0 B contexts of WARM, 30 GiB free of 40 GiB"><rect class="warm" width="25.00%"`)
	require.Contains(t, words(nodes), "m:a:1 m:a:2 0 of 2 free")
	require.Contains(t, nodes, `/ui/cordon?node=n1&amp;gpu=GPU-n1-1&amp;on=false`)
	require.NotContains(t, words(m.page("/ui/nodes?q=two", "")), "node-one")

	require.Contains(t, words(m.page("/ui/decisions", "")), "cordon anonymous (no ACL token) cordoned GPU GPU-n1-1 of node node-one: it is hot")
	require.NotContains(t, words(m.page("/ui/decisions?kind=cordon", "")), "apply m")
	require.NotContains(t, words(m.page("/ui/decisions?model=m", "")), "cordoned GPU")

	require.Contains(t, words(m.page("/ui/decisions?node=node-one", "")), "cordoned GPU GPU-n1-1")
	require.NotContains(t, words(m.page("/ui/decisions?node=node-two", "")), "cordoned GPU")

	require.Contains(t, words(m.page("/ui/usage", "")), "alice m 1,200 8,400 1,200 3,600 2,400")
	require.Contains(t, words(m.page("/ui/usage?by=key", "")), "all alice all 1,200")
	resp, _ := m.visit("/ui/usage?days=0", "", nil)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)

	servers := words(m.page("/ui/servers", ""))
	require.Contains(t, servers, "gateway-one serving")
	require.Contains(t, servers, m.node.ID()+" "+m.node.Address()+" leader")

	resp, body := m.visit("/ui/model?name=other", "", nil)
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Contains(t, words(body), `model "other"`)
	for _, path := range []string{"/ui/other", "/ui/static/other"} {
		resp, _ = m.visit(path, "", nil)
		require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
	}
	resp, _ = m.visit("/ui/", "", nil)
	require.Equal(t, "/ui", resp.Header.Get("Location"))
}

// TestUIIsClosed: what may run and be loaded, on every page and every other answer.
func TestUIIsClosed(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.busy()
	for path := range uiPages {
		body := m.page(path, "")
		require.Regexp(t, `(?s)<html lang="en">.*<main id="main".*<h1>`, body, path)
		require.Equal(t, 1, strings.Count(body, "<h1>"), path)
		require.Equal(t, strings.Count(body, "<table>"), strings.Count(body, "<caption>"), path)
		for _, header := range regexp.MustCompile(`<th[ >][^>]*`).FindAllString(body, -1) {
			require.Contains(t, header, "scope=", path)
		}
		require.NotRegexp(t, `(?i)\son[a-z]+=|style=|javascript:|<style|<iframe`, body, path)
		require.NotRegexp(t, `(?:src|href|action)="(?:[a-z]+:|//)`, body, path)
		for _, script := range regexp.MustCompile(`<script[^>]*>`).FindAllString(body, -1) {
			require.Regexp(t, `^<script src="/ui/static/(live|chat)\.js" defer>$`, script, path)
		}
	}
	for _, path := range []string{"/ui", "/ui/static/live.js", "/ui/static/style.css", "/ui/static/icon.svg", "/ui/nothing", "/ui/login"} {
		resp, _ := m.visit(path, "", nil)
		h := resp.Header
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
		require.Equal(t, "same-origin", h.Get("Referrer-Policy"), path)
		require.Equal(t, "no-store", h.Get("Cache-Control"), path)
	}
}

// TestUIEscapes: text of users is text on every page.
func TestUIEscapes(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.busy()
	bad := node("n3", hostile, 1)
	bad.GPUs[0].Healthy, bad.GPUs[0].Reason, bad.GPUs[0].Model = false, hostile, hostile
	m.apply(&state.UpsertNodes{Nodes: []state.Node{bad}})
	_, err := m.client.Cordon(t.Context(), "n3", api.CordonRequest{On: true, Reason: hostile})
	require.NoError(t, err)
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3, Reason: hostile})
	require.NoError(t, err)
	m.world.unplaceable = func(string) map[string]string { return map[string]string{"a": hostile} }
	for name := range m.world.pairs {
		m.world.pairs[name] = api.Pair{Serves: hostile, Degraded: hostile}
	}
	for _, path := range []string{
		"/ui", "/ui/model?name=m", "/ui/nodes", "/ui/decisions", "/ui/servers", "/ui/cordon?node=n3&on=true",
		"/ui?q=", "/ui/model?name=", "/ui/nodes?q=", "/ui/decisions?model=", "/ui/try?model=", "/ui/decisions?node=", "/ui/revert?version=1&model=", "/ui/revert?model=m&version=", "/ui/decisions?kind=", "/ui/usage?by=", "/ui/usage?days=",
		"/ui/cordon?node=", "/ui/cordon?node=n1&on=true&gpu=", "/ui/evict?model=", "/ui/evict?model=m&to=", "/ui/login?from=",
	} {
		if strings.HasSuffix(path, "=") {
			path += url.QueryEscape(hostile)
		}
		_, body := m.visit(path, "", nil)
		require.NotContains(t, body, "<script>", path)
		require.NotContains(t, body, "<img", path)
		require.NotContains(t, body, `onerror="`, path)
	}
	require.Contains(t, m.page("/ui/nodes", ""), "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;", "it is shown")
}

// TestUILive: the live part comes alone, when the state is another one, and not at all when
// nothing has changed.
func TestUILive(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.busy()
	for path := range uiPages {
		body := m.page(path, "")
		at := regexp.MustCompile(`id="live" data-index="(\d+)" data-tag="&#34;(\w+)&#34;"`).FindStringSubmatch(body)
		require.NotNil(t, at, "%s: %s", path, body)
		resp, part := m.visit(path, "", nil, "X-Remuda-Live", at[1], "If-None-Match", `"`+at[2]+`"`)
		require.Equal(t, http.StatusNotModified, resp.StatusCode, "%s: %s", path, part)
		require.Empty(t, part)
		resp, part = m.visit(path, "", nil, "X-Remuda-Live", "0", "If-None-Match", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		require.NotContains(t, part, "<html", path)
		require.Contains(t, body, part, path)
	}
	resp, _ := m.visit("/ui/nodes", "", nil, "X-Remuda-Live", "0")
	done := make(chan string)
	go func() {
		for {
			next, part := m.visit("/ui/nodes", "", nil, "X-Remuda-Live", resp.Header.Get(api.HeaderIndex), "If-None-Match", resp.Header.Get("ETag"))
			if next.StatusCode == http.StatusOK {
				done <- part
				return
			}
		}
	}()
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n9", "node-nine", 1)}})
	require.Contains(t, <-done, "node-nine")
}

// TestUIOfBusyModels: an overview with a full hour of all models that it shows stays small.
func TestUIOfBusyModels(t *testing.T) {
	t.Parallel()
	const models = 200
	clock := epoch
	now := func() time.Time { return clock }
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now, c.Loads = now, gatewayreport.New(61*time.Second, now) }})[0]
	var text strings.Builder
	for i := range models {
		text.WriteString(file(fmt.Sprintf("a-model-with-a-long-name-%03d", i)))
	}
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(text.String())})
	require.NoError(t, err)
	report := api.GatewayReport{Gateway: "g", Index: 1, Since: epoch, Replicas: []api.ReplicaLoad{}}
	for i := range models {
		name := fmt.Sprintf("a-model-with-a-long-name-%03d", i)
		report.Counters = append(report.Counters, api.ModelCounters{Model: name})
		report.Queues = append(report.Queues, api.QueueLoad{Model: name, State: "BUSY"})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range api.HistorySteps + 2 {
		clock = clock.Add(time.Minute)
		for i := range report.Counters {
			c := &report.Counters[i]
			c.Errors += random.Int64N(1000)
			c.FirstTokens += 1 + random.Int64N(1000)
			c.FirstTokenSeconds += random.Float64() * 1e6
			report.Queues[i].InFlight, report.Queues[i].Waiting = 1+random.IntN(1000), 1+random.IntN(1000)
		}
		reported(t, m.client, report)
		m.server.SampleHistory()
	}
	body := m.page("/ui", "")
	require.Equal(t, 4*models, strings.Count(body, "in the last 60 minutes"), "of 6 lines each")
	resp, sent := m.visit("/ui", "", nil, "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
	require.Less(t, len(sent)*6/4, 300<<10)
	t.Log(len(body), "bytes, sent in", len(sent))
	plain, uncompressed := m.visit("/ui", "", nil, "Accept-Encoding", "identity")
	require.Empty(t, plain.Header.Get("Content-Encoding"))
	require.Len(t, uncompressed, len(body))
	resp, _ = m.visit("/ui", "", nil, "Accept-Encoding", "gzip", "X-Remuda-Live", "0")
	require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
	resp, _ = m.visit("/ui", "", nil, "Accept-Encoding", "gzip", "X-Remuda-Live", "0", "If-None-Match", resp.Header.Get("ETag"))
	require.Equal(t, http.StatusNotModified, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Content-Encoding"))
}

// TestUIOfALargeCluster: a page stays small, whatever there is.
func TestUIOfALargeCluster(t *testing.T) {
	t.Parallel()
	m := one(t)
	var nodes []state.Node
	for i := range 300 {
		nodes = append(nodes, node(fmt.Sprintf("node-%03d-0000-0000", i), fmt.Sprintf("a-node-with-a-name-%03d", i), 8))
	}
	m.apply(&state.UpsertNodes{Nodes: nodes})
	var text strings.Builder
	for i := range 300 {
		text.WriteString(file(fmt.Sprintf("a-model-with-a-long-name-%03d", i)))
	}
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(text.String())})
	require.NoError(t, err)
	for _, path := range []string{"/ui", "/ui/nodes", "/ui/decisions"} {
		body := m.page(path, "")
		require.Less(t, len(body), 300<<10, path)
		t.Log(path, len(body))
	}
	require.Contains(t, words(m.page("/ui", "")), "200 of 300 models")
	require.Contains(t, words(m.page("/ui?q=name-299", "")), "1 of 1 models")
}
