package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// A server that is silent after another one has failed is given up within seconds.
func TestSilentServersAreSoonAway(t *testing.T) {
	t.Parallel()
	waited := make(chan time.Duration, 10)
	broken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(broken.Close)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began := time.Now()
		<-r.Context().Done()
		waited <- time.Since(began)
	}))
	t.Cleanup(silent.Close)
	servers, err := newControllers(Controller{Addresses: []string{broken.URL, silent.URL}})
	require.NoError(t, err)
	away := make(chan bool, 1)
	f := &follower{servers: servers, log: hclog.NewNullLogger(), away: func(a bool) { away <- a }}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { f.run(ctx) })
	require.True(t, <-away)
	require.Less(t, <-waited, followWait)
}

// The controller is away when none of its servers answers, or none knows a leader, and not before.
func TestAwayIsWhenAllServersAre(t *testing.T) {
	t.Parallel()
	var down, leaderless [3]atomic.Bool
	var asked [3]atomic.Int64
	var addresses []string
	wake := make(chan struct{}) // ends the queries that wait
	var mu sync.Mutex
	for i := range down {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked[i].Add(1)
			mu.Lock()
			woken := wake
			mu.Unlock()
			if r.URL.Query().Has("index") && !down[i].Load() {
				select {
				case <-woken:
				case <-r.Context().Done():
				}
			}
			if down[i].Load() {
				http.Error(w, `{"error":"broken","code":"internal"}`, http.StatusInternalServerError)
				return
			}
			w.Header().Set(api.HeaderIndex, "7")
			known := "true"
			if leaderless[i].Load() {
				known = "false"
			}
			w.Header().Set(api.HeaderKnownLeader, known)
			_ = json.NewEncoder(w).Encode(api.GatewayState{})
		}))
		t.Cleanup(s.Close)
		addresses = append(addresses, s.URL)
	}
	servers, err := newControllers(Controller{Addresses: addresses})
	require.NoError(t, err)
	said := make(chan bool, 100)
	f := &follower{servers: servers, log: hclog.NewNullLogger(), apply: func(api.GatewayState, uint64) {}, away: func(a bool) { said <- a }, first: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx)
	}()
	defer func() {
		stop()
		<-done
	}()
	change := func(of *[3]atomic.Bool, servers ...bool) {
		mu.Lock()
		defer mu.Unlock()
		for i, v := range servers {
			of[i].Store(v)
		}
		close(wake)
		wake = make(chan struct{})
	}
	require.False(t, <-said)
	change(&down, true, true, false)
	require.Eventually(t, func() bool { return asked[2].Load() >= 2 }, time.Minute, time.Millisecond)
	require.Empty(t, said, "two of three are down")
	change(&leaderless, true, true, true)
	change(&down, false, false, false)
	require.True(t, <-said, "none knows a leader")
	change(&leaderless, false, false, false)
	require.False(t, <-said)
	change(&down, true, true, true)
	require.True(t, <-said)
	change(&down, false, true, true)
	require.False(t, <-said)
	require.Empty(t, said)
}
