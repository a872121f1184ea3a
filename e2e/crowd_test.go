//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd is clients that send requests of all kinds through two gateways, one after the
// other, and check every answer.
type crowd struct {
	t        testing.TB
	gateways [2]*gatewayProcess
	// http are clients of HTTP/1.1 and of HTTP/2. keys are what requests are sent with in turn.
	http   [2]*http.Client
	keys   []string
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begun  time.Time

	// answered counts requests that have ended, however they did.
	answered atomic.Int64
	mu       sync.Mutex
	tallies  map[string]*tally   // by model
	samples  map[ending][]string // of what went wrong
}

// tally counts the requests to one model.
type tally struct {
	ended [left + 1]int
	// lost are answers that a killed gateway broke off after their first byte, reconnected
	// requests that were sent again to the other gateway because one was gone.
	lost, reconnected int
	waited            int // streams that were told where they stand
	kinds             map[string]int
}

const (
	// clientDeadline is when a client gives an answer up. Nothing comes near it.
	clientDeadline = 90 * time.Second
	// clientPause is how long a client takes from one request to the next at least, so that
	// the clients of a fast platform leave it some time for other things than to serve them.
	clientPause = 120 * time.Millisecond
	// maxSamples bounds what a test that fails prints of each ending.
	maxSamples = 12
)

// preamble is what a fleet of agents would send before each of its questions.
var preamble = strings.Repeat("You are a helpful assistant that answers in a friendly tone. ", 16)

// newCrowd starts so many clients for each of the models. Half of them speak HTTP/2.
func newCrowd(t testing.TB, gateways [2]*gatewayProcess, trusting *tls.Config, keys []string, clients int, models ...string) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{
		t: t, gateways: gateways, cancel: cancel, begun: time.Now(), tallies: map[string]*tally{}, samples: map[ending][]string{},
		keys: keys,
	}
	for i := range c.http {
		c.http[i] = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true, TLSClientConfig: trusting.Clone(), ForceAttemptHTTP2: i == 1}}
	}
	for _, m := range models {
		c.tallies[m] = &tally{kinds: map[string]int{}}
	}
	for _, m := range models {
		for number := range clients {
			c.wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(number), uint64(len(m))))
				for i := 0; ctx.Err() == nil; i++ {
					next := time.After(clientPause)
					kind, q := nextQuestion(random, m, fmt.Sprintf("client %d request %d at %s", number, i, t.Name()))
					q.header = http.Header{"Authorization": {"Bearer " + c.keys[number%len(c.keys)]}}
					c.send(m, kind, q, number)
					select {
					case <-ctx.Done():
					case <-next:
					}
				}
			})
		}
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// nextQuestion draws one request: most are short, a few are as long as a person's patience,
// and some clients go away.
func nextQuestion(random *rand.Rand, model, prompt string) (kind string, q question) {
	chat := random.IntN(4) > 0
	switch n := random.IntN(100); {
	case n < 75:
		return "unary", ask(model, "", prompt, 1+random.IntN(6), chat, false)
	case n < 89:
		return "stream", ask(model, preamble, prompt, 8+random.IntN(16), chat, true)
	case n < 91:
		return "long stream", ask(model, "", prompt, 120+random.IntN(120), chat, true)
	case n < 92:
		return "long unary", ask(model, preamble, prompt, 60+random.IntN(60), chat, false)
	case n < 96:
		q = ask(model, "", prompt, 200, chat, true)
		q.leaveEvents = 1 + random.IntN(30)
		return "cancelled in its stream", q
	default:
		q = ask(model, "", prompt, 100, chat, random.IntN(2) == 0)
		q.leaveAfter = time.Duration(1+random.IntN(60)) * time.Millisecond
		return "cancelled soon", q
	}
}

// send sends one request, as often as its client has to connect anew, and counts how it
// ended. The client's number says which gateway it asks first, and in which protocol.
func (c *crowd) send(model, kind string, q question, number int) {
	ctx, cancel := context.WithTimeout(context.Background(), clientDeadline)
	defer cancel()
	begin := time.Now()
	for reconnected := 0; ; reconnected++ {
		g := c.gateways[(number+reconnected)%len(c.gateways)]
		era := g.now()
		r := q.to(ctx, c.http[number/2%2], g.url)
		gone, killed := g.goneSince(era)
		if gone && r.cut && r.ending == unanswered && (r.status == 0 || killed) && ctx.Err() == nil {
			// The client of a gateway that is gone asks the other one. Both are down for a
			// moment only.
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
			continue
		}
		c.answered.Add(1)
		c.mu.Lock()
		defer c.mu.Unlock()
		t := c.tallies[model]
		t.reconnected += reconnected
		t.kinds[kind]++
		if len(r.comments) > 0 {
			t.waited++
		}
		if gone && killed && r.cut && r.ending == brokenSilently {
			t.lost++
			return
		}
		t.ended[r.ending]++
		if r.ending != whole && r.ending != left && len(c.samples[r.ending]) < maxSamples {
			c.samples[r.ending] = append(c.samples[r.ending], fmt.Sprintf("%s, %s after %s: %s to %s at gateway %d: %s: %v", time.Now().Format("15:04:05.000"), r.ending,
				time.Since(begin).Round(time.Millisecond), kind, model, 1+(number+reconnected)%len(c.gateways), r.header.Get("X-Request-Id"), r.err))
		}
		return
	}
}

// flows waits until so many more requests have ended.
func (c *crowd) flows(more int64) {
	c.t.Helper()
	want := c.answered.Load() + more
	eventually(c.t, time.Minute, "answers", func() error {
		if got := c.answered.Load(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// seen is a copy of a model's tally.
func (c *crowd) seen(model string) tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.tallies[model]
}

// stop lets the clients end what they have begun.
func (c *crowd) stop() {
	c.cancel()
	c.wg.Wait()
	for _, h := range c.http {
		h.CloseIdleConnections()
	}
}

// report prints what the clients have seen.
func (c *crowd) report() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	took := time.Since(c.begun)
	c.t.Logf("%d requests in %s, %.0f per second", c.answered.Load(), took.Round(time.Second), float64(c.answered.Load())/took.Seconds())
	for m, t := range c.tallies {
		var parts []string
		for e, n := range t.ended {
			parts = append(parts, fmt.Sprintf("%s %d", ending(e), n))
		}
		c.t.Logf("%s: %s; broken by a killed gateway %d, sent again to the other gateway %d, told where they stand %d; kinds %v",
			m, strings.Join(parts, ", "), t.lost, t.reconnected, t.waited, t.kinds)
	}
	for _, some := range c.samples {
		for _, s := range some {
			c.t.Log(s)
		}
	}
}

// requireNone requires that no answer of the model ended in one of these ways.
func (c *crowd) requireNone(model string, endings ...ending) {
	c.t.Helper()
	t := c.seen(model)
	for _, e := range endings {
		require.Zero(c.t, t.ended[e], "%s answers of %s", e, model)
	}
}
