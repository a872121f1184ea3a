package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// TestUIRights: a page gives what its token's role may read, and no more.
func TestUIRights(t *testing.T) {
	m, secrets := bootstrapped(t)
	serving := m.busy()
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "min        = 0", "min = 1"))})
	require.NoError(t, err)
	for path, rule := range uiPages {
		resp, _ := m.visit(path, "", nil)
		require.Equal(t, http.StatusSeeOther, resp.StatusCode, path)
		require.Equal(t, "/ui/login?from="+url.QueryEscape(path), resp.Header.Get("Location"))
		resp, _ = m.visit(path, "", nil, "X-Remuda-Live", "0")
		require.Equal(t, http.StatusSeeOther, resp.StatusCode, path)
		for role, secret := range secrets {
			resp, body := m.visit(path, secret, nil)
			if !strings.ContainsRune(rule, rune(role[0])) {
				require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s as %s", path, role)
				require.Contains(t, body, "role "+role)
				require.NotContains(t, body, "GPU-n1", path)
				continue
			}
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s as %s: %s", path, role, body)
			if !strings.HasPrefix(path, "/ui/cordon") && !strings.HasPrefix(path, "/ui/evict") && !strings.HasPrefix(path, "/ui/revert") {
				require.Equal(t, role == "operator" && (strings.HasPrefix(path, "/ui/nodes") || strings.HasPrefix(path, "/ui/model")),
					strings.Contains(body, "/ui/evict?") || strings.Contains(body, "/ui/cordon?"), "%s as %s has buttons", path, role)
			}
		}
	}

	// Open pages share their reads with those of the same person only.
	live := func(role string) int {
		resp, _ := m.visit("/ui/nodes", secrets[role], nil, "X-Remuda-Live", fmt.Sprint(m.store.View().Index()))
		return resp.StatusCode
	}
	shared := make(chan int)
	go func() { shared <- live("operator") }()
	for waits := true; waits; {
		select {
		case status := <-shared:
			require.Equal(t, http.StatusOK, status)
			waits = false
		default:
			require.Equal(t, http.StatusForbidden, live("gateway"))
		}
	}

	// What changes something asks for an operator, whatever the page shows.
	forms := map[string]url.Values{
		"/ui/cordon": {"node": {"n1"}, "gpu": {gpuOf("n1", 0)}, "on": {"true"}, "reason": {"test"}},
		"/ui/evict":  {"replica": {serving}, "to": {"COLD"}},
		"/ui/revert": {"model": {"m"}, "version": {"1"}},
		"/ui/chat":   {"model": {"m"}},
	}
	for path, form := range forms {
		before := m.store.View().TableIndex()
		for _, role := range []string{"gateway", "autoscaler", "read-only"} {
			resp, _ := m.visit(path, secrets[role], form)
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s as %s", path, role)
		}
		resp, _ := m.visit(path, "", form)
		if path == "/ui/chat" { // a script asks, not a person
			require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		} else {
			require.Equal(t, http.StatusSeeOther, resp.StatusCode)
			require.Equal(t, "/ui/login?from=%2Fui", resp.Header.Get("Location"))
		}
		// A page of another origin changes nothing, although the browser sends its token.
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
			resp, _ = m.visit(path, secrets["operator"], form, header...)
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s with %v", path, header)
		}
		// A link changes nothing either.
		m.visit(path+"?"+form.Encode(), secrets["operator"], nil)
		require.Equal(t, before, m.store.View().TableIndex(), path)
	}

	// A cordon shows what would leave, in steps.
	_, err = m.client.Cordon(t.Context(), "n1", api.CordonRequest{GPU: gpuOf("n1", 1)})
	require.NoError(t, err)
	preview := m.world.preview
	m.world.preview = func(change func(*state.Store) error) (planner.Foresight, error) {
		f, err := preview(change)
		if gpu := f.Store.View().Node(nil, "n1").GPUs[0]; gpu.Cordoned {
			f.Unfinished = gpu.UUID + " is cordoned"
		}
		return f, err
	}
	leaving := words(m.page("/ui/cordon?node=n1&on=true&gpu="+gpuOf("n1", 0), secrets["read-only"]))
	require.Contains(t, leaving, "The steps end early: GPU-n1-0 is cordoned")
	require.Contains(t, leaving, "Only an operator can cordon")
	m.world.preview = preview
	resp, _ := m.visit("/ui/cordon", secrets["operator"], forms["/ui/cordon"], "Sec-Fetch-Site", "same-origin")
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	require.Equal(t, "/ui/nodes?q=n1#node-n1", resp.Header.Get("Location"))
	require.Contains(t, words(m.page("/ui/nodes", secrets["read-only"])), `cordoned operator "bootstrap": test`)
	plan := words(m.page("/ui/evict?to=COLD&replica="+url.QueryEscape(serving), secrets["operator"]))
	require.Contains(t, plan, serving+" node-one serving draining")
	// What is ordered is what was planned: force is part of the plan's address, and of the form that it shows.
	require.Contains(t, m.page("/ui/evict?to=COLD&replica="+url.QueryEscape(serving), secrets["operator"]), `name="force" value="false"`)
	forced := m.page("/ui/evict?to=COLD&force=true&replica="+url.QueryEscape(serving), secrets["operator"])
	require.Contains(t, forced, `name="force" value="true"`)
	require.Contains(t, words(forced), serving+" node-one serving draining")
	resp, body := m.visit("/ui/evict", secrets["operator"], forms["/ui/evict"])
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	require.Contains(t, words(body), serving+" HOT COLD 1 10 GiB")
	require.Contains(t, words(m.page("/ui/model?name=m", secrets["read-only"])), "1 a HOT draining")

	require.Contains(t, m.page("/ui/model?name=m", secrets["operator"]), `<a href="/ui/revert?model=m&amp;version=1">`)
	require.NotContains(t, m.page("/ui/model?name=m", secrets["read-only"]), "/ui/revert")
	revert := words(m.page("/ui/revert?model=m&version=1", secrets["operator"]))
	require.Contains(t, revert, "Model m gets the definition of version 1 of")
	require.Contains(t, revert, "in place of version 2")
	resp, body = m.visit("/ui/revert", secrets["operator"], forms["/ui/revert"])
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, body)
	require.Equal(t, "/ui/model?name=m", resp.Header.Get("Location"))
	require.Equal(t, 3, m.store.View().Model(nil, "m").Version)
	require.Zero(t, m.store.View().Model(nil, "m").Min)
	for _, version := range []string{"", "0", "x", "9"} {
		form := url.Values{"model": {"m"}, "version": {version}}
		resp, _ = m.visit("/ui/revert", secrets["operator"], form)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, resp.StatusCode, version)
		resp, _ = m.visit("/ui/revert?"+form.Encode(), secrets["operator"], nil)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, resp.StatusCode, version)
	}
}

