package gateway_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// withKey adds a known key, whose secret is "sk-" and its name.
func withKey(name string, limit queue.KeyLimit) func(*gateway.Config) {
	return func(c *gateway.Config) {
		sum := sha256.Sum256([]byte("sk-" + name))
		c.NamedKeys = append(c.NamedKeys, gateway.Key{Name: name, SHA256: hex.EncodeToString(sum[:]), KeyLimit: limit})
	}
}

// as is the header of a request with a key.
func as(name string, more ...string) []string {
	return append([]string{"Authorization", "Bearer sk-" + name}, more...)
}

// limit is one of a middle priority.
func limit(change func(*queue.KeyLimit)) queue.KeyLimit {
	l := gateway.DefaultKeyLimit()
	change(&l)
	return l
}

func TestKeysThatAreRequired(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("one", gateway.DefaultKeyLimit()), func(c *gateway.Config) { c.Keys.Required = true })
	engine := newEngine(t, "a", says("a"))
	f.engines(engine)
	for header, code := range map[string]string{
		"":                    "missing_api_key",
		"Bearer":              "missing_api_key",
		"Bearer ":             "missing_api_key",
		"Basic c2stb25lOg==":  "missing_api_key",
		"sk-one":              "missing_api_key",
		"Bearer sk-two":       "invalid_api_key",
		"Bearer sk-one x":     "invalid_api_key",
		"Bearer SK-ONE":       "invalid_api_key",
		"Bearer sk-one\tsk-1": "invalid_api_key",
	} {
		for _, path := range []string{chat, "/v1/completions", "/v1/embeddings"} {
			a := f.do(http.MethodPost, path, unaryBody, "Authorization", header)
			e := a.requireError(t, http.StatusUnauthorized, code)
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"), "RFC 9110 section 15.5.2 wants it")
			require.NotContains(t, e.Message, "sk-")
		}
	}
	// Who may not ask does not learn what is here.
	f.post(`{"model":"none"}`).requireError(t, http.StatusUnauthorized, "missing_api_key")
	for _, header := range []string{"Bearer sk-one", "bearer sk-one", "BEARER  sk-one "} {
		f.post(unaryBody, "Authorization", header).requireWhole(t, "a")
	}
	// Anthropic's libraries send the key in a header of its own.
	f.post(unaryBody, "X-Api-Key", "sk-one").requireWhole(t, "a")
	f.post(unaryBody, "X-Api-Key", "sk-one", "Authorization", "Basic c2stb25lOg==").requireWhole(t, "a")
	f.post(unaryBody, "X-Api-Key", "sk-two").requireError(t, http.StatusUnauthorized, "invalid_api_key")
	f.post(unaryBody, "X-Api-Key", "sk-one", "Authorization", "Bearer sk-two").requireError(t, http.StatusUnauthorized, "invalid_api_key")
	require.Zero(t, f.metric("remuda_gateway_requests_total", "model", "m", "code", "401"), "the model is not known yet")
	require.Equal(t, 30.0, f.metric("remuda_gateway_requests_total", "code", "401"))
}

