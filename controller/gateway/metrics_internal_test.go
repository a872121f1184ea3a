package gateway

import (
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestSeriesOfKeysAreBounded: of many keys, also of many that come at once, a bounded number have series. The
// others count together.
func TestSeriesOfKeysAreBounded(t *testing.T) {
	for range 20 {
		m := newMetrics(nil, &bodyStore{})
		const keys, requests = 300, 3
		begin := make(chan struct{})
		var counting sync.WaitGroup
		for k := range keys {
			counting.Go(func() {
				<-begin
				for range requests {
					m.countTokens("m", fmt.Sprint("key-", k), api.Usage{PromptTokens: int64(k) + 1})
				}
			})
		}
		close(begin)
		counting.Wait()
		var sum float64
		series := map[string]float64{}
		for _, s := range gather(t, m.keyTokens) {
			series[s.GetLabel()[0].GetValue()] = s.GetCounter().GetValue()
			sum += s.GetCounter().GetValue()
		}
		require.Len(t, series, maxKeySeries+1)
		require.Positive(t, series[otherKey])
		require.Equal(t, float64(requests*keys*(keys+1)/2), sum)
	}
}

// gather returns the series of a metric.
func gather(t *testing.T, c prometheus.Collector) []*dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	return families[0].GetMetric()
}
