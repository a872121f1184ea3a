package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/controller/usage"
)

// oneServer is a controller's state without a cluster.
type oneServer struct {
	store *state.Store
	index uint64
}

func (s *oneServer) Store() *state.Store { return s.store }

func (s *oneServer) Apply(_ context.Context, c state.Command) (state.Result, error) {
	data, err := state.Encode(c)
	if err != nil {
		return state.Result{}, err
	}
	s.index++
	r := s.store.Apply(s.index, data)
	if r.Err != nil {
		return r, r.Err
	}
	return r, nil
}

func (s *oneServer) WhileLeader(ctx context.Context, lead func(context.Context, uint64)) {
	lead(ctx, 1)
}

// counting has a controller count usage as the real one does.
func (c *crowd) counting(t *testing.T, keys ...api.GatewayKey) *usage.Recorder {
	t.Helper()
	server := &oneServer{}
	var err error
	server.store, err = state.New()
	require.NoError(t, err)
	for _, k := range keys {
		cmd, refused := (&state.UpsertKey{Name: k.Name, Limits: state.KeyLimits(k.KeyLimits), Time: time.Now(), Secret: state.KeySecret{Hash: k.Secrets[0].SHA256, CreatedAt: time.Now()}}).Resolve(server.store.View())
		require.Nil(t, refused)
		_, err := server.Apply(t.Context(), cmd)
		require.NoError(t, err)
	}
	cfg := usage.DefaultConfig()
	cfg.Raft = server
	recorder, err := usage.New(cfg)
	require.NoError(t, err)
	recorder.Begin(1)
	c.change(func() {
		c.orders = func(r api.GatewayReport) (o api.GatewayOrders) {
			o.UsageTerm, o.Budgets = recorder.Report(r)
			return o
		}
	})
	return recorder
}

// kindsOfRequests are requests of all kinds that take tokens, at most 60 each.
var kindsOfRequests = []struct{ path, body string }{
	{chat, `{"model":"m","max_tokens":30,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`},
	{chat, `{"model":"m","max_tokens":30,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"hi"}]}`},
	{"/v1/completions", `{"model":"m","max_tokens":20,"ignore_eos":true,"prompt":"and then"}`},
	{"/v1/embeddings", `{"model":"m","input":"a few words, and some more of them"}`},
	{"/v1/messages", `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}`},
	{"/v1/responses", `{"model":"m","max_output_tokens":20,"input":"hi"}`},
}

// A budget of tokens is exceeded by no more than what was in flight, however many gateways have clients of the
// key, and it is used up.
func TestBudgetHoldsAcrossGateways(t *testing.T) {
	t.Parallel()
	const most = 60 // tokens of a request
	for _, tc := range []struct {
		name    string
		clients []int // of each kind, by gateway
	}{
		{"2 gateways", []int{1, 1}},
		{"4 gateways", []int{1, 1, 1, 1}},
		{"4 gateways, one of them busy", []int{2, 0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			const budget = 30_000
			key, token := controllerKey("one", api.KeyLimits{Weight: 1, TokensPerMonth: budget})
			c := newCrowd(t, len(tc.clients), []api.GatewayKey{key}, slowly(), patient)
			recorder := c.counting(t, key)
			s := newSimulated(t)
			e := engineAt("a", strings.TrimPrefix(s.url, "http://"))
			e.Slots = 64
			c.engines(e)
			var wg sync.WaitGroup
			var early atomic.Int64 // refused although tokens were left
			clients := 0
			for g, f := range c.gateways {
				for _, kind := range kindsOfRequests {
					for range tc.clients[g] {
						clients++
						wg.Go(func() {
							for {
								a := f.do(http.MethodPost, kind.path, kind.body, "Content-Type", "application/json", "Authorization", "Bearer "+token)
								switch {
								case a.status == http.StatusOK:
								case a.status == http.StatusTooManyRequests && strings.Contains(a.body, "insufficient_quota"):
									return
								case a.status == http.StatusTooManyRequests:
									early.Add(1)
								default:
									t.Errorf("%s: status %d: %s", kind.path, a.status, a.body)
									return
								}
							}
						})
					}
				}
			}
			wg.Wait()
			used := func() int64 {
				c.mu.Lock()
				defer c.mu.Unlock()
				return recorder.Budgets()["one"].ThisMonth
			}
			all := int64(s.counters(t, http.MethodGet).Total.tokens())
			eventually(t, "all was reported", func() bool { return used() >= all })
			t.Logf("%d tokens of %d, %d refused early", used(), budget, early.Load())
			require.Equal(t, all, used())
			require.Zero(t, early.Load(), "requests were refused although tokens were left")
			require.GreaterOrEqual(t, all, int64(budget))
			require.LessOrEqual(t, all, int64(budget+clients*most))
		})
	}
}