// TestRateOfAKey is the key's own, and what is refused costs nobody anything.
func TestRateOfAKey(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("slow", limit(func(l *queue.KeyLimit) { l.Rate, l.Burst = 0.01, 2 })), func(c *gateway.Config) {
		c.Keys.Default.Rate, c.Keys.Default.Burst = 0.01, 3
	})
	f.engines(newEngine(t, "a", says("a")))
	began := time.Now()
	ask := func(pass int, header ...string) answer {
		t.Helper()
		for range pass {
			f.post(unaryBody, header...).requireWhole(t, "a")
		}
		return f.post(unaryBody, header...)
	}
	a := ask(2, as("slow")...)
	e := a.requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	require.Equal(t, "rate_limit_error", e.Type)
	require.Contains(t, e.Message, `"slow"`)
	require.Contains(t, e.Message, "rate")
	require.NotContains(t, e.Message, "sk-")
	require.LessOrEqual(t, a.retryAfter(t), 100)
	require.GreaterOrEqual(t, float64(a.retryAfter(t)), 100-time.Since(began).Seconds())
	// Unknown keys and requests without one share the default: a new key each time has no more.
	ask(1, as("stranger")...)
	unknown := ask(1, as("another")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	require.Contains(t, unknown.Message, `"anonymous"`)
	require.NotContains(t, unknown.Message, "another")
	f.post(unaryBody, "Authorization", "Basic Zm9vOmJhcg==").requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	f.post(unaryBody).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	f.post(unaryBody, as("slow")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	require.Equal(t, 5.0, f.metric("remuda_gateway_requests_total", "code", "200"))
	f.requireRest()
}

// TestConcurrencyOfAKey counts those that wait, and those only that are still there.
func TestConcurrencyOfAKey(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("two", limit(func(l *queue.KeyLimit) { l.Concurrency = 2 })))
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody, as("two")...)
	require.Equal(t, "first", s.next())
	waits := f.listen("waits", streamBody, as("two")...)
	f.waiting("m", 1)
	for range 3 {
		a := f.post(unaryBody, as("two")...)
		e := a.requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
		require.Contains(t, e.Message, "concurrency")
		require.Contains(t, e.Message, `"two"`)
		require.Equal(t, 1, a.retryAfter(t))
	}
	other := f.later("other", unaryBody, as("someone")...)
	f.waiting("m", 2)

	waits.leave()
	f.waiting("m", 1)
	again := f.later("again", unaryBody, as("two")...)
	f.waiting("m", 2)
	f.post(unaryBody, as("two")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	require.Equal(t, []string{"other", "again"}, s.order(2))
	(<-first).requireWhole(t, "first")
	third := f.later("third", unaryBody, as("two")...)
	f.waiting("m", 1)
	require.Equal(t, []string{"third"}, s.order(1))
	s.leave <- struct{}{}
	for id, c := range map[string]<-chan answer{"other": other, "again": again, "third": third} {
		(<-c).requireWhole(t, id)
	}
	// Errors of the client and of the model do not count for ever either.
	for range 5 {
		f.post(`{"model":"none"}`, as("two")...).requireError(t, http.StatusNotFound, "model_not_found")
		f.post(`{"model":`, as("two")...).requireError(t, http.StatusBadRequest, "invalid_json")
	}
	f.requireRest()
}

// TestNamesOfKeys: logs say whose a request is, and never the key.
func TestNamesOfKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	f := newGateway(t, patient, withKey("billing", gateway.DefaultKeyLimit()), func(c *gateway.Config) { c.AccessLog.Path = path })
	f.engines(newEngine(t, "a", says("a")))
	want := map[string]string{"named": "billing", "unknown": "anonymous", "none": "anonymous"}
	f.post(unaryBody, as("billing", "X-Request-Id", "named")...).requireWhole(t, "a")
	f.post(unaryBody, as("stranger", "X-Request-Id", "unknown")...).requireWhole(t, "a")
	f.post(unaryBody, "X-Request-Id", "none").requireWhole(t, "a")
	f.wait() // which writes the log
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	got := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		require.NotContains(t, lines.Text(), "sk-")
		var one struct {
			ID  string `json:"client_id"`
			Key string
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &one))
		got[one.ID] = one.Key
	}
	require.Equal(t, want, got)
}

