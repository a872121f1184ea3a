package plugin_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad-autoscaler/sdk"
	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

type apmObserver struct {
	snapshot observe.Snapshot
	err      error
	asked    observe.Target
}

func (o *apmObserver) Observe(_ context.Context, t observe.Target) (observe.Snapshot, error) {
	o.asked = t
	return o.snapshot, o.err
}

func apmEngine(name, variant string, kv, waiting, running float64) observe.Engine {
	return observe.Engine{Replica: name, Variant: variant, Class: enginemetrics.ClassOK, KV: enginemetrics.Of(kv), Waiting: enginemetrics.Of(waiting), Running: enginemetrics.Of(running),
		WaitingNow: enginemetrics.Of(waiting), RunningNow: enginemetrics.Of(running), Rates: observe.Rates{Finished: enginemetrics.Of(1.5)}}
}

func apmWorld(t *testing.T) (*apmObserver, *plugin.APM) {
	t.Helper()
	draining := apmEngine("d", "l4", 1, 90, 90)
	draining.Draining = true
	o := &apmObserver{snapshot: observe.Snapshot{
		Model: "org/m", At: noon, Controlled: true,
		Variants: []observe.Variant{{Variant: "h100", Current: 1, Hot: 1}, {Variant: "l4", Current: 3, Hot: 2, Starting: 1}},
		Engines:  []observe.Engine{apmEngine("a", "h100", 0.9, 0, 4), apmEngine("b", "l4", 0.3, 6, 2), apmEngine("c", "l4", 0.6, 1, 1), draining},
		Queue:    observe.Queue{Known: true, Waiting: 10, InFlight: 7, Served: enginemetrics.Of(2)},
	}}
	p := plugin.NewAPM(plugin.APMConfig{Name: "remuda-autoscaler", Open: func(plugin.Sources, hclog.Logger) (plugin.View, error) { return plugin.View{Observer: o}, nil }})
	require.NoError(t, p.SetConfig(map[string]string{"dialect": "vllm", "nomad_region": "x"}))
	t.Cleanup(p.Close)
	return o, p
}

func TestQuery(t *testing.T) {
	for _, c := range []struct {
		query string
		want  float64
	}{
		{"queue/org/m", 10}, {"queue/org/m//l4", 7}, {"running/org/m", 7}, {"running/org/m//h100", 4},
		{"kv_cache_usage_max/org/m", 0.9}, {"kv_cache_usage_max/org/m//l4", 0.6}, {"kv_cache_usage_avg/org/m//l4", 0.45},
		{"replicas/org/m", 4}, {"replicas/org/m//l4", 3}, {"saturated/org/m", 2}, {"saturated/org/m//l4", 1},
		{"requests_per_second/org/m", 2}, {"requests_per_second/org/m//l4", 3}, {"backlog_per_replica/org/m", 2.5}, {" queue/org/m ", 10},
	} {
		t.Run(c.query, func(t *testing.T) {
			o, p := apmWorld(t)
			got, err := p.Query(c.query, sdk.TimeRange{From: noon.Add(-time.Hour), To: noon})
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.Equal(t, noon, got[0].Timestamp)
			require.InDelta(t, c.want, got[0].Value, 1e-12)
			require.Equal(t, observe.Target{Model: "org/m", Dialect: "vllm"}, o.asked)
			all, err := p.QueryMultiple(c.query, sdk.TimeRange{To: noon})
			require.NoError(t, err)
			require.Equal(t, []sdk.TimestampedMetrics{got}, all)
		})
	}
}

func TestQueryIsRefused(t *testing.T) {
	for query, want := range map[string]string{
		"": "must be METRIC/MODEL", "queue": "must be METRIC/MODEL", "queue/": "must be METRIC/MODEL", "queue/m//": "must be METRIC/MODEL", "queue///l4": "must be METRIC/MODEL",
		"cpu/m": `the metric is "cpu": must be one of backlog_per_replica, kv_cache_usage_avg`, "queue/org/m//t4": `has no variant "t4"`,
	} {
		_, p := apmWorld(t)
		_, err := p.Query(query, sdk.TimeRange{To: noon})
		require.ErrorContains(t, err, want, query)
		_, err = p.QueryMultiple(query, sdk.TimeRange{To: noon})
		require.ErrorContains(t, err, want, query)
	}
}

