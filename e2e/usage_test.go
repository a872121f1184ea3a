//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// tokensAreCounted has clients with a key use a model while a gateway and the controller's leader are
// killed. The ledger is the engines' own count, but for what the killed gateway had not reported.
func tokensAreCounted(t *testing.T, r *requests) {
	const key = "counted"
	secret := r.key(t, key)
	defer func() { r.remuda("key", "delete", key) }()
	ctx, stop := context.WithCancel(t.Context())
	began := time.Now()
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := r.counted(ctx, r.gateways[i%2], key, secret, n%2 == 0); err != nil {
					time.Sleep(50 * time.Millisecond) // it is being started again
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	r.gateways[1].restart(syscall.SIGKILL)
	r.killLeader()
	time.Sleep(2 * time.Second)
	stop()
	clients.Wait()
	took := time.Since(began)

	engines, err := r.passing(chainModel)
	require.NoError(t, err)
	var made int64
	for _, e := range engines {
		body, err := fetch("http://" + e.HostPort() + "/sim/counters")
		require.NoError(t, err)
		var c struct {
			Tags map[string]struct {
				Prompt     int64 `json:"prompt_tokens"`
				Completion int64 `json:"completion_tokens"`
			} `json:"tags"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &c))
		made += c.Tags[key].Prompt + c.Tags[key].Completion
	}
	second := int64(float64(made) / took.Seconds())
	require.Positive(t, second)
	var last api.Usage
	eventually(t, time.Minute, "the ledger to have all", func() error {
		last = jsonOf[api.UsageReport](t, r.remuda("usage", "-key", key, "-json")).Total
		if lost := made - last.Tokens(); lost > 2*second {
			return fmt.Errorf("%d of %d tokens are missing, at %d a second: %+v", lost, made, second, last)
		}
		return nil
	})
	require.LessOrEqual(t, last.Tokens()-last.EstimatedTokens, made, "%+v", last)
	t.Logf("the engines made %d tokens in %.1f s, the ledger has %d, %d of them estimated", made, took.Seconds(), last.Tokens(), last.EstimatedTokens)
}

// key creates a key and returns its secret, which both gateways know.
func (r *requests) key(t *testing.T, name string) string {
	t.Helper()
	secret := jsonOf[api.KeyResponse](t, r.remuda("key", "create", name, "-json")).Secret
	for _, g := range r.gateways {
		eventually(t, time.Minute, "the key to be known", func() error {
			status, err := r.counted(t.Context(), g, name, secret, true)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d", status)
			}
			return err
		})
	}
	return secret
}

// counted sends one request of a key, which the engine's counters know by the key's name.
func (r *requests) counted(ctx context.Context, g *gatewayProcess, key, secret string, stream bool) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", bytes.NewReader(chatBody(chainModel, "count me", 20, stream)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("X-Sim-Tag", key)
	resp, err := g.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
