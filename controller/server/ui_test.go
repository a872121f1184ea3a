package server_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile is text of a user that would be markup, an attribute or a script if it were not escaped.
const hostile = `</script><script>alert(1)</script><img src=x onerror="alert('1')">{{.}}`

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

func TestUIOverview(t *testing.T) {
	m := one(t)
	m.applied("m")
	resp, body := m.visit("/ui", "", nil)
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	require.Contains(t, body, `<a href="/ui/model?name=m">m</a>`)
	require.Contains(t, body, "no replica serves; 2 replicas should run")
}
