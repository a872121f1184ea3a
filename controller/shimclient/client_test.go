package shimclient_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/shimclient"
	"remuda/internal/testkit/shimtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a client and the address of a handler.
func open(t *testing.T, h http.Handler) (*shimclient.Client, string) {
	t.Helper()
	srv := httptest.NewServer(h)
	c := shimclient.New(shimclient.Network())
	t.Cleanup(func() { c.Close(); srv.CloseClientConnections(); srv.Close() })
	return c, strings.TrimPrefix(srv.URL, "http://")
}

func TestSleepAndWake(t *testing.T) {
	s := shimtest.New("m:v:1", "primary", true)
	c, address := open(t, s)
	before := time.Now()
	got, err := c.State(t.Context(), address)
	require.NoError(t, err)
	require.Equal(t, []any{"m:v:1", "primary", shimclient.Active, true, true}, []any{got.Replica, got.Role, got.Phase, got.CanSleep, got.Leads()})
	_, asleep := got.Asleep()
	require.False(t, asleep)

	got, err = c.Sleep(t.Context(), shimclient.Target{Address: address}, time.Time{}, time.Minute)
	require.NoError(t, err)
	require.True(t, got.Parked)
	since, asleep := got.Asleep()
	require.True(t, asleep)
	require.False(t, since.Before(before))
	again, err := c.Sleep(t.Context(), shimclient.Target{Address: address}, time.Time{}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, got, again, "twice is once")

	got, err = c.Wake(t.Context(), shimclient.Target{Address: address}, time.Time{}, []string{"GPU-2", "GPU-1"})
	require.NoError(t, err)
	require.Equal(t, shimclient.Active, got.Phase)
	require.Equal(t, []string{"sleep", "sleep", "wake GPU-2,GPU-1"}, s.Orders())
	require.Equal(t, []string{"GPU-2", "GPU-1"}, s.GPUs())
}

// TestSecretIsSent with every order, and with nothing else.
func TestSecretIsSent(t *testing.T) {
	sent := map[string]string{}
	s := shimtest.New("m:v:1", "primary", false)
	c, address := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent[r.URL.Path] = r.Header.Get("Authorization")
		s.ServeHTTP(w, r)
	}))
	to := shimclient.Target{Address: address, Secret: "s"}
	_, err := c.State(t.Context(), address)
	require.NoError(t, err)
	require.NoError(t, c.Drain(t.Context(), to, time.Second))
	_, err = c.Sleep(t.Context(), to, time.Time{}, time.Second)
	require.NoError(t, err)
	_, err = c.Wake(t.Context(), to, time.Time{}, nil)
	require.NoError(t, err)
	pair := shimtest.New("m:v:1", "primary", true)
	s.Set(func(st *shimclient.State) { *st = pair.State() })
	require.NoError(t, c.Failover(t.Context(), to, time.Time{}, time.Second, true))
	require.Equal(t, map[string]string{"/v1/failover": "Bearer s", "/state": "", "/v1/drain": "Bearer s", "/v1/sleep": "Bearer s", "/v1/wake": "Bearer s"}, sent)
}

func TestNotServing(t *testing.T) {
	for want, st := range map[string]shimclient.State{
		"":                                   {Phase: shimclient.Active, Consul: &shimclient.Consul{Registered: true}},
		"the engine is loading":              {Phase: shimclient.Init, Lock: &shimclient.Lock{}},
		"the engine is in state waking":      {Phase: shimclient.Waking},
		"the engine was put to sleep":        {Phase: shimclient.Standby, Parked: true, Lock: &shimclient.Lock{Held: true}},
		"the engine is unhealthy: no answer": {Phase: shimclient.Active, Unhealthy: "no answer", Consul: &shimclient.Consul{}},
		"the engine stands by: lockd does not respond":                                    {Phase: shimclient.Standby, Lock: &shimclient.Lock{}},
		"the engine stands by: it waits for the lock of its failover group at position 2": {Phase: shimclient.Standby, Lock: &shimclient.Lock{Position: 2}},
		"the engine is up, but Consul rejects its registration: 403":                      {Phase: shimclient.Active, Consul: &shimclient.Consul{LastError: "403"}},
		"the engine is up, but is not registered in Consul yet":                           {Phase: shimclient.Active, Consul: &shimclient.Consul{}},
	} {
		require.Equal(t, want, st.NotServing())
	}
}

