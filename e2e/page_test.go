//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/browser"
	"remuda/jobs"
)

// TestWebPage: the controller's page in Chromium on a cluster with three servers, a model and a pair: a
// failover under a chat, a rollout, an eviction by click, a cordon with its plan, a sick GPU, the end of
// the leader, and a token that is deleted. With REMUDA_SHOTS it writes the pictures of docs/guides/ui.md there.
func TestWebPage(t *testing.T) {
	t.Parallel()
	gpus := filepath.Join(t.TempDir(), "gpus.json")
	f := newFleet(t, 3, func(o *devcluster.Options) {
		o.GPUs = 3
		set(o, "nomad-client", fmt.Sprintf("plugin \"remuda-device\" {\n  config {\n    state_file = %q\n    fingerprint_period = \"500ms\"\n  }\n}\n", gpus))
	})
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(paced(t, jobs.Failover, 4)), 0o600))
	pair := filepath.Join(f.dir, "pair.model.hcl")
	require.NoError(t, os.WriteFile(pair, []byte(`model "pair" {
  replicas     = 1
  max          = 1
  failover     = true
  continuation = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    memory  = "1GiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "failover.nomad.hcl"
    vars    = { weights = "32MiB", slots = "16" }
  }
}
`), 0o600))
	f.remuda("model", "apply", "-detach", pair)
	f.remuda("model", "apply", "-detach", f.modelFile("m", 2, nil))
	f.hot("m", 2)
	f.hot("pair", 1)
	eventually(t, time.Minute, "the standby", func() error { return (&twins{f}).standsBy("pair") })

	leader := f.leader()
	url := "http://" + f.servers[leader.number%len(f.servers)].http + "/ui" // of another one
	chromium := browser.Start(t)
	tab := chromium.Tab()
	tab.View(1280, 800, false)
	shot := func(name string) {
		if dir := os.Getenv("REMUDA_SHOTS"); dir != "" {
			tab.Shot(filepath.Join(dir, name+".png"))
		}
	}
	for _, path := range []string{"", "/model?name=m", "/model?name=pair", "/nodes", "/decisions", "/usage", "/servers", "/try?model=m"} {
		tab.Open(url + path)
		tab.AwaitText("Live. The data is at most 1 s old.")
		require.Empty(t, tab.Accessibility(), path)
	}

	// A failover under a chat: the words go on, and the page shows who serves.
	tab.Open(url + "/try?model=pair")
	tab.Type("#question", "Tell me a story.")
	serving := f.engine("pair")
	tab.Click("#ask button")
	tab.Await(`document.querySelector("#log .answer")?.textContent.split(" ").length > 5`)
	kill9(t, f.enginePID(serving.HostPort()))
	tab.AwaitText("longest pause")
	tab.AwaitText("last failover")
	require.Empty(t, browser.Eval[string](tab, `[...document.querySelectorAll("#log .bad")].map((e) => e.textContent).join()`))
	t.Log(browser.Eval[string](tab, `document.querySelector("#log p:last-child").textContent`))
	shot("ui-try")

	// A rollout as it goes.
	tab.Open(url + "/model?name=m")
	tab.AwaitText("2 of 2 replicas serve")
	f.remuda("model", "apply", "-detach", f.modelFile("m", 2, map[string]string{"weights": "48MiB"}))
	tab.AwaitText("variant sim to version 2")
	replicas := f.hot("m", 2)
	tab.AwaitText("Version 2 The last hour")
	shot("ui-model")

	// An eviction by click, after its plan.
	tab.Follow(fmt.Sprintf(`a[href*="evict?replica=%s"]`, strings.ReplaceAll(replicas[0], ":", "%3a")))
	tab.AwaitText(replicas[0])
	tab.AwaitText("serving sleeping")
	tab.Follow("button.danger")
	tab.AwaitText(replicas[0] + " HOT WARM")
	tab.Open(url + "/model?name=m")
	tab.AwaitText("1 warm")

	// A sick GPU, and what a cordon of it would move.
	sick := gpuOf(f.onGPU("pair"))
	require.NoError(t, os.WriteFile(gpus, fmt.Appendf(nil, `{"gpus": {%q: {"unhealthy": "XID 79: fell off the bus"}}}`, sick), 0o600))
	tab.Open(url)
	tab.AwaitText(sick + " unhealthy: XID 79: fell off the bus")
	shot("ui-overview")
	tab.Open(url + "/nodes")
	tab.AwaitText("unhealthy XID 79: fell off the bus")
	shot("ui-nodes")
	require.NoError(t, os.Remove(gpus))
	f.hot("pair", 1)
	moving := gpuOf(f.onGPU("pair"))
	tab.Open(url + "/nodes")
	tab.Follow(fmt.Sprintf(`a[aria-label="Cordon %s"]`, moving))
	tab.AwaitText("What it would do")
	tab.AwaitText(moving + " of node dev is cordoned")
	shot("ui-cordon")

	// The leader ends: a page of another server goes on by itself.
	tab.Open(url + "/model?name=m")
	tab.AwaitText("Live. The data is at most 1 s old.")
	leader.end(syscall.SIGKILL)
	f.leader(leader)
	_, err := f.api.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	tab.AwaitText("Desired 3")
	tab.AwaitText("Live. The data is at most 1 s old.")
	leader.start()

	for _, problem := range tab.Problems() {
		// While nobody leads, the server says so, and the page with it.
		require.Contains(t, problem, "the server responded with a status of 50", "%s", problem)
	}
	require.Equal(t, []string{strings.TrimSuffix(url, "/ui")}, tab.Origins())

	// A token that is deleted while a page is open: the page says so and asks for another one.
	operator := f.withACLs()
	token, err := operator.CreateToken(t.Context(), api.TokenRequest{Name: "a visitor", Role: "read-only"})
	require.NoError(t, err)
	tab = chromium.Tab()
	login := func(secret string) {
		tab.Type("#token", secret)
		tab.Follow("main button")
		tab.AwaitText("Live. The data is at most 1 s old.")
		require.Equal(t, url+"/model?name=m", browser.Eval[string](tab, "location.href"))
	}
	tab.Open(url + "/model?name=m")
	login(token.SecretID)
	require.NoError(t, operator.DeleteToken(t.Context(), token.Accessor))
	tab.AwaitText("Your token is not valid any more: it was deleted. Log in with another one.")
	require.Empty(t, tab.Accessibility())
	second, err := operator.CreateToken(t.Context(), api.TokenRequest{Role: "read-only"})
	require.NoError(t, err)
	login(second.SecretID)
	require.Empty(t, tab.Problems())
	require.Equal(t, []string{strings.TrimSuffix(url, "/ui")}, tab.Origins())
}

