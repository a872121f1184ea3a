package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// watches is how many blocking queries wait on a member.
func (m *member) watches() int {
	families, err := m.metrics.Gather()
	require.NoError(m.t, err)
	for _, f := range families {
		if f.GetName() == "remuda_controller_http_watches" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return -1
}

func (m *member) waitWatches(n int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprint(n, " watches"), func() bool { return m.watches() == n })
}

// result is what a blocking query came to.
type result[T any] struct {
	value T
	meta  api.QueryMeta
	err   error
}

// wait makes a call in the background.
func wait[T any](call func() (T, api.QueryMeta, error)) <-chan result[T] {
	ch := make(chan result[T], 1)
	go func() {
		v, meta, err := call()
		ch <- result[T]{v, meta, err}
	}()
	return ch
}

func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "no answer")
		panic("not reached")
	}
}

func TestABlockingQueryIsWokenByItsOwnChange(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	c := m.client
	_, at, err := c.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Positive(t, at.Index)
	require.True(t, at.KnownLeader)

	switches := wait(func() ([]api.Switch, api.QueryMeta, error) {
		return c.Switches(t.Context(), api.QueryOptions{Index: at.Index})
	})
	m.waitWatches(1)
	// Changes of other tables do not end it: the answer has the switch.
	_, err = c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n2", "node-two", 1)}})
	sw, err := c.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	got := receive(t, switches)
	require.NoError(t, got.err)
	require.Equal(t, []api.Switch{sw}, got.value)
	require.Equal(t, sw.ModifyIndex, got.meta.Index)

	// One that asks with an older index is answered at once.
	again, meta, err := c.Switches(t.Context(), api.QueryOptions{Index: at.Index, Wait: api.MaxWait})
	require.NoError(t, err)
	require.Equal(t, got.value, again)
	require.Equal(t, got.meta.Index, meta.Index)
}

func TestEveryBlockingReadIsWoken(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	r := m.place("m", "1", 0, 0)
	m.move(r, state.EventStarted, state.EventServing)
	name := r.String()
	q := func(i uint64) api.QueryOptions { return api.QueryOptions{Index: i} }
	c := m.client
	type call func(i uint64) (any, api.QueryMeta, error)
	scale := 2
	change := map[string]func(){
		"scale": func() {
			scale = 5 - scale // 3, 2, 3, …
			_, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: scale})
			require.NoError(t, err)
		},
		"replica": func() { m.move(r, "") },
		"key": func() {
			m.apply(state.NewShimKey())
			key := m.store.View().ShimKey(nil)
			s, _, err := c.GatewayState(t.Context(), api.QueryOptions{})
			require.NoError(t, err)
			require.Equal(t, base64.RawURLEncoding.EncodeToString(replica.GatewayKey(key).Bytes()), s.EngineKey)
			resp, body := m.raw(http.MethodGet, "/v1/gateway/state", "", "")
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.NotContains(t, body, base64.StdEncoding.EncodeToString(key.Seed()), "the controller's own key")
			require.NotContains(t, body, base64.RawURLEncoding.EncodeToString(key.Seed()), "the controller's own key")
		},
		"node": func() {
			on := m.store.View().Node(nil, "n1").GPUs[0].Cordoned
			_, err := c.Cordon(t.Context(), "n1", api.CordonRequest{GPU: gpuOf("n1", 0), On: !on})
			require.NoError(t, err)
		},
	}
	for what, one := range map[string]struct {
		change string
		call   call
	}{
		"models":                 {"scale", func(i uint64) (any, api.QueryMeta, error) { return c.Models(t.Context(), q(i)) }},
		"model":                  {"scale", func(i uint64) (any, api.QueryMeta, error) { return c.Model(t.Context(), "m", q(i)) }},
		"model file":             {"scale", func(i uint64) (any, api.QueryMeta, error) { return c.ModelFile(t.Context(), "m", 0, "", q(i)) }},
		"gateway state":          {"scale", func(i uint64) (any, api.QueryMeta, error) { return c.GatewayState(t.Context(), q(i)) }},
		"gateway state, key":     {"key", func(i uint64) (any, api.QueryMeta, error) { return c.GatewayState(t.Context(), q(i)) }},
		"gateway state, replica": {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.GatewayState(t.Context(), q(i)) }},
		"decisions": {"scale", func(i uint64) (any, api.QueryMeta, error) {
			return c.Decisions(t.Context(), api.DecisionFilter{Model: "m"}, q(i))
		}},
		"model by its replica": {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.Model(t.Context(), "m", q(i)) }},
		"replicas":             {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.Replicas(t.Context(), "", q(i)) }},
		"replicas of m":        {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.Replicas(t.Context(), "m", q(i)) }},
		"replica":              {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.Replica(t.Context(), name, q(i)) }},
		"nodes":                {"node", func(i uint64) (any, api.QueryMeta, error) { return c.Nodes(t.Context(), api.NodeFilter{}, q(i)) }},
		"node":                 {"node", func(i uint64) (any, api.QueryMeta, error) { return c.Node(t.Context(), "node-one", q(i)) }},
		"node by its replica":  {"replica", func(i uint64) (any, api.QueryMeta, error) { return c.Node(t.Context(), "n1", q(i)) }},
	} {
		t.Run(what, func(t *testing.T) {
			_, at, err := one.call(0)
			require.NoError(t, err)
			ch := wait(func() (any, api.QueryMeta, error) { return one.call(at.Index) })
			m.waitWatches(1)
			change[one.change]()
			got := receive(t, ch)
			require.NoError(t, got.err)
			require.Greater(t, got.meta.Index, at.Index)
			m.waitWatches(0)
		})
	}
}

