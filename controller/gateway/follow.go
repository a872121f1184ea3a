package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
)

const (
	// followWait is how long a query waits for a change. It bounds how long a server
	// that is cut off from its leader is believed to have no news.
	followWait = 10 * time.Second
	// followTimeout bounds such a query: a server adds up to a 16th of the wait.
	followTimeout = followWait*17/16 + 5*time.Second
	// followQuick bounds a query that should be answered at once, so that silent servers are soon known to be away.
	// It doubles up to followTimeout with each turn in which all servers have failed, for slow ones.
	followQuick = 3 * time.Second
	// followLag is how long ago a server may have heard from its leader before another
	// one is asked. An election takes less.
	followLag = 5 * time.Second
	// followPause is the pause after all servers have failed in turn; it doubles up to
	// followPauseMax.
	followPause    = 100 * time.Millisecond
	followPauseMax = 5 * time.Second
)

// newControllers returns a client for each of the controller's servers, so that one
// that is of no use can be left for the next.
func newControllers(c Controller) ([]*api.Client, error) {
	var out []*api.Client
	for _, address := range c.Addresses {
		client, err := api.NewClient(api.Config{Addresses: []string{address}, Token: c.Token, CACert: c.CACert})
		if err != nil {
			return nil, fmt.Errorf("invalid gateway config: %w", err)
		}
		out = append(out, client)
	}
	return out, nil
}

// follower follows the controller's state. While no server answers, the last state
// stays in force.
type follower struct {
	servers []*api.Client
	log     hclog.Logger
	// apply takes a state of this index into force.
	apply func(s api.GatewayState, index uint64)
	// away is told whether all servers have failed in turn: none answers, or none knows a leader.
	away func(bool)
	// first is closed when the first state has come into force.
	first chan struct{}

	// index is that of the state in force.
	index atomic.Uint64
	// up: a server answers, and knows a leader.
	up atomic.Bool
}

// run returns when ctx ends.
func (f *follower) run(ctx context.Context) {
	at, failed := 0, 0 // the server that is asked, and failures in a row
	pause, quick := followPause, followQuick
	for ctx.Err() == nil {
		query := api.QueryOptions{Wait: followWait, Stale: true}
		timeout := quick
		if failed == 0 { // else it should answer at once
			query.Index, timeout = f.index.Load(), followTimeout
		}
		got, err := f.ask(ctx, f.servers[at], query, timeout)
		if ctx.Err() != nil {
			return
		}
		rest := time.Duration(0)
		if err == nil && got != noLeader {
			failed, pause, quick = 0, followPause, followQuick
			if !f.up.Swap(true) {
				f.say(true, nil)
				f.away(false)
			}
			if got == behind {
				rest = followPause
			}
		} else {
			at = (at + 1) % len(f.servers)
			failed++
			if failed == len(f.servers) {
				f.up.Store(false)
				f.say(false, err)
				f.away(true)
			}
			if failed%len(f.servers) == 0 {
				rest = pause
				pause, quick = min(2*pause, followPauseMax), min(2*quick, followTimeout)
			}
		}
		if rest > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(rest/2 + rand.N(rest)):
			}
		}
	}
}

func (f *follower) say(up bool, err error) {
	switch {
	case up:
		f.log.Info("following the controller", "index", f.index.Load())
	case err != nil:
		f.log.Warn("cannot read the controller's state: the last known state stays in force", "index", f.index.Load(), "error", err)
	default:
		f.log.Warn("the controller has no leader: the last known state stays in force", "index", f.index.Load())
	}
}

// answer is what an answer says of its server.
type answer int

const (
	upToDate answer = iota
	behind          // its state is older than the one in force
	noLeader        // it knows no leader, or has not heard from it for long
)

// ask makes one query, bounded by timeout, and takes a state that may be another one into force.
func (f *follower) ask(ctx context.Context, server *api.Client, query api.QueryOptions, timeout time.Duration) (answer, error) {
	state, meta, err := f.query(ctx, server, query, timeout)
	if err != nil {
		return noLeader, err
	}
	got, known := upToDate, f.index.Load()
	if !meta.KnownLeader || meta.LastContact > followLag {
		got = noLeader
	}
	if meta.Index < known {
		// The server lags, or the state was replaced by one with a lower index. The
		// leader knows.
		if state, meta, err = f.query(ctx, server, api.QueryOptions{}, timeout); err != nil {
			return noLeader, err
		}
		if got == upToDate {
			got = behind
		}
	}
	if meta.Index != known || query.Index == 0 { // after a failure it may be another controller's
		f.apply(state, meta.Index)
		if f.index.Swap(meta.Index) == 0 {
			close(f.first)
		}
		f.log.Debug("the controller's state changed", "index", meta.Index, "models", len(state.Models), "replicas", len(state.Replicas))
	}
	return got, nil
}

func (f *follower) query(ctx context.Context, server *api.Client, query api.QueryOptions, timeout time.Duration) (api.GatewayState, api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	state, meta, err := server.GatewayState(ctx, query)
	if err == nil && meta.Index == 0 {
		err = errors.New("controller: the response has no X-Remuda-Index header: the address must be a remuda controller's")
	}
	return state, meta, err
}

func orders(s api.GatewayState, index uint64) balance.Orders {
	o := balance.Orders{Index: index, Models: map[string]bool{}, Draining: map[string]bool{}, Starting: map[string]int{}, Problems: map[string]balance.Problem{}}
	for _, m := range s.Models {
		if p := m.Problem; p != nil {
			o.Problems[m.Name] = balance.Problem{State: p.State, Message: p.Message, Since: p.Since, RetryAt: p.RetryAt}
		}
		o.Models[m.Name] = m.Stopped
	}
	for _, r := range s.Replicas {
		if r.Draining {
			o.Draining[r.Name] = true
		}
		if onItsWay(r) {
			o.Starting[r.Model]++
		}
	}
	return o
}

// onItsWay tells whether a replica is being brought up.
func onItsWay(r api.GatewayReplica) bool {
	switch r.Status {
	case "placed", "starting", "waking":
		return true
	}
	return false
}
