package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gatewayreport"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/testkit/long"
)

// crowd are several gateways with one controller, and engines that count.
type crowd struct {
	*controller
	gateways []*fixture
}

func newCrowd(t *testing.T, gateways int, keys []api.GatewayKey, now func() time.Time, change func(*gateway.Config)) *crowd {
	c := &crowd{controller: newController(t, 1)}
	store := gatewayreport.New(10*time.Second, now)
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

// slowly is the clock of a controller whose gateways all stay. It is slow, so that none counts as gone because the
// machine is. After the first look an hour passes at once: the controller knows all who are there.
func slowly() func() time.Time {
	began, looked := time.Now(), atomic.Bool{}
	return func() time.Time {
		if looked.CompareAndSwap(false, true) {
			return began.Add(-time.Hour)
		}
		return began.Add(time.Since(began) / 10)
	}
}

func (c *crowd) engines(e ...replica.Engine) {
	for _, f := range c.gateways {
		f.engines(e...)
	}
}

// awaitReports waits until the gateways have sent n reports each, about.
func (c *crowd) awaitReports(t *testing.T, n int) {
	t.Helper()
	count := func() int { return c.count(func() int { return len(c.reports) }) }
	want := count() + n*len(c.gateways)
	eventually(t, "the gateways have reported", func() bool { return count() >= want })
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
		// No gateway counts as gone because the machine is slow. From the deaf phase on, the clock runs at its full
		// speed.
		slow, deafAt := slowly(), atomic.Pointer[time.Time]{}
		clock := func() time.Time {
			if at := deafAt.Load(); at != nil {
				return slow().Add(time.Since(*at) * 9 / 10)
			}
			return slow()
		}
		c := newCrowd(t, n, nil, clock, patient)
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
		// A loaded machine may favor a gateway's clients for a while: such a run measures again.
		parts := make([]float64, n)
		for try, fair := 0, false; !fair && try < 4; try++ {
			for i := range served {
				served[i].Store(0)
			}
			eventually(t, "many are served", func() bool {
				all := 0.0
				for i := range served {
					parts[i] = float64(served[i].Load())
					all += parts[i]
				}
				for i := range parts {
					parts[i] /= max(all, 1)
				}
				return all >= 300
			})
			fair = !slices.ContainsFunc(parts, func(part float64) bool { return math.Abs(part-1/float64(n)) > .1 })
		}
		for i, part := range parts {
			require.InDelta(t, 1/float64(n), part, .1, "of %d gateways, %d", n, i)
		}
		stop()
		wg.Wait()
		require.LessOrEqual(t, most.Load(), int64(slots))

		// All but one are gone, without a word, while they have shares. On a machine with other work a
		// report may be late: then it is measured again.
		limit, took := time.Duration(long.Pick(5, 2))*time.Second, time.Hour
		for try := 0; try < 3 && took > limit; try++ {
			ctx, stop = context.WithCancel(t.Context())
			c.change(func() { c.deaf = map[string]bool{} })
			for i, f := range c.gateways[1:] {
				flood(ctx, &wg, f, 18, unaryBody, "", &served[i+1])
			}
			eventually(t, "the busy ones have the slots", func() bool { return share(last) >= float64(slots/n) && now.Load() >= slots-2 })
			began := time.Now()
			deafAt.CompareAndSwap(nil, &began)
			c.change(func() {
				for _, f := range c.gateways[1:] {
					_, port, err := net.SplitHostPort(f.addr)
					require.NoError(t, err)
					c.deaf[port] = true
				}
			})
			stop()
			ctx, stop = context.WithCancel(t.Context())
			flood(ctx, &wg, first, 18, unaryBody, "", &served[0])
			eventually(t, "the one that is left has all", func() bool { return share(first) == slots })
			took = time.Since(began)
			stop()
			wg.Wait()
		}
		require.LessOrEqual(t, took, limit)
	}
}