func TestUILogin(t *testing.T) {
	m, secrets := bootstrapped(t)
	m.applied("m")
	login := func(token, from string, header ...string) (*http.Response, string) {
		return m.visit("/ui/login", "", url.Values{"token": {token}, "from": {from}}, header...)
	}
	resp, body := login(" "+secrets["read-only"]+"\n", "/ui/model?name=m")
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, body)
	require.Equal(t, "/ui/model?name=m", resp.Header.Get("Location"))
	c := resp.Cookies()[0]
	require.Equal(t, []any{"remuda_token", secrets["read-only"], "/ui", true, http.SameSiteStrictMode, false}, []any{c.Name, c.Value, c.Path, c.HttpOnly, c.SameSite, c.Secure})
	require.Zero(t, c.MaxAge, "it ends with the browser's session")
	require.Contains(t, words(m.page("/ui", c.Value)), `read-only "a read-only" Log out`)

	for _, from := range []string{"https://evil.example/ui", "//evil.example/ui", `/\evil.example`, "/ui/../v1/models", "/v1/models", "javascript:alert(1)", "/ui/login", "/uix"} {
		resp, _ = login(secrets["read-only"], from)
		require.Equal(t, "/ui", resp.Header.Get("Location"), from)
	}
	for token, want := range map[string]int{"": 400, "a b": 400, "é": 400, strings.Repeat("x", 300): 400, "00000000-0000-0000-0000-000000000000": 401} {
		resp, body = login(token, "")
		require.Equal(t, want, resp.StatusCode, token)
		require.Empty(t, resp.Cookies())
		require.Contains(t, body, `role="alert"`)
		require.NotContains(t, body, "value=\""+token+"x", "a secret is not sent back")
	}
	resp, _ = login(secrets["operator"], "", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "nobody is logged in by another page")

	// A deleted token leads back to the login, with a message.
	gone := token(t, m.client, "operator")
	require.NoError(t, m.client.DeleteToken(t.Context(), gone.Accessor))
	resp, _ = m.visit("/ui/nodes", gone.SecretID, nil)
	require.Equal(t, "/ui/login?from=%2Fui%2Fnodes", resp.Header.Get("Location"))
	resp, body = m.visit("/ui/login?from=%2Fui%2Fnodes", gone.SecretID, nil)
	require.Contains(t, body, "Your token is not valid any more")
	require.Contains(t, body, `name="from" value="/ui/nodes"`)
	require.Negative(t, resp.Cookies()[0].MaxAge)
	_, body = m.visit("/ui/login", "", nil)
	require.NotContains(t, body, `role="alert"`)

	resp, _ = m.visit("/ui/logout", secrets["operator"], url.Values{})
	require.Negative(t, resp.Cookies()[0].MaxAge)
	require.Equal(t, "/ui/login", resp.Header.Get("Location"))
}

// TestUILoginWithTLS: the token is never sent in the clear to a server that has TLS.
func TestUILoginWithTLS(t *testing.T) {
	m, secrets := bootstrapped(t)
	secure := httptest.NewTLSServer(m.server)
	defer secure.Close()
	c := secure.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.PostForm(secure.URL+"/ui/login", url.Values{"token": {secrets["read-only"]}})
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	require.True(t, resp.Cookies()[0].Secure)
}

// TestUIHasNoTokenOfItsOwn: visitors do not get the rights of a token in the server's environment.
func TestUIHasNoTokenOfItsOwn(t *testing.T) {
	m, secrets := bootstrapped(t)
	t.Setenv(api.EnvToken, secrets["operator"])
	resp, _ := m.visit("/ui", "", nil)
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	resp, _ = m.visit("/ui", secrets["gateway"], nil)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	// The cookie opens the pages and not the API.
	resp, _ = m.visit("/v1/models", secrets["operator"], nil)
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

// TestUIOfAFollower: every server shows the leader's data.
func TestUIOfAFollower(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	leader := leaderOf(t, ms)
	leader.applied("m")
	follower := followersOf(t, ms)[0]
	require.Contains(t, words(follower.page("/ui", "")), "no replica serves; 2 replicas should run")
	require.Contains(t, words(follower.page("/ui/servers", "")), " voter ")
	resp, body := follower.visit("/ui/cordon", "", url.Values{"node": {"n1"}, "on": {"true"}})
	require.Equal(t, http.StatusSeeOther, resp.StatusCode, body)
	require.Contains(t, words(follower.page("/ui/nodes", "")), "cordoned")
}
