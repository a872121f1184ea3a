package server_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
)

// begun sends a request's header and the first part of a body of length bytes.
func (m *member) begun(request, token string, length int, part string) net.Conn {
	m.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(m.url, "http://"))
	require.NoError(m.t, err)
	m.t.Cleanup(func() { c.Close() })
	require.NoError(m.t, c.SetDeadline(time.Now().Add(patience/4)))
	_, err = fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", request, api.HeaderToken, token, length, part)
	require.NoError(m.t, err)
	return c
}

// TestTokensAreCheckedBeforeTheBody: the response comes although the body never does, from
// a leader and from a follower.
func TestTokensAreCheckedBeforeTheBody(t *testing.T) {
	t.Parallel()
	leader, secrets := bootstrapped(t)
	follower := cluster(t, 1, settings{acl: true, server: func(c *server.Config) { c.Raft = elsewhere{c.Raft, leader.url} }})[0]
	for name, m := range map[string]*member{"leader": leader, "follower": follower} {
		for _, request := range []string{"PUT /v1/models", "PUT /v1/operator/snapshot", "PUT /v1/gateway/report"} {
			for token, status := range map[string]int{
				"": http.StatusUnauthorized, "00000000-0000-0000-0000-000000000000": http.StatusUnauthorized, secrets["read-only"]: http.StatusForbidden,
			} {
				c := m.begun(request, token, 1<<19, "")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err, "%s: %s with token %q", name, request, token)
				defer resp.Body.Close()
				require.Equal(t, status, resp.StatusCode, "%s: %s with token %q", name, request, token)
			}
		}
	}
	// A follower that does not know a token asks the leader.
	resp, body := follower.raw(http.MethodPut, "/v1/gateway/report", secrets["gateway"], `{"Gateway":"g","Index":1,"Replicas":[]}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	require.Len(t, leader.loads.Gateways(), 1)
}

// TestBodiesOfAllRequestsAreBounded: a request whose body finds no room is to be tried again.
func TestBodiesOfAllRequestsAreBounded(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.MaxBody, c.MaxHeld = 1024, 8192 }})[0]
	begin := func() net.Conn {
		return m.begun("PUT /v1/gateway/report", "", 8000, strings.Repeat(" ", 7600))
	}
	slow := begin()
	name := strings.Repeat("x", 900)
	put := func() (*http.Response, string) {
		return m.raw(http.MethodPut, "/v1/switch/pause-reconcile", "", `{"Value":"`+name+`"}`)
	}
	eventually(t, "the server to reject a body for lack of room", func() bool {
		resp, body := put()
		if resp.StatusCode == http.StatusOK {
			// The slow body may have come second, and found no room itself.
			require.NoError(t, slow.Close())
			slow = begin()
			return false
		}
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, body)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Equal(t, api.CodeBusy, refused(t, body).Code)
		return true
	})
	resp, body := m.raw(http.MethodPut, "/v1/switch/pause-reconcile", "", `{"Value":"x"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	require.NoError(t, slow.Close())
	eventually(t, "the server to have room again", func() bool {
		resp, _ := put()
		return resp.StatusCode == http.StatusOK
	})
}
