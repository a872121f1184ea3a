package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// backend is a server that answers as it is told.
func backend(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return "http://" + l.Addr().String()
}

func client(t *testing.T, cfg api.Config) *api.Client {
	t.Helper()
	c, err := api.NewClient(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func answer(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(api.HeaderIndex, "7")
		w.Header().Set(api.HeaderLastContact, "1500")
		w.Header().Set(api.HeaderKnownLeader, "true")
		_ = json.NewEncoder(w).Encode(v)
	}
}

func broken(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestConfigurationNamesEveryFault(t *testing.T) {
	_, err := api.NewClient(api.Config{
		Addresses: []string{"ftp://x", "http://h/path", "http://u:secret@h", "http://%zz", ""},
		Token:     "a\nb", CACert: "/nowhere", Timeout: -1,
	})
	for _, text := range []string{`"ftp://x"`, `"http://h/path"`, "u:xxxxx@h", "%zz", `address is "http://"`, "line break", "/nowhere", "timeout is -1ns"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "secret")
	_, err = api.NewClient(api.Config{ClientCert: "a.pem"})
	require.ErrorContains(t, err, "must be set together")
}

func TestTheEnvironment(t *testing.T) {
	var token atomic.Value
	url := backend(t, func(w http.ResponseWriter, r *http.Request) {
		token.Store(r.Header.Get(api.HeaderToken))
		answer(api.LeaderStatus{ID: "x"})(w, r)
	})
	t.Setenv(api.EnvAddress, nobody(t)+" , "+strings.TrimPrefix(url, "http://"))
	t.Setenv(api.EnvToken, "from the environment")
	l, err := client(t, api.Config{}).Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, "x", l.ID)
	require.Equal(t, "from the environment", token.Load())
	_, err = client(t, api.Config{Token: "given"}).Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, "given", token.Load())
	t.Setenv(api.EnvCACert, "/nowhere")
	_, err = api.NewClient(api.Config{})
	require.ErrorContains(t, err, "/nowhere")
}

func TestTLSToAPlainServerSaysSo(t *testing.T) {
	plain := backend(t, answer(api.Switch{Name: "s"}))
	c := client(t, api.Config{Addresses: []string{strings.Replace(plain, "http://", "https://", 1)}})
	_, err := c.Leader(t.Context())
	require.ErrorContains(t, err, "the server speaks plain HTTP: use an address that begins with http://")
}

func TestAnotherServerIsAsked(t *testing.T) {
	var calls atomic.Int64
	good := backend(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		answer(api.Switch{Name: "s"})(w, r)
	})
	bad := backend(t, broken)

	// Where nobody listens nothing was sent.
	c := client(t, api.Config{Addresses: []string{nobody(t), good}})
	_, err := c.SetSwitch(t.Context(), "s", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	// The one that answered is asked first from then on.
	_, err = c.SetSwitch(t.Context(), "s", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	require.Equal(t, int64(2), calls.Load())

	// What may have happened is not asked for again.
	c = client(t, api.Config{Addresses: []string{bad, good}})
	_, err = c.SetSwitch(t.Context(), "s", api.SwitchRequest{Value: "on"})
	require.ErrorContains(t, err, bad)
	require.Equal(t, int64(2), calls.Load())
	// A read is.
	_, err = c.Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), calls.Load())

	c = client(t, api.Config{Addresses: []string{nobody(t), nobody(t)}})
	_, err = c.Leader(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, 2, strings.Count(err.Error(), "connection refused"), "both are named")
	// A server's own refusal is its answer.
	c = client(t, api.Config{Addresses: []string{backend(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":"no leader","code":"no_leader"}`)
	}), good}})
	_, err = c.Leader(t.Context())
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, &api.Error{Status: 503, Code: api.CodeNoLeader, Message: "no leader", RetryAfter: 3 * time.Second}, e)
}

// A server that takes connections and answers nothing, as one that was frozen, is not
// asked first again.
func TestAFrozenServerIsLeft(t *testing.T) {
	t.Parallel()
	thawed := make(chan struct{})
	frozen := backend(t, func(http.ResponseWriter, *http.Request) { <-thawed })
	t.Cleanup(func() { close(thawed) }) // before its server is closed
	c := client(t, api.Config{Addresses: []string{frozen, backend(t, answer(api.LeaderStatus{}))}})
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := c.Leader(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.Leader(t.Context())
	require.NoError(t, err)

	// With time enough the next is asked within the same call.
	c = client(t, api.Config{Addresses: []string{frozen, backend(t, answer(api.LeaderStatus{}))}, Timeout: 14 * time.Second})
	_, err = c.Leader(t.Context())
	require.NoError(t, err)
}

func TestAnswersOfAnotherProgram(t *testing.T) {
	url := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/status/leader" {
			_, _ = io.WriteString(w, "<html>")
			return
		}
		if r.URL.Path == "/v1/nodes" {
			http.Error(w, "<!DOCTYPE html><html><body>Nothing here</body></html>", http.StatusNotFound)
			return
		}
		http.Error(w, strings.Repeat("x", 10_000), http.StatusBadGateway)
	})
	c := client(t, api.Config{Addresses: []string{url}})
	_, err := c.Leader(t.Context())
	require.ErrorContains(t, err, "GET /v1/status/leader: "+strings.TrimPrefix(url, "http://")+" did not respond as a controller does: is it a remuda controller?")
	_, _, err = c.Models(t.Context(), api.QueryOptions{})
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, http.StatusBadGateway, e.Status)
	require.Less(t, len(e.Message), 500)
	require.Contains(t, e.Message, "502 Bad Gateway")
	_, _, err = c.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.EqualError(t, err, strings.TrimPrefix(url, "http://")+" responded 404 Not Found: is it a remuda controller?")
}

