package server_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

func TestFailover(t *testing.T) {
	t.Parallel()
	type order struct {
		replica string
		order   api.FailoverRequest
		by      string
	}
	var got []order
	done := api.Failover{From: "primary", To: "shadow", Drained: api.Duration(time.Second), TookOver: api.Duration(200 * time.Millisecond)}
	var refusal error
	m := cluster(t, 1, settings{world: func(w *world) {
		w.failover = func(replica string, o api.FailoverRequest, by string) (api.Failover, error) {
			got = append(got, order{replica, o, by})
			return done, refusal
		}
	}})[0]
	m.applied("m")
	name := m.place("m", "1", 0, 0).String()
	done.Replica = name
	for _, r := range []api.FailoverRequest{{}, {Drill: true}, {Timeout: api.Duration(5 * time.Minute)}} {
		f, err := m.client.Failover(t.Context(), name, r)
		require.NoError(t, err)
		require.Equal(t, done, f)
	}
	const nobody = "anonymous (no ACL token)"
	preset := api.Duration(30 * time.Second)
	require.Equal(t, []order{
		{name, api.FailoverRequest{Timeout: preset}, nobody}, {name, api.FailoverRequest{Timeout: preset, Drill: true}, nobody},
		{name, api.FailoverRequest{Timeout: api.Duration(5 * time.Minute)}, nobody},
	}, got)
	got = nil
	for query, want := range map[string]string{
		"drill=perhaps": `drill is "perhaps": must be empty, true or false`,
		"timeout=0s":    `timeout is "0s": must be a duration above 0s and at most 5m0s`,
		"timeout=6m":    `timeout is "6m": must be`,
		"timeout=soon":  `timeout is "soon": must be`,
	} {
		resp, body := m.raw(http.MethodPost, "/v1/replica/"+name+"/failover?"+query, "", "")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, body)
		var e api.Error
		require.NoError(t, json.Unmarshal([]byte(body), &e))
		require.Contains(t, e.Message, want)
	}
	_, err := m.client.Failover(t.Context(), "m:a:none", api.FailoverRequest{})
	require.ErrorContains(t, err, `replica "m:a:none" does not exist`)
	require.Empty(t, got)
	for status, err := range map[int]error{
		http.StatusConflict:       &state.Error{Code: state.CodeConflict, Message: "it has no standby"},
		http.StatusGatewayTimeout: raft.ErrUnknownOutcome,
	} {
		refusal = err
		resp, body := m.raw(http.MethodPost, "/v1/replica/"+name+"/failover", "", "")
		require.Equal(t, status, resp.StatusCode, body)
		require.Contains(t, body, err.Error())
	}
}
