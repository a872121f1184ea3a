package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
)

// benchCluster is a cluster with 20 models and 100 replicas that serve.
func benchCluster(b *testing.B, n int) []*member {
	ms := cluster(b, n, settings{free: true})
	m := leaderOf(b, ms)
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n1", "node-one", 50)}})
	for i := range 20 {
		name := fmt.Sprintf("m%02d", i)
		_, err := m.client.ApplyModels(b.Context(), api.ApplyRequest{File: file(name)})
		require.NoError(b, err)
		for r := range 5 {
			at := 5*i + r
			m.move(m.place(name, fmt.Sprint(r), at/2, at%2), state.EventStarted, state.EventServing)
		}
	}
	return ms
}

// fetch reads an answer to its end and does not decode it: watchers do that on machines
// of their own.
func fetch(ctx context.Context, url string, index uint64) (uint64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s?index=%d", url, index), nil)
	if err != nil {
		return 0, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %w", resp.Status, err)
	}
	return strconv.ParseUint(resp.Header.Get(api.HeaderIndex), 10, 64)
}

// BenchmarkWatchFanOut commits a change of one model and measures how long it takes
// until each of 100 watchers of the gateway's state (20 models, 100 replicas) has its
// whole answer: from before the change is proposed, as its writer sees it, and from when
// it was applied. The watchers' connections are in this process.
func BenchmarkWatchFanOut(b *testing.B) {
	for name, shape := range map[string]struct {
		servers int
		through func(leader *member, followers []*member) *member
	}{
		"leader":           {1, func(l *member, _ []*member) *member { return l }},
		"throughFollowers": {3, func(_ *member, fs []*member) *member { return fs[0] }},
	} {
		b.Run(name, func(b *testing.B) { fanOut(b, shape.servers, shape.through) })
	}
}

func fanOut(b *testing.B, servers int, through func(*member, []*member) *member) {
	const watchers = 100
	ms := benchCluster(b, servers)
	leader := leaderOf(b, ms)
	var fs []*member
	if servers > 1 {
		fs = followersOf(b, ms)
	}
	at := through(leader, fs)
	ctx, cancel := context.WithCancel(b.Context())
	type arrival struct {
		index uint64
		when  time.Time
	}
	arrivals := make(chan arrival, watchers*4)
	var wg sync.WaitGroup
	for range watchers {
		wg.Go(func() {
			_ = api.Watch(ctx, api.QueryOptions{}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
				index, err := fetch(ctx, at.url+"/v1/gateway/state", q.Index)
				if err == nil {
					arrivals <- arrival{index, time.Now()}
				}
				return api.QueryMeta{Index: index}, err
			}, nil)
		})
	}
	for range watchers {
		<-arrivals
	}
	leader.waitWatches(watchers)
	var proposed, applied []time.Duration
	replicas := 2
	b.ResetTimer()
	for b.Loop() {
		replicas = 5 - replicas
		n := replicas
		// When it is applied is seen by one who waits for it in the store itself.
		after := leader.store.View().TableIndex(state.TableModels)
		var committed time.Time
		var seen sync.WaitGroup
		seen.Go(func() {
			for leader.store.View().TableIndex(state.TableModels) == after {
				time.Sleep(20 * time.Microsecond)
			}
			committed = time.Now()
		})
		start := time.Now()
		res, err := leader.node.Apply(ctx, &state.SetScale{Model: "m07", Replicas: &n, Origin: state.OriginOperator})
		require.NoError(b, err)
		seen.Wait()
		for range watchers {
			a := <-arrivals
			require.GreaterOrEqual(b, a.index, res.Index)
			proposed = append(proposed, a.when.Sub(start))
			applied = append(applied, max(a.when.Sub(committed), 0))
		}
		b.StopTimer()
		leader.waitWatches(watchers)
		b.StartTimer()
	}
	b.StopTimer()
	cancel()
	wg.Wait()
	report := func(what string, ds []time.Duration) {
		slices.Sort(ds)
		for _, p := range []int{50, 99} {
			b.ReportMetric(float64(ds[min(len(ds)*p/100, len(ds)-1)].Microseconds())/1000, fmt.Sprintf("p%d-ms-%s", p, what))
		}
	}
	report("from-commit", applied)
	report("from-proposal", proposed)
}

// BenchmarkVerifiedRead reads one model through the API of the leader.
func BenchmarkVerifiedRead(b *testing.B) {
	m := leaderOf(b, benchCluster(b, 3))
	for b.Loop() {
		_, _, err := m.client.Model(b.Context(), "m07", api.QueryOptions{})
		require.NoError(b, err)
	}
}

// BenchmarkWrite scales one model through the API of the leader of three servers, one request
// after the other.
func BenchmarkWrite(b *testing.B) {
	m := leaderOf(b, benchCluster(b, 3))
	replicas := 2
	for b.Loop() {
		replicas = 5 - replicas
		_, err := m.client.Scale(b.Context(), "m07", api.ScaleRequest{Replicas: replicas})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}