func TestQueryOptionsAndMeta(t *testing.T) {
	var query atomic.Value
	url := backend(t, func(w http.ResponseWriter, r *http.Request) {
		query.Store(r.URL.Path + "?" + r.URL.RawQuery)
		if r.URL.EscapedPath() != r.URL.Path {
			query.Store(r.URL.EscapedPath() + "?" + r.URL.RawQuery)
		}
		answer([]api.Replica{})(w, r)
	})
	c := client(t, api.Config{Addresses: []string{url}})
	for _, tc := range []struct {
		q    api.QueryOptions
		want string
	}{
		{api.QueryOptions{}, "/v1/replicas?model=a%2Fb"},
		{api.QueryOptions{Wait: time.Second}, "/v1/replicas?model=a%2Fb"},
		{api.QueryOptions{Index: 3, Wait: time.Second, Stale: true}, "/v1/replicas?index=3&model=a%2Fb&stale=&wait=1s"},
	} {
		_, meta, err := c.Replicas(t.Context(), "a/b", tc.q)
		require.NoError(t, err)
		require.Equal(t, tc.want, query.Load())
		require.Equal(t, api.QueryMeta{Index: 7, LastContact: 1500 * time.Millisecond, KnownLeader: true}, meta)
	}
	_, _, err := c.ModelFile(t.Context(), "meta-llama/L:8b", 0, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "/v1/model/meta-llama%2FL:8b/file?", query.Load())
}

func TestACallIsBounded(t *testing.T) {
	release := make(chan struct{})
	url := backend(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	c := client(t, api.Config{Addresses: []string{url}, Timeout: 20 * time.Millisecond})
	_, err := c.Leader(t.Context())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// One that waits for a change has its own time.
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err = c.Models(ctx, api.QueryOptions{Index: 1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
}

func TestASnapshotThatBreaksOff(t *testing.T) {
	url := backend(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var got strings.Builder
	err := client(t, api.Config{Addresses: []string{url}}).SaveSnapshot(t.Context(), &got, api.QueryOptions{})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", got.String())
}

func TestWatch(t *testing.T) {
	boom := errors.New("boom")
	steps := []struct {
		want   uint64
		answer uint64
		err    error
	}{
		{want: 0, answer: 10},
		{want: 10, answer: 12},
		{want: 12, answer: 12}, // its time was over
		{want: 12, answer: 5},  // the state was replaced
		{want: 0, answer: 5},
		{want: 5, err: boom},
		{want: 0, answer: 6},
		{want: 6, answer: 0}, // no index
		{want: 0, answer: 7},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := 0
	var failures []string
	err := api.Watch(ctx, api.QueryOptions{Stale: true}, func(_ context.Context, q api.QueryOptions) (api.QueryMeta, error) {
		if at == len(steps) {
			cancel()
			return api.QueryMeta{}, boom
		}
		s := steps[at]
		at++
		require.True(t, q.Stale)
		require.Equal(t, s.want, q.Index, "step %d", at)
		return api.QueryMeta{Index: s.answer}, s.err
	}, func(err error) { failures = append(failures, err.Error()) })
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, failures, 2)
	require.Equal(t, "boom", failures[0])
	require.Contains(t, failures[1], api.HeaderIndex)
}

func TestDuration(t *testing.T) {
	b, err := json.Marshal(api.Duration(15 * time.Minute))
	require.NoError(t, err)
	require.Equal(t, `"15m0s"`, string(b))
	var d api.Duration
	require.NoError(t, json.Unmarshal([]byte(`"1h30m"`), &d))
	require.Equal(t, 90*time.Minute, time.Duration(d))
	for _, bad := range []string{`5`, `"5"`, `null5`} {
		require.Error(t, json.Unmarshal([]byte(bad), &d), bad)
	}
	require.Equal(t, "1h30m0s", fmt.Sprint(d))
}

// TestATokenIsNotTakenElsewhere: a redirection is answered with an error, and nobody
// else gets the token.
func TestATokenIsNotTakenElsewhere(t *testing.T) {
	var got atomic.Value
	other := backend(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get(api.HeaderToken))
		answer(api.LeaderStatus{ID: "x"})(w, r)
	})
	url := backend(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other+r.URL.Path, http.StatusFound) })
	_, err := client(t, api.Config{Addresses: []string{url}, Token: "a secret"}).Leader(t.Context())
	require.ErrorContains(t, err, "302 Found")
	require.ErrorContains(t, err, other+"/v1/status/leader", "where to")
	require.Nil(t, got.Load())
}
