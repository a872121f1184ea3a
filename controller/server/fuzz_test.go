package server_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/server"
)

// FuzzRequests sends anything to any path: the server neither panics nor has a fault of
// its own, and what it answers is as described.
func FuzzRequests(f *testing.F) {
	for _, r := range server.Routes() {
		f.Add(r.Method, path(r.Pattern), "index=1&wait=1ms", "{}")
		f.Add(r.Method, path(r.Pattern), "", `{"Replicas":1,"Model":"m","Files":[{"Text":"model \"m\" {}"}]}`)
	}
	f.Add("GET", "/v1/model/%2e%2e%2f", "stale", "")
	f.Add("PUT", "/v1/models", "", `{"Files":[{"Text":"\u0000"}]}`)
	f.Add("PUT", "/v1/switch/%00", "", `{"Value":"\u0000"}`)
	m := one(f)
	m.applied("m")
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || u.IsAbs() || len(query) > 1000 {
			t.Skip()
		}
		if strings.Contains(query, "wait") && !strings.Contains(query, "wait=1ms") || strings.Contains(query, "index") && !strings.Contains(query, "wait=1ms") {
			t.Skip("it would wait")
		}
		u.RawQuery = query
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL = method, u
		w := httptest.NewRecorder()
		m.server.ServeHTTP(w, r)
		require.NotEqual(t, http.StatusInternalServerError, w.Code, "%s %s: %s", method, u, w.Body)
		resp := w.Result()
		if op, pattern := operation(t, method, u); op != nil && resp.StatusCode < 1000 {
			if err := conforms(t, r, resp, op, pattern, w.Body.Bytes()); err != nil {
				t.Errorf("%s %s answered %d: %v\n%s", method, u, resp.StatusCode, err, w.Body)
			}
		}
	})
}
