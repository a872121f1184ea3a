package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/browser"
	"remuda/internal/testkit/long"
)

// fleet puts models with 5 serving replicas each onto a member, on nodes of 8 GPUs.
func (m *member) fleet(models int) {
	m.t.Helper()
	const each, seats = 5, 16
	var nodes []state.Node
	for i := range (models*each + seats - 1) / seats {
		nodes = append(nodes, node(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), fmt.Sprintf("gpu-node-%03d", i), 8))
	}
	m.apply(&state.UpsertNodes{Nodes: nodes})
	const batch = 100
	for from := 0; from < models; from += batch {
		var files strings.Builder
		for i := from; i < min(from+batch, models); i++ {
			files.WriteString(file(fmt.Sprintf("team-%02d/model-%04d", i%20, i), "max        = 4", "max = 5", "replicas   = 2", "replicas = 5"))
		}
		_, err := m.client.ApplyModels(m.t.Context(), api.ApplyRequest{Files: modelFile(files.String())})
		require.NoError(m.t, err)
		var placed []state.Place
		for i := from; i < min(from+batch, models); i++ {
			name := fmt.Sprintf("team-%02d/model-%04d", i%20, i)
			for r := range each {
				at := i*each + r
				n, seat := nodes[at/seats], at%seats
				gpu := n.GPUs[seat/2]
				placed = append(placed, state.Place{
					Name: replica.Name{Model: name, Variant: "a", ID: fmt.Sprintf("%08d-0000-4000-8000-%012d", at, at)}, Version: 1,
					Placement: state.Placement{Node: n.ID, Seats: []string{gpu.Seats[seat%2]}, Memory: map[string]int64{gpu.UUID: 10 * gib}, HostMemory: gib},
				})
			}
		}
		m.apply(&state.Plan{ID: "place", Index: m.store.View().Index(), Time: epoch, Place: placed})
		for _, event := range []state.Event{state.EventStarted, state.EventServing} {
			var moves []state.Move
			for _, p := range placed {
				r := m.store.View().Replica(nil, p.Name.String())
				moves = append(moves, state.Move{Replica: p.Name.String(), ModifyIndex: r.ModifyIndex, Event: event, Time: epoch})
			}
			m.apply(&state.Plan{ID: "move", Index: m.store.View().Index(), Time: epoch, Move: moves})
		}
	}
}

// shots is where screenshots go, empty for none: the pages of docs/guides/ui.md.
var shots = os.Getenv("REMUDA_SHOTS")

// TestUIInABrowser: every page in Chromium, light and dark, as narrow as a phone and wide.
func TestUIInABrowser(t *testing.T) {
	m := one(t)
	serving := m.busy()
	tab := browser.Start(t).Tab()
	sizes := []struct {
		name          string
		width, height int64
		dark          bool
	}{{"wide", 1280, 800, false}, {"dark", 1280, 800, true}, {"phone", 390, 844, false}}
	for path := range uiPages {
		for _, size := range sizes {
			tab.View(size.width, size.height, size.dark)
			tab.Open(m.url + path)
			tab.AwaitText("remuda")
			require.LessOrEqual(t, browser.Eval[int64](tab, "document.documentElement.scrollWidth"), size.width, "%s %s: only tables scroll sideways", path, size.name)
			for _, f := range tab.Accessibility() {
				t.Errorf("%s %s: %s %s: %s", path, size.name, f.Impact, f.ID, f.Help)
				for _, n := range f.Nodes {
					t.Errorf("  %s: %s", n.HTML, n.FailureSummary)
				}
			}
			if shots != "" {
				name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/ui"), "/"), "?")
				tab.Shot(filepath.Join(shots, fmt.Sprintf("%s-%s.png", name, size.name)))
			}
		}
	}

	// What is live follows without a reload, and keeps what the person has opened.
	tab.View(1280, 800, false)
	tab.Open(m.url + "/ui/model?name=m")
	tab.Click("#version-1 summary")
	_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	tab.AwaitText("Desired 3")
	require.True(t, browser.Eval[bool](tab, `document.querySelector("#version-1").open`))

	// An eviction by click.
	tab.Follow(fmt.Sprintf(`a[href*="evict?replica=%s"]`, strings.ReplaceAll(serving, ":", "%3a")))
	tab.AwaitText(serving + " node-one")
	tab.Follow("button.danger")
	tab.AwaitText(serving + " HOT WARM")
	require.Equal(t, state.StatusDraining, m.store.View().Replica(nil, serving).Status)

	require.Empty(t, tab.Problems())
	require.Equal(t, []string{m.url}, tab.Origins())
}

