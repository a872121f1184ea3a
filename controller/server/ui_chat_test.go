package server_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
	"remuda/internal/testkit/browser"
)

// talker is a gateway whose answers a test writes. It reports to the member.
type talker struct {
	*httptest.Server
	asked chan talk
}

// talk is a request at a talker. A stream begins with say and ends with end.
type talk struct {
	t    testing.TB
	key  string
	path string
	body struct {
		Model    string
		Messages []struct{ Role, Content string }
		Stream   bool
	}
	w    http.ResponseWriter
	done chan struct{}
}

func (m *member) talker() *talker {
	g := &talker{asked: make(chan talk)}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := talk{t: m.t, key: r.Header.Get("Authorization"), path: r.URL.Path, w: w, done: make(chan struct{})}
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &one.body)
		select {
		case g.asked <- one:
			<-one.done
		case <-r.Context().Done():
		}
	}))
	m.t.Cleanup(g.Close)
	reported(m.t, m.client, api.GatewayReport{Gateway: "gone", Index: 1, Address: "http://127.0.0.1:1", Since: time.Now(), Replicas: []api.ReplicaLoad{}})
	reported(m.t, m.client, api.GatewayReport{Gateway: "talker", Index: 1, Address: g.URL, Since: time.Now(), Replicas: []api.ReplicaLoad{}})
	return g
}

// send sends a part of the answer.
func (a talk) send(text string) {
	a.w.Header().Set("Content-Type", "text/event-stream")
	_, err := io.WriteString(a.w, text)
	require.NoError(a.t, err)
	a.w.(http.Flusher).Flush()
}

// say sends a word of the answer.
func (a talk) say(word string) {
	b, err := json.Marshal(map[string]any{"choices": []any{map[string]any{"delta": map[string]string{"content": word}}}})
	require.NoError(a.t, err)
	a.send(fmt.Sprintf("data: %s\n\n", b))
}

func (a talk) end(replica string) {
	a.send("data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n")
	a.w.Header().Set(http.TrailerPrefix+"X-Remuda-Replica", replica)
	close(a.done)
}

// TestUIChat: the controller passes a conversation to a gateway with the person's API key and nothing of its
// own, tries the next gateway where one is gone, follows no redirect, and never makes a page of an answer.
func TestUIChat(t *testing.T) {
	m, secrets := bootstrapped(t)
	chat := func(body string, header ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+"/ui/chat", strings.NewReader(body))
		require.NoError(t, err)
		req.AddCookie(&http.Cookie{Name: "remuda_token", Value: secrets["operator"]})
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(b)
	}
	resp, body := chat(`{}`)
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	require.Contains(t, body, "no gateway reports its address to the controller")

	g := m.talker()
	go func() {
		a := <-g.asked
		assert.Equal(t, []string{"Bearer sk-1", "/v1/chat/completions", "m", "hello"}, []string{a.key, a.path, a.body.Model, a.body.Messages[0].Content})
		a.say("hi")
		a.end("m:a:1")
		a = <-g.asked
		assert.Empty(t, a.key)
		a.w.Header().Set("Content-Type", "text/html")
		a.w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(a.w, "<script>")
		close(a.done)
		a = <-g.asked
		http.Redirect(a.w, httptest.NewRequest(http.MethodGet, "/", nil), m.url+"/v1/models", http.StatusFound)
		close(a.done)
	}()
	resp, body = chat(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "X-Remuda-Key", "sk-1")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Contains(t, body, `"content":"hi"`)
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n: remuda replica=m:a:1\n\n"), body)
	resp, body = chat(`{}`)
	require.Equal(t, []any{http.StatusTooManyRequests, "application/json", "<script>"}, []any{resp.StatusCode, resp.Header.Get("Content-Type"), body})
	resp, _ = chat(`{}`)
	require.Equal(t, http.StatusFound, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Location"))
	resp, _ = chat(strings.Repeat("x", 1<<20+1))
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)

	// A gateway whose certificate is for another name says so.
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	g.Close()
	reported(t, m.client, api.GatewayReport{Gateway: "talker", Index: 1, Address: secure.URL, Since: time.Now(), Replicas: []api.ReplicaLoad{}})
	resp, body = chat(`{}`)
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	require.Contains(t, body, "certificate")
	require.Contains(t, body, "set advertise in its configuration to a URL whose certificate the controller trusts")

	for _, address := range []string{"ftp://x", "http://", "http://x/y", "http://u:p@x", "//x", "x:1", "http://x?y", "javascript:alert(1)"} {
		_, err := m.client.GatewayReport(t.Context(), api.GatewayReport{Gateway: "bad", Index: 1, Address: address})
		requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "address")
	}
}