// While the controller is away, the gateway that has the only slot of an engine goes on, and the other one does
// not use the engine in the first five seconds: its requests wait, for as long as they may. Afterwards each of the two
// sends one request at a time, until the controller is back.
func TestTheOnlySlotWhileTheControllerIsAway(t *testing.T) {
	t.Parallel()
	var now, most, answered atomic.Int64
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		in := now.Add(1)
		defer now.Add(-1)
		for was := most.Load(); in > was && !most.CompareAndSwap(was, in); was = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		says("a")(w, r)
	})
	e.Slots = 1
	c := newCrowd(t, 2, nil, slowly(), patient)
	c.engines(e)
	eventually(t, "one keeps the slot", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		rows := map[string]int{} // how often each has had what it has now
		held := map[string]int{}
		sum, steady := 0, true
		for _, r := range c.reports {
			for _, claim := range r.Shares {
				if claim.Kind != api.ShareSlots {
					continue
				}
				if claim.Held != held[r.Gateway] {
					rows[r.Gateway] = 0
				}
				held[r.Gateway] = claim.Held
				rows[r.Gateway]++
			}
		}
		for gateway, n := range held {
			sum, steady = sum+n, steady && rows[gateway] >= 3
		}
		return len(held) == 2 && sum == 1 && steady
	})
	began := time.Now()
	c.change(func() { c.down[0] = true })
	c.servers[0].CloseClientConnections()
	var wg sync.WaitGroup
	for _, f := range c.gateways {
		f.up(0)
		for range 4 {
			wg.Go(func() {
				if a := f.post(unaryBody); a.status == http.StatusOK {
					answered.Add(1)
				}
			})
		}
	}
	eventually(t, "the one with the slot has answered", func() bool { return answered.Load() >= 4 })
	statuses := map[int]int{}
	for _, f := range c.gateways {
		statuses[f.post(unaryBody, "X-Remuda-Timeout", "300ms").status]++
	}
	have, atOnce := answered.Load(), most.Load()
	if time.Since(began) < 5*time.Second {
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusServiceUnavailable: 1}, statuses)
		require.EqualValues(t, 4, have)
		require.EqualValues(t, 1, atOnce)
	} else {
		t.Log("the machine is too slow for the first five seconds")
	}
	wg.Wait() // the controller is still away
	require.EqualValues(t, 8, answered.Load())
	require.LessOrEqual(t, most.Load(), int64(2))
	c.change(func() { c.down[0] = false })
	for _, f := range c.gateways {
		eventually(t, "the controller is back", func() bool { return f.post(unaryBody).status == http.StatusOK })
	}
	require.LessOrEqual(t, most.Load(), int64(2))
}

// The requests and the tokens per minute of a key hold for all gateways together, and are used up.
func TestRateIsShared(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]api.KeyLimits{ // 20 requests a second, 200 at once
		"requests": {Weight: 1, RequestsPerMinute: 1200},
		"tokens":   {Weight: 1, TokensPerMinute: 1200 * tokensOfAnAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rateIsShared(t, limits)
		})
	}
}

const tokensOfAnAnswer = 100

func rateIsShared(t *testing.T, limits api.KeyLimits) {
	key, token := controllerKey("one", limits)
	c := newCrowd(t, 2, []api.GatewayKey{key}, slowly(), patient)
	answers := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, tokensOfAnAnswer/2, tokensOfAnAnswer/2)
	}
	c.engines(newEngine(t, "a", answers), newEngine(t, "b", answers))
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

// The requests at a time of a key hold for all gateways together, and are used up.
func TestConcurrencyIsShared(t *testing.T) {
	t.Parallel()
	const most = 8
	key, token := controllerKey("one", api.KeyLimits{Weight: 1, Concurrency: most})
	c := newCrowd(t, 2, []api.GatewayKey{key}, slowly(), patient)
	var now, peak, busy atomic.Int64 // busy is the sum of the times of requests
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		began, in := time.Now(), now.Add(1)
		for was := peak.Load(); in > was && !peak.CompareAndSwap(was, in); was = peak.Load() {
		}
		time.Sleep(50 * time.Millisecond)
		busy.Add(int64(time.Since(began)))
		now.Add(-1)
		says("a")(w, r)
	})
	e.Slots = 8 * most
	c.engines(e)
	for _, f := range c.gateways {
		eventually(t, "the key is known", func() bool { return f.post(unaryBody, "Authorization", "Bearer "+token).status == http.StatusOK })
	}
	c.awaitReports(t, 4) // each knows its share
	peak.Store(0)
	ctx, stop := context.WithCancel(t.Context())
	var ok atomic.Int64
	var wg sync.WaitGroup
	for _, f := range c.gateways {
		flood(ctx, &wg, f, most, unaryBody, token, &ok)
	}
	began := time.Now()
	busy.Store(0)
	eventually(t, "half of what the key may have", func() bool {
		return time.Since(began) > 3*time.Second && float64(busy.Load())/float64(time.Since(began)) >= most/2
	})
	stop()
	wg.Wait()
	require.LessOrEqual(t, peak.Load(), int64(most))
}

// user is a key with clients at gateways.
type user struct {
	name    string
	weight  float64
	tokens  int   // of each answer
	clients []int // by gateway
}

// fairParts returns the part of slots that each user has by weighted max-min fairness, where each has more
// clients than that.
func fairParts(users []user) map[string]float64 {
	all, out := 0.0, map[string]float64{}
	for _, u := range users {
		all += u.weight
	}
	for _, u := range users {
		out[u.name] = u.weight / all
	}
	return out
}

