package shimclient_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/shimclient"
	"remuda/internal/testkit/shimtest"
)

func TestFailover(t *testing.T) {
	s := shimtest.New("m:v:1", "primary", true)
	c, address := open(t, s)
	to := shimclient.Target{Address: address}
	since := s.State().Since
	require.ErrorIs(t, c.Failover(t.Context(), to, since.Add(-time.Second), time.Minute, false), shimclient.ErrChanged)
	s.OnFailover(func() shimtest.Answer { return shimtest.Answer{Code: http.StatusConflict, Error: "no standby"} })
	err := c.Failover(t.Context(), to, since, time.Minute, false)
	require.ErrorIs(t, err, shimclient.ErrRefused)
	require.ErrorContains(t, err, "failover at the shim "+address+": rejected by the shim: no standby")
	s.OnFailover(nil)
	require.NoError(t, c.Failover(t.Context(), to, since, 30*time.Second, true))
	require.Equal(t, []string{"failover 1m0s", "failover 1m0s", "drill 30s"}, s.Orders())

	// The one that takes over reports it.
	want := &shimclient.Takeover{From: "primary", Cause: "drill", Reason: "r", Ended: time.Unix(100, 0).UTC(), At: time.Unix(102, 0).UTC(), Seconds: 2}
	s.Set(func(st *shimclient.State) { st.Takeover = want })
	got, err := c.State(t.Context(), address)
	require.NoError(t, err)
	require.Equal(t, want, got.Takeover)
}