// withACLs turns the servers' ACLs on, and returns a client with the first operator's token.
func (f *fleet) withACLs() *api.Client {
	f.t.Helper()
	var addresses []string
	for _, s := range f.servers {
		s.end(syscall.SIGTERM)
		config := filepath.Join(f.info.DataDir, "config", s.name+".hcl")
		text, err := os.ReadFile(config)
		require.NoError(f.t, err)
		closed := strings.Replace(string(text), "acl {\n  enabled = false\n}", "acl {\n  enabled = true\n}", 1)
		require.NotEqual(f.t, string(text), closed)
		require.NoError(f.t, os.WriteFile(config, []byte(closed), 0o600))
		addresses = append(addresses, "http://"+s.http)
	}
	for _, s := range f.servers {
		s.start()
	}
	client := func(token string) *api.Client {
		c, err := api.NewClient(api.Config{Addresses: addresses, Token: token})
		require.NoError(f.t, err)
		f.t.Cleanup(c.Close)
		return c
	}
	var first api.Token
	eventually(f.t, time.Minute, "the first token", func() error {
		var err error
		first, err = client("").BootstrapACL(f.t.Context())
		return err
	})
	return client(first.SecretID)
}

// onGPU is the replica of a model with one that is HOT.
func (f *fleet) onGPU(model string) api.Replica {
	f.t.Helper()
	all, err := f.replicas(model)
	require.NoError(f.t, err)
	return all[f.hot(model, 1)[0]]
}