// weightOfPage is how many bytes a page and what it loads had.
const weightOfPage = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
	.filter((e) => e.initiatorType !== "fetch").reduce((sum, e) => sum + e.transferSize, 0)`

// TestUIThatHangs: a page says how old its data is when the server does not answer, when it refuses, and
// when it is gone; and goes on by itself.
func TestUIThatHangs(t *testing.T) {
	m := one(t)
	m.busy()
	var hangs, refuses atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case hangs.Load():
			<-r.Context().Done()
		case refuses.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			m.server.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	tab := browser.Start(t).Tab()
	tab.Open(front.URL + "/ui")
	tab.AwaitText("Live. The data is at most 1 s old.")
	hangs.Store(true)
	tab.AwaitText("Not live: the server does not answer. The data is ")
	hangs.Store(false)
	tab.AwaitText("Live. The data is at most 1 s old.")
	refuses.Store(true)
	tab.AwaitText("Not live: the server answered 503. The data is ")
	refuses.Store(false)
	tab.AwaitText("Live. The data is at most 1 s old.")
	browser.Eval[any](tab, `getSelection().selectAllChildren(document.querySelector("h1"))`)
	tab.AwaitText("Not live while text is selected. The data is ")
	browser.Eval[any](tab, `getSelection().removeAllRanges()`)
	tab.AwaitText("Live. The data is at most 1 s old.")
}

// TestUILoginInABrowser: a token that ends while a page is open leads to the login, and back to the page.
func TestUILoginInABrowser(t *testing.T) {
	m, secrets := bootstrapped(t)
	m.busy()
	ending := token(t, m.client, "read-only")
	tab := browser.Start(t).Tab()
	login := func(secret string) {
		tab.Type("#token", secret)
		tab.Follow("main button")
	}
	tab.Open(m.url + "/ui/model?name=m")
	require.Empty(t, tab.Accessibility())
	login("not-a-token")
	tab.AwaitText("The controller does not know this token")
	require.Len(t, tab.Problems(), 1, "the 401")
	login(ending.SecretID)
	tab.AwaitText("Live. The data is at most 1 s old.")
	require.Equal(t, m.url+"/ui/model?name=m", browser.Eval[string](tab, "location.href"))
	require.NoError(t, m.client.DeleteToken(t.Context(), ending.Accessor))
	tab.AwaitText("Your token is not valid any more")
	login(secrets["operator"])
	tab.AwaitText("Model m")
	require.Equal(t, m.url+"/ui/model?name=m", browser.Eval[string](tab, "location.href"))
	tab.Follow("header form button")
	tab.AwaitText("Secret of an ACL token")
	require.Empty(t, browser.Eval[string](tab, "document.cookie"), "no script sees the token")
	require.Empty(t, tab.Problems())
}

// TestUIOfAServerThatIsGone: the page leads to the other servers.
func TestUIOfAServerThatIsGone(t *testing.T) {
	ms := cluster(t, 3, settings{raft: func(c *raft.Config) { c.ServerStabilizationTime = time.Second }})
	leaderOf(t, ms)
	eventually(t, "the servers know each other", func() bool {
		members, err := ms[0].node.Members()
		return err == nil && !slices.ContainsFunc(members, func(m raft.Member) bool { return m.API == "" })
	})
	tab := browser.Start(t).Tab()
	tab.Open(ms[0].url + "/ui/nodes?q=x")
	tab.AwaitText("Live. The data is at most 1 s old.")
	ms[0].close()
	tab.AwaitText("Other servers: ")
	for _, m := range ms[1:] { // in any order
		tab.AwaitText(m.url)
	}
	leaderOf(t, ms[1:])
	tab.Follow(`#others a[href^="` + ms[1].url + `"]`)
	tab.AwaitText("Live. The data is at most 1 s old.")
	require.Equal(t, ms[1].url+"/ui/nodes?q=x", browser.Eval[string](tab, "location.href"))
}

// firstPaint is how long a page may take until it shows something, with 1,000 models: a second on a machine that does
// nothing else.
var firstPaint = time.Duration(long.Pick(5, 1)) * time.Second

// TestUIOfThousandModelsInABrowser: a large cluster has no heavy page and no slow one. Of some tries one has to be in
// time: other tests run beside this one.
func TestUIOfThousandModelsInABrowser(t *testing.T) {
	m := cluster(t, 1, settings{free: true})[0]
	m.fleet(1000)
	b := browser.Start(t)
	t.Log(b.Version())
	tab := b.Tab()
	tab.View(1280, 800, false)
	tab.Open(m.url + "/ui")
	tab.AwaitText("200 of 1,000 models")
	for _, path := range uiLive {
		var paint time.Duration
		for try := 0; try == 0 || try < 10 && paint >= firstPaint; try++ {
			tab.Open(m.url + path)
			paint = tab.Paint()
		}
		require.Less(t, paint, firstPaint, path)
		weight := browser.Eval[int](tab, weightOfPage)
		t.Log(path, "first paint", paint, "bytes", weight)
		require.Less(t, weight, 300<<10, path)
	}
	require.Empty(t, tab.Problems())
	require.Equal(t, []string{m.url}, tab.Origins())
}
