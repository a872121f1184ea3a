package conformance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// link is a connection of a test: whatever goes wrong on it fails the test.
type link struct {
	t testing.TB
	rawConn
}

// dial connects to a socket of the server; the connection ends with the test.
func dial(t testing.TB, path string) *link {
	t.Helper()
	r, err := dialRaw(path)
	require.NoError(t, err)
	t.Cleanup(func() { r.c.Close() })
	return &link{t: t, rawConn: r}
}

func (l *link) close() { l.c.Close() }

// post sends a request and does not wait.
func (l *link) post(m message, fds ...int) *link {
	l.t.Helper()
	require.NoError(l.t, l.send(m, fds...), "send %v", m["type"])
	return l
}

// next is the next answer, which carries no descriptor.
func (l *link) next() message {
	l.t.Helper()
	a, err := l.receive(patience)
	require.NoError(l.t, err)
	a.close()
	require.Empty(l.t, a.fds, "a descriptor rides on %s", a.kind())
	return a.message
}

// ask sends a request and returns the answer, of the type that belongs to it.
func (l *link) ask(kind string, pairs ...any) message {
	l.t.Helper()
	l.post(newMessage(kind+"_request", pairs...))
	m := l.next()
	require.Equal(l.t, kind+"_response", m.kind(), "answer to %s_request: %v", kind, m)
	return m
}

// refused sends a request that must get an error_response; the session lives on.
func (l *link) refused(kind string, pairs ...any) {
	l.t.Helper()
	l.post(newMessage(kind+"_request", pairs...))
	requireError(l.t, l.next(), kind)
	l.alive()
}

// alive asks something that every session may ask.
func (l *link) alive() message {
	l.t.Helper()
	return l.ask("get_lock_state")
}

// closed waits until the server closes the connection, with nothing more to read.
func (l *link) closed() {
	l.t.Helper()
	a, err := l.receive(patience)
	a.close()
	require.Error(l.t, err, "an answer where the server had to close: %v", a.message)
	require.True(l.t, ended(err), "the server has to close the connection: %v", err)
}

// errorOrEnd accepts what the protocol does not tell apart: an error_response, or
// the end of the connection, which is reported.
func (l *link) errorOrEnd() (end bool) {
	l.t.Helper()
	a, err := l.receive(patience)
	a.close()
	if err != nil {
		require.True(l.t, ended(err), "neither an error_response nor a disconnect: %v", err)
		return true
	}
	requireError(l.t, a.message, "the request")
	return false
}

// silent says that nothing has come for a while.
func (l *link) silent(within time.Duration) {
	l.t.Helper()
	a, err := l.receive(within)
	a.close()
	require.True(l.t, timedOut(err), "had to wait, but got %v, %v", a.message, err)
}

// requireError asks for an error_response as v0's clients decode it: a text and a
// number.
func requireError(t testing.TB, m message, what string) {
	t.Helper()
	require.Equal(t, "error_response", m.kind(), "answer to %s: %v", what, m)
	require.NotEmpty(t, str(t, m, "error"), "the error's text")
	require.Contains(t, m, "code")
	whole(t, m, "code")
}

// The readers of fields fail the test where the type on the wire is another.

func str(t testing.TB, m message, key string) string {
	t.Helper()
	v, ok := m[key].(string)
	require.True(t, ok, "%s of %s is %T %v, not a string", key, m.kind(), m[key], m[key])
	return v
}

func whole(t testing.TB, m message, key string) int64 {
	t.Helper()
	v, ok := m[key].(int64)
	require.True(t, ok, "%s of %s is %T %v, not an integer", key, m.kind(), m[key], m[key])
	return v
}

func truth(t testing.TB, m message, key string) bool {
	t.Helper()
	v, ok := m[key].(bool)
	require.True(t, ok, "%s of %s is %T %v, not a bool", key, m.kind(), m[key], m[key])
	return v
}

func blob(t testing.TB, m message, key string) []byte {
	t.Helper()
	v, ok := m[key].([]byte)
	require.True(t, ok, "%s of %s is %T %v, not bin", key, m.kind(), m[key], m[key])
	require.NotNil(t, v)
	return v
}

func list(t testing.TB, m message, key string) []any {
	t.Helper()
	v, ok := m[key].([]any)
	require.True(t, ok && v != nil, "%s of %s is %T %v, not a list", key, m.kind(), m[key], m[key])
	return v
}

func texts(t testing.TB, m message, key string) []string {
	t.Helper()
	out := []string{}
	for _, v := range list(t, m, key) {
		s, ok := v.(string)
		require.True(t, ok, "%v of %s is no string", v, m.kind())
		out = append(out, s)
	}
	return out
}