func TestBadWishes(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("vip", limit(func(l *queue.KeyLimit) { l.MaxPriority = 9 })))
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		for _, h := range []string{"X-Remuda-Timeout", "X-Remuda-Priority"} {
			if r.Header.Get(h) != "" {
				t.Errorf("the engine got %s", h)
			}
		}
		says("a")(w, r)
	}))
	for header, values := range map[string][2][]string{
		"X-Remuda-Timeout": {
			{"0", "0s", "-1s", "-5", "soon", "10 s", "1e999", "NaN", "Inf", strings.Repeat("9", 400)},
			{"30s", "30", "1.5", "5m", "1h30m", "100000h"},
		},
		"X-Remuda-Priority": {
			{"10", "-1", "high", "1.5", "0x3", "99999999999999999999"},
			{"0", "5", "9"},
		},
	} {
		for _, v := range values[0] {
			a := f.post(unaryBody, header, v)
			e := a.requireError(t, http.StatusBadRequest, "bad_header")
			require.Equal(t, "invalid_request_error", e.Type)
			require.NotNil(t, e.Param)
			require.Equal(t, header, *e.Param)
			require.Contains(t, e.Message, header)
			require.Less(t, len(e.Message), 500)
		}
		for _, v := range values[1] {
			f.post(unaryBody, header, v).requireWhole(t, "a")
			f.post(unaryBody, as("vip", header, v)...).requireWhole(t, "a")
		}
	}
}

// atTheDoor fills the only slot with a request of nobody's key, sends others in order
// while it is there, and returns the order in which they are served then.
func (f *fixture) atTheDoor(s *turnstile, send func(wait func(id string, header ...string))) []string {
	f.t.Helper()
	first := f.later("first", unaryBody)
	s.next()
	var ids []string
	var answers []<-chan answer
	send(func(id string, header ...string) {
		ids, answers = append(ids, id), append(answers, f.later(id, unaryBody, header...))
		f.waiting("m", len(ids))
	})
	out := s.order(len(ids))
	s.leave <- struct{}{}
	(<-first).requireWhole(f.t, "first")
	for i, a := range answers {
		(<-a).requireWhole(f.t, ids[i])
	}
	f.requireRest()
	return out
}

func TestPrioritiesOfClients(t *testing.T) {
	t.Parallel()
	vip := limit(func(l *queue.KeyLimit) { l.MaxPriority = 9 })
	low := limit(func(l *queue.KeyLimit) { l.Priority = 1 })
	f := newGateway(t, patient, withKey("vip", vip), withKey("vip2", vip), withKey("low", low), func(c *gateway.Config) { c.Queue.Aging = time.Hour })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	// Of one priority the keys that were served least are first, then those that came first.
	require.Equal(t, []string{"asks-9", "by-default-5", "gets-no-7", "gets-no-9", "by-default-1", "asks-0"}, f.atTheDoor(s, func(wait func(string, ...string)) {
		wait("asks-0", "X-Remuda-Priority", "0")
		wait("by-default-1", as("low")...)
		wait("by-default-5", as("vip2")...)
		wait("gets-no-9", as("plain", "X-Remuda-Priority", "9")...)
		wait("gets-no-7", as("low", "X-Remuda-Priority", "7")...)
		wait("asks-9", as("vip", "X-Remuda-Priority", "9")...)
	}))
}

// TestLowPriorityIsServedInTheEnd: one that has waited for long goes before all that come
// then.
func TestLowPriorityIsServedInTheEnd(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("vip", limit(func(l *queue.KeyLimit) { l.MaxPriority = 9 })),
		func(c *gateway.Config) { c.Queue.Aging = 30 * time.Millisecond })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	require.Equal(t, []string{"low", "high0", "high1", "high2"}, f.atTheDoor(s, func(wait func(string, ...string)) {
		wait("low", "X-Remuda-Priority", "0")
		eventually(t, "it has waited for ten times the aging", func() bool { return f.metric("remuda_gateway_queue_oldest_seconds", "model", "m") > 0.31 })
		for i := range 3 {
			wait(fmt.Sprintf("high%d", i), as("vip", "X-Remuda-Priority", "9")...)
		}
	}))
}