func TestWhatIsNotKnownIsNever0(t *testing.T) {
	for _, c := range []struct {
		name    string
		edit    func(*apmObserver)
		queries []string
		want    string
	}{
		{"nothing at all", func(o *apmObserver) { o.err = errors.New("nobody answers") }, plugin.QueryMetrics(), "nobody answers"},
		{"the queue", func(o *apmObserver) { o.snapshot.Queue = observe.Queue{} }, []string{"queue", "running", "backlog_per_replica"}, "is unknown"},
		{"a stale replica", func(o *apmObserver) {
			o.snapshot.Engines[1].Class, o.snapshot.Engines[1].Why = enginemetrics.ClassStale, "not read for a minute"
			o.snapshot.Queue.Served = enginemetrics.Value{}
		}, []string{"kv_cache_usage_max", "kv_cache_usage_avg", "saturated", "requests_per_second"}, "replica b is stale: not read for a minute"},
		{"a replica that nobody sees", func(o *apmObserver) { o.snapshot.Engines = o.snapshot.Engines[1:] }, []string{"kv_cache_usage_max", "kv_cache_usage_avg", "saturated"}, "3 replicas serve and only 2 of them are observed"},
		{"a value that cannot be", func(o *apmObserver) { o.snapshot.Engines[0].KV = enginemetrics.Of(math.NaN()) }, []string{"kv_cache_usage_max", "kv_cache_usage_avg", "saturated"}, "replica a is not_a_number"},
		{"the controller is away", func(o *apmObserver) { o.snapshot.Away = []string{observe.AwayController} }, []string{"replicas", "backlog_per_replica"}, "the controller did not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, metric := range c.queries {
				o, p := apmWorld(t)
				c.edit(o)
				_, err := p.Query(metric+"/org/m", sdk.TimeRange{To: noon})
				require.ErrorContains(t, err, c.want, metric)
			}
		})
	}
}

func TestAModelThatSleepsHasNumbers(t *testing.T) {
	for _, metric := range plugin.QueryMetrics() {
		o, p := apmWorld(t)
		o.snapshot = observe.Snapshot{Model: "m", At: noon, Controlled: true, Queue: observe.Queue{Known: true}}
		got, err := p.Query(metric+"/m", sdk.TimeRange{})
		require.NoError(t, err, metric)
		require.Equal(t, sdk.TimestampedMetrics{{Timestamp: noon}}, got)
	}
}

func TestSlotsStandInForKVUsage(t *testing.T) {
	o, p := apmWorld(t)
	for i := range o.snapshot.Engines {
		o.snapshot.Engines[i].KV, o.snapshot.Engines[i].Slots = enginemetrics.Value{}, 8
	}
	got, err := p.Query("kv_cache_usage_max/org/m", sdk.TimeRange{To: noon})
	require.NoError(t, err)
	require.Equal(t, 0.5, got[0].Value)
}

func TestAPMConfig(t *testing.T) {
	p := plugin.NewAPM(plugin.APMConfig{Name: "x"})
	_, err := p.Query("queue/m", sdk.TimeRange{})
	require.ErrorContains(t, err, "not configured")
	require.ErrorContains(t, p.SetConfig(map[string]string{"consl": "x"}), "consl is an unknown key: must be one of")
	require.ErrorContains(t, p.SetConfig(map[string]string{"prometheus": "::"}), "apm config")
	info, err := p.PluginInfo()
	require.NoError(t, err)
	require.Equal(t, "x", info.Name)
	require.Equal(t, sdk.PluginTypeAPM, info.PluginType)
}