func TestADeadlineAnswersWithTheSameIndex(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	want, at, err := m.client.Replicas(t.Context(), "", api.QueryOptions{})
	require.NoError(t, err)
	got, meta, err := m.client.Replicas(t.Context(), "", api.QueryOptions{Index: at.Index, Wait: time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, at.Index, meta.Index)
	_, meta, err = m.client.Replicas(t.Context(), "", api.QueryOptions{Index: at.Index, Wait: time.Millisecond, Stale: true})
	require.NoError(t, err)
	require.Equal(t, at.Index, meta.Index)
}

func TestAModelThatGoesWhileItIsWatched(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	_, at, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	ch := wait(func() (api.ModelStatus, api.QueryMeta, error) {
		return m.client.Model(t.Context(), "m", api.QueryOptions{Index: at.Index})
	})
	m.waitWatches(1)
	require.NoError(t, m.client.DeleteModel(t.Context(), "m", nil))
	requireError(t, receive(t, ch).err, http.StatusNotFound, api.CodeNotFound, `model "m" does not exist`)
	resp, _ := m.raw(http.MethodGet, "/v1/model/m", "", "")
	require.NotEmpty(t, resp.Header.Get(api.HeaderIndex), "an answer that it is not there has its index, too")
}

func TestATokenThatIsDeletedWhileItWaits(t *testing.T) {
	m, _ := bootstrapped(t)
	tok := token(t, m.client, "read-only")
	c := m.as(tok.SecretID)
	_, at, err := c.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	ch := wait(func() ([]api.Switch, api.QueryMeta, error) {
		return c.Switches(t.Context(), api.QueryOptions{Index: at.Index})
	})
	m.waitWatches(1)
	require.NoError(t, m.client.DeleteToken(t.Context(), tok.Accessor))
	_, err = m.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "x"})
	require.NoError(t, err)
	requireError(t, receive(t, ch).err, http.StatusUnauthorized, api.CodeNoToken, "unknown ACL token")
}

func TestARestoreWakesWatchersAndTakesTheIndexBack(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	var saved bytes.Buffer
	require.NoError(t, m.client.SaveSnapshot(t.Context(), &saved, api.QueryOptions{}))
	old, _, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("later"))})
	require.NoError(t, err)
	_, at, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)

	verified := wait(func() (api.GatewayState, api.QueryMeta, error) {
		return m.client.GatewayState(t.Context(), api.QueryOptions{Index: at.Index})
	})
	stale := wait(func() (api.GatewayState, api.QueryMeta, error) {
		return m.client.GatewayState(t.Context(), api.QueryOptions{Index: at.Index, Stale: true})
	})
	m.waitWatches(2)
	_, err = m.client.RestoreSnapshot(t.Context(), &saved)
	require.NoError(t, err)
	for _, ch := range []<-chan result[api.GatewayState]{verified, stale} {
		got := receive(t, ch)
		require.NoError(t, got.err)
		require.Equal(t, old, got.value)
		require.Less(t, got.meta.Index, at.Index, "it is told that the index went back")
	}
	// So is one that comes too late to be woken, also when other tables went on.
	m.apply(&state.SetSchedule{File: "timezone = \"UTC\"\n"})
	got, meta, err := m.client.GatewayState(t.Context(), api.QueryOptions{Index: at.Index, Wait: api.MaxWait})
	require.NoError(t, err)
	require.Equal(t, old, got)
	require.Less(t, meta.Index, at.Index)
}

func TestWatchFollowsEverything(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan []api.Switch, 100)
	var indexes []uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		err := api.Watch(ctx, api.QueryOptions{}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
			v, meta, err := m.client.Switches(ctx, q)
			if err == nil {
				indexes = append(indexes, meta.Index)
				seen <- v
			}
			return meta, err
		}, nil)
		require.ErrorIs(t, err, context.Canceled)
	})
	require.Empty(t, receive(t, seen))
	for i := range 20 {
		_, err := m.client.SetSwitch(t.Context(), fmt.Sprintf("cap-max-replicas/s%02d", i), api.SwitchRequest{Value: "1"})
		require.NoError(t, err)
	}
	for n := 0; n < 20; {
		now := len(receive(t, seen))
		require.GreaterOrEqual(t, now, n)
		n = now
	}
	cancel()
	wg.Wait()
	for i := 1; i < len(indexes); i++ {
		require.Greater(t, indexes[i], indexes[i-1])
	}
}

func TestAServerThatStopsAnswersItsWatchers(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	want, at, err := m.client.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	ch := wait(func() ([]api.ModelSummary, api.QueryMeta, error) {
		return m.client.Models(t.Context(), api.QueryOptions{Index: at.Index})
	})
	m.waitWatches(1)
	m.stop()
	got := receive(t, ch)
	require.NoError(t, got.err)
	require.Equal(t, want, got.value)
	require.Equal(t, at.Index, got.meta.Index)
}

func TestAClientThatGoesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	_, at, err := m.client.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ch := wait(func() ([]api.ModelSummary, api.QueryMeta, error) {
		return m.client.Models(ctx, api.QueryOptions{Index: at.Index})
	})
	m.waitWatches(1)
	cancel()
	require.ErrorIs(t, receive(t, ch).err, context.Canceled)
	m.waitWatches(0)
}