// TestFairSharesOfKeys: who sends many requests at once does not keep others from theirs.
func TestFairSharesOfKeys(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, withKey("gold", limit(func(l *queue.KeyLimit) { l.Weight = 3 })),
		withKey("many", gateway.DefaultKeyLimit()), withKey("few", gateway.DefaultKeyLimit()), withKey("plain", gateway.DefaultKeyLimit()), func(c *gateway.Config) { c.Queue.Aging = time.Hour })
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	of := func(served []string, key string) (n int) {
		for _, id := range served {
			if strings.HasPrefix(id, key) {
				n++
			}
		}
		return n
	}
	got := f.atTheDoor(s, func(wait func(string, ...string)) {
		for i := range 12 {
			wait(fmt.Sprintf("many%d", i), as("many")...)
		}
		for i := range 4 {
			wait(fmt.Sprintf("few%d", i), as("few")...)
		}
	})
	require.GreaterOrEqual(t, of(got[:8], "few"), 3, got)
	require.Equal(t, 4, of(got[:10], "few"), got)

	// By weight.
	got = f.atTheDoor(s, func(wait func(string, ...string)) {
		for i := range 9 {
			wait(fmt.Sprintf("plain%d", i), as("plain")...)
		}
		for i := range 9 {
			wait(fmt.Sprintf("gold%d", i), as("gold")...)
		}
	})
	require.InDelta(t, 6, of(got[:8], "gold"), 1, got)
	require.InDelta(t, 9, of(got[:12], "gold"), 1, got)
}

// Clients with an unknown key for each request are one client together: a known key has its half, however
// full the queue is.
func TestFairShareBesideUnknownKeys(t *testing.T) {
	t.Parallel()
	for _, length := range []int64{32, 1024} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			t.Parallel()
			f := newGateway(t, patient, withKey("honest", gateway.DefaultKeyLimit()), func(c *gateway.Config) { c.Queue.Length = length })
			f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(5 * time.Millisecond)
				says("a")(w, r)
			}))
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			var honest, others atomic.Int64
			for client := range 64 {
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						if f.post(unaryBody, as(fmt.Sprintf("%d-%d", client, n))...).status == http.StatusOK {
							others.Add(1)
						}
					}
				})
			}
			eventually(t, "the others have all", func() bool { return others.Load() > 50 })
			flood(ctx, &wg, f, 8, unaryBody, "sk-honest", &honest)
			eventually(t, "the known key is served", func() bool { return honest.Load() > 0 })
			honest.Store(0)
			others.Store(0)
			eventually(t, "many are served", func() bool { return honest.Load()+others.Load() >= 600 })
			have := float64(honest.Load())
			require.InDelta(t, .5, have/(have+float64(others.Load())), .1)
		})
	}
}

