package gateway_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

const (
	tokenPiece  = `data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	tokenTotals = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	tokenEnd    = "data: [DONE]\n\n"
)

// The engine of a stream is asked for its usage, which the client gets if it asked for it itself.
func TestUsageOfStreams(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{false, true} {
		f := newGateway(t)
		f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			var body struct {
				Options struct {
					Usage bool `json:"include_usage"`
				} `json:"stream_options"`
			}
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || !body.Options.Usage {
				t.Errorf("the engine was not asked for its usage: %v", err)
			}
			sse(w, tokenPiece, tokenPiece, tokenTotals, tokenEnd)
		}))
		body, want := streamBody, tokenPiece+tokenPiece+tokenEnd
		if asks {
			body = strings.TrimSuffix(strings.TrimSpace(streamBody), "}") + `,"stream_options":{"include_usage":true}}`
			want = tokenPiece + tokenPiece + tokenTotals + tokenEnd
		}
		a := f.post(body)
		require.NoError(t, a.err)
		require.Equal(t, want, a.body)
		require.Equal(t, 11.0, f.metric("remuda_gateway_tokens_total", "type", "prompt"))
		require.Equal(t, 8.0, f.metric("remuda_gateway_tokens_total", "type", "cached"))
		require.Equal(t, 3.0, f.metric("remuda_gateway_tokens_total", "type", "completion"))
		require.Zero(t, f.metric("remuda_gateway_tokens_total", "type", "estimated"))
	}
}

func TestUsageOfWholeAnswers(t *testing.T) {
	t.Parallel()
	for name, pad := range map[string]int{"short": 0, "long": 200 << 10} {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t)
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"choices":[{"text":"`+strings.Repeat("x", pad)+`"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`)
			}))
			require.Equal(t, http.StatusOK, f.post(unaryBody).status)
			require.Equal(t, 5.0, f.metric("remuda_gateway_tokens_total", "type", "prompt"))
			require.Equal(t, 2.0, f.metric("remuda_gateway_tokens_total", "type", "completion"))
		})
	}
}

// Where the engine does not say what an answer took, or its stream breaks, it is estimated.
func TestUsageIsEstimated(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(http.ResponseWriter){
		"no usage": func(w http.ResponseWriter) { sse(w, tokenPiece, tokenPiece, tokenEnd) },
		"broken":   func(w http.ResponseWriter) { sse(w, tokenPiece, tokenPiece); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newGateway(t)
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) { send(w) }))
			f.post(streamBody)
			require.Equal(t, 2.0, f.metric("remuda_gateway_tokens_total", "type", "completion"))
			prompt := f.metric("remuda_gateway_tokens_total", "type", "prompt")
			require.Positive(t, prompt)
			require.Equal(t, 2+prompt, f.metric("remuda_gateway_tokens_total", "type", "estimated"))
		})
	}
}

// What engines refuse takes nothing.
func TestUsageOfRefusals(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	}))
	require.Equal(t, http.StatusBadRequest, f.post(unaryBody).status)
	require.Zero(t, f.metric("remuda_gateway_tokens_total", "type", "prompt"))
}

// limitedKey is a gateway with a key of the controller that has limits, and an engine whose answers take
// 14 tokens.
func limitedKey(t *testing.T, limits api.KeyLimits) (*fixture, *controller) {
	c := newController(t, 1)
	limits.Weight = 1
	key, _ := controllerKey("one", limits)
	c.state.Models, c.state.Keys = []api.GatewayModel{{Name: "m"}}, []api.GatewayKey{key}
	f := newGateway(t, c.config, patient)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) { sse(w, tokenPiece, tokenTotals, tokenEnd) }))
	require.Eventually(t, func() bool { return f.post(streamBody).status == http.StatusUnauthorized }, time.Minute, time.Millisecond)
	return f, c
}

// controllerKey is a key of the controller, and its secret.
func controllerKey(name string, limits api.KeyLimits) (api.GatewayKey, string) {
	sum := sha256.Sum256([]byte("sk-" + name))
	return api.GatewayKey{Name: name, Secrets: []api.GatewaySecret{{SHA256: hex.EncodeToString(sum[:])}}, KeyLimits: limits}, "sk-" + name
}

func TestTokensPerMinute(t *testing.T) {
	t.Parallel()
	f, _ := limitedKey(t, api.KeyLimits{TokensPerMinute: 120}) // 20 at once
	for _, left := range []string{"14", "0"} {
		a := f.post(streamBody, "Authorization", "Bearer sk-one")
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, "120", a.header.Get("X-Ratelimit-Limit-Tokens"))
		require.Equal(t, left, a.header.Get("X-Ratelimit-Remaining-Tokens"))
	}
	a := f.post(streamBody, "Authorization", "Bearer sk-one")
	require.Equal(t, http.StatusTooManyRequests, a.status, a.body)
	requireErrorBody(t, a.body, "rate_limit_exceeded")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, "0", a.header.Get("X-Ratelimit-Remaining-Tokens"))
}

func TestBudget(t *testing.T) {
	t.Parallel()
	f, c := limitedKey(t, api.KeyLimits{TokensPerDay: 100})
	day := time.Now().UTC().Format(time.DateOnly)
	c.change(func() {
		c.orders = func(r api.GatewayReport) api.GatewayOrders {
			used := int64(70) // at other gateways
			for _, u := range r.Usage {
				if u.Key == "one" {
					used += u.Tokens()
				}
			}
			return api.GatewayOrders{UsageTerm: 1, Budgets: map[string]api.TokensUsed{"one": {Day: day, Today: used, ThisMonth: used}}}
		}
	})
	refused := func() bool {
		a := f.post(streamBody, "Authorization", "Bearer sk-one")
		if a.status == http.StatusOK {
			return false
		}
		require.Equal(t, http.StatusTooManyRequests, a.status)
		requireErrorBody(t, a.body, "insufficient_quota")
		require.Equal(t, "false", a.header.Get("X-Should-Retry"))
		return true
	}
	answered := 0
	for ; !refused(); answered++ {
		require.Less(t, answered, 8, "100 tokens are for seven requests")
	}
	require.Equal(t, float64(14*answered), f.metric("remuda_gateway_key_tokens_total", "key", "one", "type", "prompt")+f.metric("remuda_gateway_key_tokens_total", "key", "one", "type", "completion"))
	require.GreaterOrEqual(t, answered, 3)
}
