package gateway

import (
	"container/list"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// guessBurst is how many wrong keys an address may send at once before it gets 429 for them, and
	// guessEvery the time after which it may send one more: a client with an old key notices, and a
	// search of keys gets nowhere.
	guessBurst = 20
	guessEvery = 5 * time.Second
	// maxGuessers bounds the addresses that are remembered. The one that was silent the longest goes first.
	maxGuessers = 4096
	// maxGuessLines bounds the lines that one second adds to the log.
	maxGuessLines = 10
)

// guesses counts wrong API keys by the address of the client; for IPv6 by its /64.
type guesses struct {
	mu sync.Mutex
	// byAddress has the elements of recent; both guarded by mu.
	byAddress map[string]*list.Element
	// recent has *guesser, the latest first.
	recent *list.List
	// forgotten are wrong keys of addresses that went before they were logged; guarded by mu.
	forgotten int
}

type guesser struct {
	address string
	// freeAt is when all of the burst is free again.
	freeAt time.Time
	// unlogged are the wrong keys since the last line in the log.
	unlogged int
}

func newGuesses() *guesses {
	return &guesses{byAddress: map[string]*list.Element{}, recent: list.New()}
}

// wrong counts a wrong key. wait is 0, or how long the address should send none.
func (g *guesses) wrong(address string, now time.Time) (wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.byAddress[address]
	if e == nil {
		if g.recent.Len() == maxGuessers {
			oldest := g.recent.Back()
			gone := g.recent.Remove(oldest).(*guesser)
			delete(g.byAddress, gone.address)
			g.forgotten += gone.unlogged
		}
		e = g.recent.PushFront(&guesser{address: address})
		g.byAddress[address] = e
	}
	g.recent.MoveToFront(e)
	one := e.Value.(*guesser)
	one.unlogged++
	if one.freeAt.Before(now) {
		one.freeAt = now
	}
	if over := one.freeAt.Sub(now) - (guessBurst-1)*guessEvery; over > 0 {
		return over
	}
	one.freeAt = one.freeAt.Add(guessEvery)
	return 0
}

// report logs the wrong keys since the last time, a line for each address.
func (g *guesses) report(log hclog.Logger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	lines, others := 0, g.forgotten
	g.forgotten = 0
	for e := g.recent.Front(); e != nil; e = e.Next() {
		one := e.Value.(*guesser)
		switch {
		case one.unlogged == 0:
		case lines < maxGuessLines:
			lines++
			log.Warn("rejected requests with a wrong API key", "client", one.address, "requests", one.unlogged)
		default:
			others += one.unlogged
		}
		one.unlogged = 0
	}
	if others > 0 {
		log.Warn("rejected requests with a wrong API key of more clients", "requests", others)
	}
}

// identify is keyring.name for a request of a client, whose wrong keys it counts.
func (g *Gateway) identify(r *http.Request) (name string, ours bool, e *apiError) {
	name, ours, e = g.keyring.Load().name(r.Header)
	if e == nil || e.code != codeBadKey {
		return name, ours, e
	}
	g.metrics.rejectedKeys.Inc()
	if wait := g.guesses.wrong(clientNetwork(r.RemoteAddr), time.Now()); wait > 0 {
		e = errManyGuesses(wait)
	}
	return name, ours, e
}

func errManyGuesses(wait time.Duration) *apiError {
	return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "too_many_wrong_keys", close: true, retryAfter: wait,
		message: fmt.Sprintf("invalid API key, and more than %d were sent from this address; ask the gateway's operator for a key", guessBurst)}
}