// TestUIChatOverTLS: the controller passes a chat to a gateway whose certificate is of a CA that it trusts.
func TestUIChatOverTLS(t *testing.T) {
	gateway := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := talk{t: t, w: w, done: make(chan struct{})}
		a.say("secret")
		a.end("m:a:1")
	}))
	defer gateway.Close()
	cas := x509.NewCertPool()
	cas.AddCert(gateway.Certificate())
	m, secrets := bootstrapped(t, func(c *server.Config) { c.GatewayCAs = cas })
	reported(t, m.client, api.GatewayReport{Gateway: "secure", Index: 1, Address: gateway.URL, Since: time.Now(), Replicas: []api.ReplicaLoad{}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url+"/ui/chat", strings.NewReader(`{"model":"m"}`))
	require.NoError(t, err)
	req.AddCookie(&http.Cookie{Name: "remuda_token", Value: secrets["operator"]})
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Contains(t, string(body), `"content":"secret"`)
	require.Contains(t, string(body), "replica=m:a:1")
}

// TestUIChatInABrowser: a chat shows where it waits, the words as they come, a pause, an error, and who
// answered how fast; what a model writes is text.
func TestUIChatInABrowser(t *testing.T) {
	m := one(t)
	m.busy()
	g := m.talker()
	tab := browser.Start(t).Tab()
	tab.Open(m.url + "/ui/try")
	tab.Type("#model", "m")
	tab.Follow("form.tools button")
	tab.Type("#question", "a question")
	tab.Type("#key", "sk-1")
	tab.Click("#ask button")
	a := <-g.asked
	require.Equal(t, "Bearer sk-1", a.key)
	a.send(": remuda state=DEPLOYING position=3 waited=2s\n\n")
	tab.AwaitText("a question Waiting: state=DEPLOYING position=3 waited=2s")
	a.say("one ")
	a.say(hostile)
	tab.AwaitText("one " + hostile)
	a.send(": remuda state=BUSY position=1 waited=1s\n")
	tab.AwaitText("No token for 1.")
	a.say(" two")
	a.end("m:a:1")
	tab.AwaitText("two m:a:1, 7 tokens, ")
	tab.AwaitText("longest pause ")

	tab.Type("#question", "again\r")
	a = <-g.asked
	require.Len(t, a.body.Messages, 3, "the conversation goes on")
	require.Equal(t, "one "+hostile+" two", a.body.Messages[1].Content)
	a.say("begun")
	a.send("data: {\"error\":{\"message\":\"engine cut off\"}}\n\n")
	close(a.done)
	tab.AwaitText("engine cut off")
	tab.Type("#question", "stop\r")
	a = <-g.asked
	require.Len(t, a.body.Messages, 3, "a question without an answer is forgotten")
	a.say("begun")
	tab.AwaitText("stop begun")
	tab.Click("#stop")
	tab.AwaitText("Stopped.")
	close(a.done)
	require.False(t, browser.Eval[bool](tab, `Boolean(document.querySelector("#log script, #log img"))`))
	require.Empty(t, tab.Accessibility())
	require.Empty(t, tab.Problems())
	require.Equal(t, []string{m.url}, tab.Origins())
}
