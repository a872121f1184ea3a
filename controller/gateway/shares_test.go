package gateway_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gatewayreport"
	"remuda/internal/replica"
)

// crowd are several gateways with one controller, and engines that count.
type crowd struct {
	*controller
	gateways []*fixture
}

func newCrowd(t *testing.T, gateways int, keys []api.GatewayKey, change func(*gateway.Config)) *crowd {
	c := &crowd{controller: newController(t, 1)}
	store := gatewayreport.New(10*time.Second, time.Now)
	c.state.Models, c.state.Keys = []api.GatewayModel{{Name: "m"}}, keys
	c.shares = func(r api.GatewayReport) api.GatewayOrders {
		if err := store.Put(r); err != nil {
			t.Errorf("report: %v", err)
		}
		return store.Orders(r.Gateway)
	}
	for range gateways {
		c.gateways = append(c.gateways, newGateway(t, c.config, change))
	}
	return c
}

func (c *crowd) engines(e ...replica.Engine) {
	for _, f := range c.gateways {
		f.engines(e...)
	}
}

// flood keeps so many requests at a gateway until ctx ends, and counts their answers by status.
func flood(ctx context.Context, wg *sync.WaitGroup, f *fixture, clients int, body, token string, ok *atomic.Int64) {
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				a := f.post(body, "Authorization", "Bearer "+token)
				if a.status == http.StatusOK {
					ok.Add(1)
				} else {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
}

// Gateways never have more requests at an engine together than it has slots, their shares follow what
// each needs, and one that is alone has all within two seconds.
func TestSlotsAreShared(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 4} {
		const slots = 16
		var now, most atomic.Int64
		e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			in := now.Add(1)
			defer now.Add(-1)
			for was := most.Load(); in > was && !most.CompareAndSwap(was, in); was = most.Load() {
			}
			time.Sleep(50 * time.Millisecond)
			says("a")(w, r)
		})
		e.Slots = slots
		c := newCrowd(t, n, nil, patient)
		c.engines(e)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		served := make([]atomic.Int64, n)
		first, last := c.gateways[0], c.gateways[n-1]
		for i, f := range c.gateways[1:] {
			flood(ctx, &wg, f, 18, unaryBody, "", &served[i+1])
		}
		share := func(f *fixture) float64 { return f.metric("remuda_gateway_in_flight", "model", "m") }
		eventually(t, "the busy ones have the slots", func() bool { return share(last) >= float64(slots/n) && now.Load() >= slots-2 })
		flood(ctx, &wg, first, 18, unaryBody, "", &served[0])
		eventually(t, "the one that has become busy has its part", func() bool { return share(first) >= float64(slots/n)-1 })
		for i := range served {
			served[i].Store(0)
		}
		var all int64
		eventually(t, "many are served", func() bool {
			all = 0
			for i := range served {
				all += served[i].Load()
			}
			return all >= 300
		})
		for i := range served {
			require.InDelta(t, 1/float64(n), float64(served[i].Load())/float64(all), .1, "of %d gateways, %d", n, i)
		}
		stop()
		wg.Wait()
		require.LessOrEqual(t, most.Load(), int64(slots))

		// All but one are gone, without a word.
		c.change(func() {
			c.deaf = map[string]bool{}
			for _, f := range c.gateways[1:] {
				_, port, err := net.SplitHostPort(f.addr)
				require.NoError(t, err)
				c.deaf[port] = true
			}
		})
		ctx, stop = context.WithCancel(t.Context())
		began := time.Now()
		flood(ctx, &wg, first, 18, unaryBody, "", &served[0])
		eventually(t, "the one that is left has all", func() bool { return now.Load() == slots })
		t.Logf("after %s", time.Since(began))
		stop()
		wg.Wait()
	}
}

