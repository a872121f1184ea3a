package metrics_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/metrics"
)

func TestQueries(t *testing.T) {
	prod := []metrics.Matcher{{Name: "namespace", Value: "prod"}}
	for name, tc := range map[string]struct {
		dialect *metrics.Dialect
		sel     metrics.Selector
		want    metrics.Queries
	}{
		"relabelled": {metrics.VLLM(), metrics.Selector{Model: "llama-70b", ModelLabel: "model_id", Match: prod}, metrics.Queries{
			KVUsage: `max_over_time(vllm:kv_cache_usage_perc{namespace="prod",model_id="llama-70b"}[1m]) or max_over_time(vllm:gpu_cache_usage_perc{namespace="prod",model_id="llama-70b"}[1m])`,
			Waiting: `max_over_time(vllm:num_requests_waiting{namespace="prod",model_id="llama-70b"}[1m])`,
			Running: `max_over_time(vllm:num_requests_running{namespace="prod",model_id="llama-70b"}[1m])`,
			Seen:    `timestamp(vllm:num_requests_waiting{namespace="prod",model_id="llama-70b"})`,
			Models:  `count by (model_id) (vllm:num_requests_waiting{namespace="prod"})`,
		}},
		"escaped": {metrics.SGLang(), metrics.Selector{Model: "a\"b\\c\nd} or up{é", Window: 90 * time.Second}, metrics.Queries{
			KVUsage: `max_over_time(sglang:token_usage{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Waiting: `max_over_time(sglang:num_queue_reqs{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Running: `max_over_time(sglang:num_running_reqs{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Seen:    `timestamp(sglang:num_queue_reqs{model_name="a\"b\\c\nd} or up{é"})`,
			Models:  `count by (model_name) (sglang:num_queue_reqs)`,
		}},
		"no KV usage, no model label": {metrics.TGI(), metrics.Selector{Match: prod, Window: 500 * time.Millisecond}, metrics.Queries{
			Waiting: `max_over_time(tgi_queue_size{namespace="prod"}[500ms])`,
			Running: `max_over_time(tgi_batch_current_size{namespace="prod"}[500ms])`,
			Seen:    `timestamp(tgi_queue_size{namespace="prod"})`,
		}},
		"nothing to ask": {metrics.Ollama(), metrics.Selector{}, metrics.Queries{}},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := tc.dialect.Queries(tc.sel)
			require.NoError(t, err)
			require.Equal(t, tc.want, q)
		})
	}
}

func TestQueriesNameEveryBadField(t *testing.T) {
	_, err := metrics.VLLM().Queries(metrics.Selector{ModelLabel: "a-b", Window: -1, Match: []metrics.Matcher{
		{Name: "x y", Value: "1"}, {Name: "job", Value: "\xff"}, {Name: "job", Value: "2"}, {Name: "__name__", Value: "up"}}})
	for _, part := range []string{"model is empty", `"a-b"`, "window is -1ns", `match[0] is "x y"`, "match[1]: value", "match[2] is a duplicate of label job", "match[3]"} {
		require.ErrorContains(t, err, part)
	}
	_, err = metrics.TGI().Queries(metrics.Selector{Model: "m"})
	require.ErrorContains(t, err, "no model label", "it would ask for every TGI there is")
	_, err = metrics.VLLM().Queries(metrics.Selector{Model: "\xff"})
	require.ErrorContains(t, err, "must be valid UTF-8")
	_, err = metrics.VLLM().Queries(metrics.Selector{Model: "m", Window: time.Microsecond})
	require.ErrorContains(t, err, "whole milliseconds")
}