func TestAsleep(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	for name, tc := range map[string]struct {
		state shimclient.State
		since time.Time
		ok    bool
	}{
		"parked, then asleep":        {shimclient.State{Phase: shimclient.Standby, Since: late, Parked: true, ParkedSince: early}, late, true},
		"began anew while parked":    {shimclient.State{Phase: shimclient.Standby, Since: late, Parked: true, ParkedSince: early, Lock: &shimclient.Lock{Held: true}}, late, true},
		"parked while it stood by":   {shimclient.State{Phase: shimclient.Standby, Since: early, Parked: true, ParkedSince: late}, late, true},
		"parked, still on its way":   {shimclient.State{Phase: shimclient.Draining, Since: late, Parked: true, ParkedSince: early}, time.Time{}, false},
		"waits for another's lock":   {shimclient.State{Phase: shimclient.Standby, Since: late, Parked: true, Lock: &shimclient.Lock{}}, time.Time{}, false},
		"serves":                     {shimclient.State{Phase: shimclient.Active, Since: late}, time.Time{}, false},
		"loads":                      {shimclient.State{Phase: shimclient.Init, Since: late, Parked: true}, time.Time{}, false},
		"asleep without a parking":   {shimclient.State{Phase: shimclient.Standby, Since: early}, early, true},
		"has the lock, sleeps again": {shimclient.State{Phase: shimclient.Standby, Since: early, Lock: &shimclient.Lock{Held: true}}, early, true},
	} {
		t.Run(name, func(t *testing.T) {
			since, ok := tc.state.Asleep()
			require.Equal(t, tc.ok, ok)
			require.Equal(t, tc.since, since)
		})
	}
}

func TestErrors(t *testing.T) {
	said := func(code int) func() shimtest.Answer {
		return func() shimtest.Answer { return shimtest.Answer{Code: code, Error: "no", State: shimclient.Draining} }
	}
	plain := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	hooked := func(code int) http.Handler {
		s := shimtest.New("m:v:1", "primary", false)
		s.OnSleep(said(code))
		return s
	}
	silent := shimtest.New("m:v:1", "primary", false)
	silent.Down(true)
	for name, tc := range map[string]struct {
		h     http.Handler
		want  error
		state shimclient.Phase
	}{
		"conflict":        {hooked(409), shimclient.ErrRefused, shimclient.Draining},
		"changed":         {hooked(412), shimclient.ErrChanged, shimclient.Draining},
		"not drained":     {hooked(504), shimclient.ErrNotDrained, shimclient.Draining},
		"failed":          {hooked(500), shimclient.ErrFailed, shimclient.Draining},
		"Consul refused":  {hooked(502), shimclient.ErrFailed, shimclient.Draining},
		"bad request":     {hooked(400), shimclient.ErrFailed, shimclient.Draining},
		"wrong secret":    {hooked(401), shimclient.ErrUnauthorized, shimclient.Draining},
		"no secret":       {hooked(403), shimclient.ErrUnauthorized, shimclient.Draining},
		"cut":             {silent, shimclient.ErrUnreachable, ""},
		"another program": {plain(200, `{"hello": 1}`), shimclient.ErrUnreachable, ""},
		"no JSON":         {plain(200, "hello"), shimclient.ErrUnreachable, ""},
		"a proxy's 504":   {plain(504, "<html>"), shimclient.ErrUnreachable, ""},
		"a proxy's 409":   {plain(409, "{}"), shimclient.ErrUnreachable, ""},
		"elsewhere":       {http.RedirectHandler("/x", http.StatusFound), shimclient.ErrUnreachable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, address := open(t, tc.h)
			_, err := c.Sleep(t.Context(), shimclient.Target{Address: address}, time.Time{}, time.Second)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "sleep at the shim "+address)
			var answer *shimclient.Error
			require.ErrorAs(t, err, &answer)
			require.Equal(t, tc.state, answer.State)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		c, address := open(t, silent)
		_, err := c.State(t.Context(), address)
		require.ErrorIs(t, err, shimclient.ErrUnreachable)
		_, err = c.State(t.Context(), "127.0.0.1:1")
		require.ErrorIs(t, err, shimclient.ErrUnreachable)
		_, err = c.State(t.Context(), "no address at all")
		require.ErrorIs(t, err, shimclient.ErrUnreachable)
	})
	t.Run("the caller leaves", func(t *testing.T) {
		c, address := open(t, silent)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.State(ctx, address)
		require.ErrorIs(t, err, context.Canceled)
	})
}
