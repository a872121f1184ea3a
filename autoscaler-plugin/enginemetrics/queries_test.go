package enginemetrics_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
)

func TestQueries(t *testing.T) {
	prod := []enginemetrics.Matcher{{Name: "namespace", Value: "prod"}}
	for name, tc := range map[string]struct {
		dialect *enginemetrics.Dialect
		sel     enginemetrics.Selector
		want    enginemetrics.Queries
	}{
		"relabelled": {enginemetrics.VLLM(), enginemetrics.Selector{Model: "llama-70b", ModelLabel: "model_id", Match: prod}, enginemetrics.Queries{
			KVUsage: `max_over_time(vllm:kv_cache_usage_perc{namespace="prod",model_id="llama-70b"}[1m]) or max_over_time(vllm:gpu_cache_usage_perc{namespace="prod",model_id="llama-70b"}[1m])`,
			Waiting: `max_over_time(vllm:num_requests_waiting{namespace="prod",model_id="llama-70b"}[1m])`,
			Running: `max_over_time(vllm:num_requests_running{namespace="prod",model_id="llama-70b"}[1m])`,
			Seen:    `timestamp(vllm:num_requests_waiting{namespace="prod",model_id="llama-70b"})`,
			Models:  `count by (model_id) (vllm:num_requests_waiting{namespace="prod"})`,
		}},
		"escaped": {enginemetrics.SGLang(), enginemetrics.Selector{Model: "a\"b\\c\nd} or up{é", Window: 90 * time.Second}, enginemetrics.Queries{
			KVUsage: `max_over_time(sglang:token_usage{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Waiting: `max_over_time(sglang:num_queue_reqs{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Running: `max_over_time(sglang:num_running_reqs{model_name="a\"b\\c\nd} or up{é"}[1m30s])`,
			Seen:    `timestamp(sglang:num_queue_reqs{model_name="a\"b\\c\nd} or up{é"})`,
			Models:  `count by (model_name) (sglang:num_queue_reqs)`,
		}},
		"no KV usage, no model label": {enginemetrics.TGI(), enginemetrics.Selector{Match: prod, Window: 500 * time.Millisecond}, enginemetrics.Queries{
			Waiting: `max_over_time(tgi_queue_size{namespace="prod"}[500ms])`,
			Running: `max_over_time(tgi_batch_current_size{namespace="prod"}[500ms])`,
			Seen:    `timestamp(tgi_queue_size{namespace="prod"})`,
		}},
		"nothing to ask": {enginemetrics.Ollama(), enginemetrics.Selector{}, enginemetrics.Queries{}},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := tc.dialect.Queries(tc.sel)
			require.NoError(t, err)
			require.Equal(t, tc.want, q)
		})
	}
}

func TestQueriesNameEveryBadField(t *testing.T) {
	_, err := enginemetrics.VLLM().Queries(enginemetrics.Selector{ModelLabel: "a-b", Window: -1, Match: []enginemetrics.Matcher{
		{Name: "x y", Value: "1"}, {Name: "job", Value: "\xff"}, {Name: "job", Value: "2"}, {Name: "__name__", Value: "up"}}})
	for _, part := range []string{"model is empty", `"a-b"`, "window is -1ns", `match[0] is "x y"`, "match[1]: value", "match[2] is a duplicate of label job", "match[3]"} {
		require.ErrorContains(t, err, part)
	}
	_, err = enginemetrics.TGI().Queries(enginemetrics.Selector{Model: "m"})
	require.ErrorContains(t, err, "no model label", "it would ask for every TGI there is")
	_, err = enginemetrics.VLLM().Queries(enginemetrics.Selector{Model: "\xff"})
	require.ErrorContains(t, err, "must be valid UTF-8")
	_, err = enginemetrics.VLLM().Queries(enginemetrics.Selector{Model: "m", Window: time.Microsecond})
	require.ErrorContains(t, err, "whole milliseconds")
}
