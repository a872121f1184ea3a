package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// TestReportIsSmallEnough: the controller takes a report whatever clients call their
// requests, or it would forget the gateway and take its replicas for drained.
func TestReportIsSmallEnough(t *testing.T) {
	const replicas, each, limit = 100, 30, 1 << 20
	largest := make(chan int, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("report: %v", err)
		}
		largest <- len(b)
		_, _ = w.Write([]byte("{}\n"))
	}))
	t.Cleanup(s.Close)
	client, err := api.NewClient(api.Config{Addresses: []string{s.URL}})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	table, err := balance.New(balance.Config{Remember: time.Minute})
	require.NoError(t, err)
	var engines []replica.Engine
	for i := range replicas {
		name := replica.Name{Model: "m", Variant: "v", ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i)}
		engines = append(engines, replica.Engine{Name: name, Role: replica.RolePrimary, Address: "127.0.0.1", Port: 1 + i, Slots: each, Passing: true})
	}
	cfg := DefaultConfig()
	keys, err := queue.NewKeys(cfg.Keys.Default, nil)
	require.NoError(t, err)
	d := dispatch.New(dispatch.Config{Length: int(cfg.Queue.Length), Aging: cfg.Queue.Aging, Table: table, Keys: keys, Reports: true,
		Budget: queue.BudgetConfig{Ratio: cfg.Retries.BudgetRatio, Floor: cfg.Retries.BudgetFloor, Window: cfg.Retries.BudgetWindow}})
	d.Away(true) // what it has not said anything of is used whole
	d.Update(engines, false)
	id := strings.Repeat("x", 128) // of a step of a pipeline
	want := func() *dispatch.Request { return &dispatch.Request{ID: id, Model: "m", Key: keyAnonymous} }
	for range replicas * each {
		_, err := d.Acquire(t.Context(), want(), endless{})
		require.NoError(t, err)
	}
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	for range cfg.Queue.Length {
		waiting.Go(func() {
			_, err := d.Acquire(t.Context(), want(), endless{})
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	require.Eventually(t, func() bool { return d.Lengths()["m"].Waiting == int(cfg.Queue.Length) }, time.Minute, time.Millisecond)
	draining := func() bool { return true }
	require.NoError(t, (&reporter{dispatcher: d, usage: &usageBook{}, gateway: "gw", draining: draining, obey: func(api.GatewayOrders) {}}).report(t.Context(), client))
	require.Less(t, <-largest, limit)
}

// endless is the patience of a request that nobody tells anything.
type endless struct{}

func (endless) Until(dispatch.Standing) time.Time { return time.Now().Add(time.Hour) }
func (endless) Next() time.Time                   { return time.Time{} }
func (endless) Look(dispatch.Standing) error      { return nil }