// TestKeysOfTheController are followed: a new key makes keys required, one may call only its
// models, a deleted one is unknown at once, and engines get no client's credentials.
func TestKeysOfTheController(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	c.change(func() {
		c.index, c.state.Models = 2, []api.GatewayModel{{Name: "m"}, {Name: "other", PassAuthorization: true}}
	})
	f.follows(2)
	got := make(chan string, 1)
	engine := func(model string) replica.Engine {
		e := newEngine(t, model, func(w http.ResponseWriter, r *http.Request) {
			got <- r.Header.Get("Authorization") + r.Header.Get("X-Api-Key")
			says("a")(w, r)
		})
		e.Name.Model = model
		return e
	}
	f.engines(engine("m"), engine("other"))
	f.post(unaryBody, as("nobody")...).requireWhole(t, "a")
	require.Empty(t, <-got, "a client's credentials stay here")
	const other = `{"model":"other"}`
	f.post(other, as("nobody")...).requireWhole(t, "a")
	require.Equal(t, "Bearer sk-nobody", <-got, "the model file asks for them")
	f.post(unaryBody, "X-Api-Key", "sk-nobody").requireWhole(t, "a")
	require.Empty(t, <-got, "in Anthropic's header as well")
	f.post(other, "X-Api-Key", "sk-nobody").requireWhole(t, "a")
	require.Equal(t, "sk-nobody", <-got)

	secret := func(name string) []api.GatewaySecret {
		sum := sha256.Sum256([]byte("sk-" + name))
		return []api.GatewaySecret{{SHA256: hex.EncodeToString(sum[:])}}
	}
	past := secret("past")
	past[0].ExpiresAt = time.Now().Add(-time.Second)
	middle := api.KeyLimits{Weight: 1, Priority: 5, MaxPriority: 5}
	few, slow := middle, middle
	few.Models, slow.RequestsPerMinute = []string{"oth*", "m2"}, 1
	c.change(func() {
		c.index = 3
		c.state.Keys = []api.GatewayKey{
			{Name: "few", Secrets: secret("few"), KeyLimits: few}, {Name: "slow", Secrets: append(secret("slow"), past...), KeyLimits: slow},
		}
	})
	f.follows(3)
	f.post(unaryBody).requireError(t, http.StatusUnauthorized, "missing_api_key")
	f.post(unaryBody, as("nobody")...).requireError(t, http.StatusUnauthorized, "invalid_api_key")
	f.post(unaryBody, as("past")...).requireError(t, http.StatusUnauthorized, "invalid_api_key")
	f.do(http.MethodGet, "/v1/models", "").requireError(t, http.StatusUnauthorized, "missing_api_key")
	f.post(unaryBody, as("few")...).requireError(t, http.StatusForbidden, "model_not_allowed")
	f.post(other, "X-Api-Key", "sk-few").requireWhole(t, "a")
	require.Empty(t, <-got)
	f.post(other, as("few")...).requireWhole(t, "a")
	require.Empty(t, <-got, "a key of ours stays here whatever the model file says")
	list := f.do(http.MethodGet, "/v1/models", "", as("few")...).body
	require.Contains(t, list, `"other"`)
	require.NotContains(t, list, `"m"`)
	f.do(http.MethodGet, "/v1/models/m", "", as("few")...).requireError(t, http.StatusNotFound, "model_not_found")
	f.post(unaryBody, as("slow")...).requireWhole(t, "a")
	<-got
	f.post(unaryBody, as("slow")...).requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")

	c.change(func() { c.index, c.state.Keys = 4, c.state.Keys[:1] })
	f.follows(4)
	f.post(unaryBody, as("slow")...).requireError(t, http.StatusUnauthorized, "invalid_api_key")
}

// TestSuggestedModels: the error of an unknown model has the name of one like it, if the key may call that.
func TestSuggestedModels(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	c.state.Models = []api.GatewayModel{{Name: "llama"}, {Name: "secret"}}
	limits := api.KeyLimits{Weight: 1, Priority: 5, MaxPriority: 5}
	some := limits
	some.Models = []string{"ll*", "sce*"}
	for name, l := range map[string]api.KeyLimits{"all": limits, "some": some} {
		c.state.Keys = append(c.state.Keys, api.GatewayKey{Name: name, KeyLimits: l, Secrets: []api.GatewaySecret{{SHA256: sha("sk-" + name)}}})
	}
	f := newGateway(t, c.config)
	f.engines()
	for _, s := range []struct{ key, model, want string }{
		{"all", "lama", `model "lama" does not exist (did you mean "llama"?); GET /v1/models lists the models`},
		{"all", "sceret", `model "sceret" does not exist (did you mean "secret"?); GET /v1/models lists the models`},
		{"some", "llma", `model "llma" does not exist (did you mean "llama"?); GET /v1/models lists the models`},
		{"some", "sceret", `model "sceret" does not exist; GET /v1/models lists the models`},
		{"all", "gemma", `model "gemma" does not exist; GET /v1/models lists the models`},
		{"all", strings.Repeat("llama", 10_000), "… (50000 bytes) does not exist; GET /v1/models lists the models"},
	} {
		for _, a := range []answer{f.post(`{"model":"`+s.model+`"}`, as(s.key)...), f.do(http.MethodGet, "/v1/models/"+s.model, "", as(s.key)...)} {
			require.Contains(t, a.requireError(t, http.StatusNotFound, "model_not_found").Message, s.want)
		}
	}
}