// The requests per minute of a key hold for all gateways together.
func TestRateIsShared(t *testing.T) {
	t.Parallel()
	key, token := controllerKey("one", api.KeyLimits{Weight: 1, RequestsPerMinute: 1200}) // 20 a second, 200 at once
	c := newCrowd(t, 2, []api.GatewayKey{key}, patient)
	c.engines(newEngine(t, "a", says("a")), newEngine(t, "b", says("b")))
	for _, f := range c.gateways {
		eventually(t, "the key is known", func() bool { return f.post(unaryBody, "Authorization", "Bearer "+token).status == http.StatusOK })
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ok atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for _, f := range c.gateways {
		flood(ctx, &wg, f, 4, unaryBody, token, &ok)
	}
	all := func() float64 { return 200 + 20*time.Since(began).Seconds() }
	eventually(t, "half of what the key may have", func() bool {
		return time.Since(began) > 6*time.Second && float64(ok.Load()) >= all()*.5
	})
	stop()
	wg.Wait()
	require.LessOrEqual(t, float64(ok.Load()), all()*1.1)
}

// Keys have their fair shares of a model whose clients use several gateways.
func TestFairSharesAcrossGateways(t *testing.T) {
	t.Parallel()
	gold, goldToken := controllerKey("gold", api.KeyLimits{Weight: 3})
	base, baseToken := controllerKey("base", api.KeyLimits{Weight: 1})
	c := newCrowd(t, 2, []api.GatewayKey{gold, base}, patient)
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(10 * time.Millisecond)
		says("a")(w, r)
	})
	e.Slots = 8
	c.engines(e)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var golden, basic atomic.Int64
	for _, f := range c.gateways {
		eventually(t, "the keys are known", func() bool { return f.post(unaryBody, "Authorization", "Bearer "+goldToken).status == http.StatusOK })
		flood(ctx, &wg, f, 20, unaryBody, goldToken, &golden)
		flood(ctx, &wg, f, 20, unaryBody, baseToken, &basic)
	}
	eventually(t, "all wait", func() bool { return golden.Load() > 100 && basic.Load() > 30 })
	golden.Store(0)
	basic.Store(0)
	eventually(t, "many are served", func() bool { return golden.Load()+basic.Load() > 1000 })
	require.InEpsilon(t, 3, float64(golden.Load())/float64(basic.Load()), .1)
	stop()
	wg.Wait()
}

// A key that uses one of two gateways has its fair share of all slots, beside one that uses both and one
// that uses the other.
func TestFairShareOfAKeyAtOneGateway(t *testing.T) {
	t.Parallel()
	names := []string{"first", "both", "second"}
	keys, tokens := make([]api.GatewayKey, len(names)), make([]string, len(names))
	for i, name := range names {
		keys[i], tokens[i] = controllerKey(name, api.KeyLimits{Weight: 1})
	}
	c := newCrowd(t, 2, keys, patient)
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(20 * time.Millisecond)
		says("a")(w, r)
	})
	e.Slots = 12
	c.engines(e)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	served := make([]atomic.Int64, len(names))
	for i, f := range c.gateways {
		eventually(t, "the keys are known", func() bool { return f.post(unaryBody, "Authorization", "Bearer "+tokens[0]).status == http.StatusOK })
		flood(ctx, &wg, f, 20, unaryBody, tokens[2*i], &served[2*i])
		flood(ctx, &wg, f, 20, unaryBody, tokens[1], &served[1])
	}
	sum := func() (all int64) {
		for i := range served {
			all += served[i].Load()
		}
		return all
	}
	eventually(t, "shares have settled", func() bool { return sum() > 1000 })
	for i := range served {
		served[i].Store(0)
	}
	eventually(t, "many are served", func() bool { return sum() > 2000 })
	all := float64(sum())
	for i := range served {
		require.InEpsilon(t, all/3, float64(served[i].Load()), .1, "%s of %v", names[i], []int64{served[0].Load(), served[1].Load(), served[2].Load()})
	}
	stop()
	wg.Wait()
}
