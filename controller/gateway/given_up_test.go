package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

// TestEngineThatAnswersNobodyIsLeft although no client waits for as long as an engine may
// take: the clients' own time is over first, or they hang up.
func TestEngineThatAnswersNobodyIsLeft(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(f *fixture){
		"their time is over": func(f *fixture) {
			a := f.post(unaryBody, "X-Remuda-Timeout", "50ms")
			require.Contains(f.t, []int{http.StatusGatewayTimeout, http.StatusServiceUnavailable}, a.status, a.body)
		},
		"they hang up": func(f *fixture) {
			impatient := &http.Client{Transport: f.client.Transport, Timeout: 50 * time.Millisecond}
			_, err := impatient.Post(f.url+chat, "application/json", strings.NewReader(unaryBody))
			require.Error(f.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const firstByte = 2 * time.Second // far more than it takes to see that a client is gone
			f := newGateway(t, func(c *gateway.Config) { c.Timeouts.FirstByte = firstByte })
			f.engines(newRawEngine(t, "a", saysNothing))
			blamed := func() float64 {
				return f.metric("remuda_gateway_upstream_errors_total", "replica", "m:v:a", "kind", "timeout")
			}
			began := time.Now()
			for i := 0; blamed() == 0; i++ {
				require.Less(t, time.Since(began), patience)
				ask(f)
				if n := blamed(); time.Since(began) < firstByte {
					require.Zero(t, n, "%d that gave up in so short a time say nothing", i+1)
				}
			}
			require.GreaterOrEqual(t, time.Since(began), firstByte)
			e := f.post(unaryBody).requireError(t, http.StatusServiceUnavailable, "queue_timeout")
			require.Contains(t, e.Message, "are being avoided")
		})
	}
}

// TestKeysOfTheGatewayStayHere: an engine gets the key that a client has with it, and none
// of those that the gateway knows.
func TestKeysOfTheGatewayStayHere(t *testing.T) {
	t.Parallel()
	f := newGateway(t, withKey("one", gateway.DefaultKeyLimit()))
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"said":%q}`, r.Header.Get("Authorization"))
	}))
	require.JSONEq(t, `{"said":""}`, f.post(unaryBody, as("one")...).body)
	require.JSONEq(t, `{"said":"Bearer sk-stranger"}`, f.post(unaryBody, as("stranger")...).body)
}