// Each key gets its fair share of the tokens of an engine with 16 slots, whichever gateways it uses, also
// where gateways have to take turns with single slots for that. The engine never has more than 16 requests.
func TestFairSharesAcrossGateways(t *testing.T) {
	t.Parallel()
	for i, tc := range []struct {
		name  string
		users []user
	}{
		{"2 gateways, one at each, one at both", []user{{"first", 1, 100, []int{20, 0}}, {"both", 1, 100, []int{20, 20}}, {"second", 1, 100, []int{0, 20}}}},
		{"4 gateways, one beside three at each", []user{{"alone", 1, 100, []int{10, 0, 0, 0}}, {"b", 3, 100, []int{0, 20, 0, 0}}, {"c", 3, 100, []int{0, 0, 20, 0}}, {"d", 3, 100, []int{0, 0, 0, 20}}}},
		{"2 gateways, weights, all at both", []user{{"gold", 3, 100, []int{20, 20}}, {"base", 1, 100, []int{20, 20}}}},
		{"2 gateways, three beside one", []user{{"alone", 1, 100, []int{30, 0}}, {"b", 1, 100, []int{0, 30}}, {"c", 1, 100, []int{0, 30}}, {"d", 2, 100, []int{0, 30}}}},
		{"4 gateways, a greedy one at all", []user{{"greedy", 1, 100, []int{40, 40, 40, 40}}, {"a", 1, 100, []int{10, 0, 0, 0}}, {"b", 1, 100, []int{0, 10, 0, 0}}, {"c", 1, 100, []int{0, 0, 10, 0}}, {"d", 1, 100, []int{0, 0, 0, 10}}}},
		{"4 gateways, weights, unevenly", []user{{"greedy", 1, 200, []int{40, 30, 20, 10}}, {"gold", 4, 100, []int{20, 0, 0, 20}}, {"silver", 2, 100, []int{0, 20, 0, 0}}, {"base", 1, 100, []int{0, 10, 15, 0}}}},
	} {
		if i >= long.Pick(2, 6) {
			break
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			fairShares(t, tc.users)
		})
	}
}

func fairShares(t *testing.T, users []user) {
	const slots = 16
	keys, tokens := make([]api.GatewayKey, len(users)), make([]string, len(users))
	for i, u := range users {
		keys[i], tokens[i] = controllerKey(u.name, api.KeyLimits{Weight: u.weight})
	}
	c := newCrowd(t, len(users[0].clients), keys, slowly(), func(cfg *gateway.Config) {
		patient(cfg)
		cfg.Queue.Aging = time.Hour // it is not the subject
	})
	s := newSimulated(t, func(cfg *sim.Config) { cfg.MaxNumSeqs, cfg.Rates = slots, engine.Rates{Decode: 250} })
	e := engineAt("a", strings.TrimPrefix(s.url, "http://"))
	e.Slots = slots
	c.engines(e)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	ask := func(tokens int) string {
		return fmt.Sprintf(`{"model":"m","max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`, tokens)
	}
	for _, f := range c.gateways {
		for _, token := range tokens {
			eventually(t, "the key is known", func() bool { return f.post(ask(1), "Authorization", "Bearer "+token).status == http.StatusOK })
		}
	}
	for g, f := range c.gateways {
		for i, u := range users {
			body := ask(u.tokens)
			for range u.clients[g] {
				wg.Go(func() {
					for ctx.Err() == nil {
						if a := f.post(body, "Authorization", "Bearer "+tokens[i], "X-Sim-Tag", u.name); a.status != http.StatusOK {
							t.Errorf("status %d: %s", a.status, a.body)
							return
						}
					}
				})
			}
		}
	}
	c.awaitReports(t, 2*16)
	s.counters(t, http.MethodDelete)
	parts := fairParts(users)
	// Over few turns on a loaded machine, chance is a part of what a key with two slots gets: such a run
	// measures longer.
	var got simCounters
	for range 4 {
		c.awaitReports(t, long.Pick(5, 10)*16) // so many turns
		got = s.counters(t, http.MethodGet)
		if fairlyShared(got, parts) {
			break
		}
	}
	require.LessOrEqual(t, got.MostInFlight, slots)
	for name, part := range parts {
		have := got.Tags[name].tokens() / got.Total.tokens()
		t.Logf("%s: %.3f of %.0f tokens, %.3f is fair", name, have, got.Total.tokens(), part)
		assert.InEpsilon(t, part, have, fairWithin, name)
	}
}

// fairWithin is how far from its fair share a key may be, as a part of that share.
const fairWithin = .1

func fairlyShared(got simCounters, parts map[string]float64) bool {
	for name, part := range parts {
		if math.Abs(got.Tags[name].tokens()/got.Total.tokens()-part) > fairWithin*part {
			return false
		}
	}
	return true
}
