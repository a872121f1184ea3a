package capacity_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// factsInput is the example of the autoscaler facts.
const factsInput = `{"model":"llama-70b","namespace":"prod",
 "config":{"kv_cache_threshold":0.8,"queue_length_threshold":5,"kv_spare_trigger":0.1,"queue_spare_trigger":3},
 "replicas":[{"replica":"v1-0","variant":"v1","accelerator":"A100","cost":20,"kv_cache_usage":0.7,"queue_length":2}],
 "variants":[{"variant":"v1","current":2,"desired":0}],
 "model_based_targets":{"v1":5}}`

// read decodes all of a text for Safe, and the error that ends it.
func read(r io.Reader) ([]capacity.Input, error) { return readFor(capacity.Safe, r) }

func readFor(rules capacity.Rules, r io.Reader) ([]capacity.Input, error) {
	var all []capacity.Input
	for in, err := range capacity.Decode(rules, r) {
		if err != nil {
			return all, err
		}
		all = append(all, in)
	}
	return all, nil
}

func TestDecode(t *testing.T) {
	want := capacity.Input{
		Model: "llama-70b", Namespace: "prod", Config: capacity.DefaultConfig(),
		Replicas:          []capacity.Replica{rep("v1", 0, 20, 0.7, 2)},
		Variants:          variants{{Variant: "v1", Current: 2}},
		ModelBasedTargets: map[string]int{"v1": 5},
	}
	all, err := read(iotest.OneByteReader(strings.NewReader(factsInput + "\n\n{}{\"config\":{\"kv_spare_trigger\":0.2}}\n")))
	require.NoError(t, err)
	require.Len(t, all, 3)
	require.Equal(t, want, all[0])
	require.Equal(t, capacity.Input{Config: capacity.DefaultConfig()}, all[1])
	require.Equal(t, 0.2, all[2].Config.KVSpareTrigger)
	require.Equal(t, 0.8, all[2].Config.KVCacheThreshold)

	all, err = read(strings.NewReader(`{"replicas":[{"replica":"a","variant":"v","kv_cache_usage":"NaN","queue_length":"-Inf","cost":null}],"variants":null,"model_based_targets":{}}`))
	require.NoError(t, err)
	kv := all[0].Replicas[0].KVCacheUsage.Raw()
	require.True(t, math.IsNaN(kv))
	require.Equal(t, enginemetrics.Of(math.Inf(-1)), all[0].Replicas[0].QueueLength)
	require.Equal(t, enginemetrics.Value{}, all[0].Replicas[0].Cost)
	require.NotNil(t, all[0].ModelBasedTargets, "an optimizer without targets is one")

	all, err = read(strings.NewReader(" \n"))
	require.NoError(t, err)
	require.Empty(t, all)
}

// TestDecodeNamesEveryBadField with its line.
func TestDecodeNamesEveryBadField(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"types": {
			"{\"model\": 1,\n\"config\": {\"kv_spare_trigger\": \"x\"},\n\"replicas\": [{\n\"replica\": \"a\", \"variant\": \"v\",\n\"kv_cache_usage\": \"high\"}],\n\"variants\": [{\"variant\": \"v\", \"current\": 1.5}],\n\"model_based_targets\": {\"v\": \"x\"}}",
			"line 1: model is 1: must be a string\n" +
				"line 2: config.kv_spare_trigger is \"x\": must be a number\n" +
				"line 5: replicas[0].kv_cache_usage is \"high\": must be a number, null, \"NaN\", \"+Inf\" or \"-Inf\"\n" +
				"line 6: variants[0].current is 1.5: must be a whole number\n" +
				"line 7: model_based_targets[\"v\"] is \"x\": must be a whole number",
		},
		"values": {
			"{\"config\": {\"kv_cache_threshold\": 80,\n\"queue_length_threshold\": -1, \"queue_spare_trigger\": 0},\n\"replicas\": [\n{\"replica\": \"a\", \"variant\": \"\",\n\"cost\": -1, \"kv_capacity\": 0}],\n\"variants\": [{\"variant\": \"v\", \"current\": -1,\n\"min\": 3, \"max\": 2, \"pending\": 1000001},\n{\"variant\": \"v\", \"current\": 0}],\n\"model_based_targets\": {\n\"v\": -2}}",
			"line 1: config.kv_cache_threshold is 80: must be more than 0 and at most 1, a share of the KV cache\n" +
				"line 2: config.queue_length_threshold is -1: must be more than 0 waiting requests\n" +
				"line 2: config.queue_spare_trigger is 0: must be 0 to queue_length_threshold, which is -1\n" +
				"line 4: replicas[0].variant is missing or empty: must be a name\n" +
				"line 5: replicas[0].cost is -1: must be 0 or more\n" +
				"line 5: replicas[0].kv_capacity is 0: must be more than 0 or absent\n" +
				"line 6: variants[0].current is -1: must be 0 to 1000000 replicas\n" +
				"line 7: variants[0].pending is 1000001: must be 0 to 1000000 replicas\n" +
				"line 7: variants[0].min is 3 and max is 2: min must be at most max\n" +
				"line 8: variants[1].variant is \"v\": duplicate of variants[0].variant\n" +
				"line 10: model_based_targets[\"v\"] is -2: must be 0 to 1000000 replicas",
		},
		"unknown and double fields": {
			"{\"model\": \"m\", \"Model\": \"n\",\n\"model\": \"o\", \"config\": {\"x\": [{}]}}",
			"line 1: Model is an unknown field: must be one of config, model, model_based_targets, namespace, replicas, variants\n" +
				"line 2: model is a duplicate: must be given once\n" +
				"line 2: config.x is an unknown field: must be one of growth_percent, kv_cache_threshold, kv_spare_trigger, queue_length_threshold, queue_spare_trigger, stale_after_seconds",
		},
		"a missing name and count":     {"{\"variants\": [\n{}]}", "line 2: variants[0].current is missing: must be the number of replicas"},
		"a missing name":               {"{\"replicas\": [\n{\"variant\":\"v\"}]}", "line 2: replicas[0].replica is missing or empty: must be a name"},
		"a list of scalars":            {"{\"replicas\": [1, [2], null],\n \"variants\": {}}", "line 1: replicas[0] is 1: must be an object\nline 1: replicas[1] is a list: must be an object\nline 2: variants is an object: must be a list"},
		"a target that is there twice": {"{\"model_based_targets\": {\"v\": 1,\n\"v\": 2}}", "line 2: model_based_targets[\"v\"] is a duplicate: must be given once"},
		"too large a number":           {`{"config": {"kv_spare_trigger": 1e999}}`, "line 1: config.kv_spare_trigger is 1e999: must be a number"},
		"no object":                    {"\n[]", "line 2: the input is a list: must be an object"},
		"no object, but a string":      {`"x"`, "line 1: the input is \"x\": must be an object"},
		"no JSON":                      {"{}\n{,", "line 2: invalid character ','"},
		"not all of it":                {"{\"replicas\": [\n{", "line 2: the JSON is incomplete"},
		"not all of a value":           {"{\"model\": \"a", "line 1: the JSON is incomplete"},
		"what nothing opened":          {"{}\n]", "line 2: invalid character ']' looking for beginning of value"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(strings.NewReader(tc.text))
			require.EqualError(t, err, tc.want)
		})
	}
	_, err := read(strings.NewReader("{}\n{\"model\": 2}"))
	var field *capacity.FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, capacity.FieldError{Field: "model", Line: 2, Problem: "is 2: must be a string"}, *field)

	broken := errors.New("cut off")
	_, err = read(io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
}

// TestFactsExample prints the format of the autoscaler facts, and nothing more, under WVA.
func TestFactsExample(t *testing.T) {
	all, err := read(strings.NewReader(factsInput))
	require.NoError(t, err)
	raw, err := json.Marshal(explain(t, capacity.WVA, all[0]))
	require.NoError(t, err)
	require.JSONEq(t, `{"total_replicas":1,"non_saturated":1,"scale_up":false,"scale_down_safe":false,"capacity_targets":{"v1":1},
		"decisions":{"v1":{"variant":"v1","action":"scale-up","current":2,"target":5,"safety_override":false,"reason":"model-based target 5: capacity allows it"}}}`, string(raw))
}

// FuzzDecode: whatever the text, it is refused with a reason or explained; and what was read,
// written again, gives the same answer, byte for byte. WVA
// notes what Safe does not read.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(factsInput))
	f.Add([]byte(`{"replicas":[{"replica":"a","variant":"v","kv_cache_usage":"NaN","queue_length":1e308},{"replica":"a","variant":"v","kv_cache_usage":0.1,"queue_length":-0,"age_seconds":1e9,"draining":true}],"variants":[{"variant":"v","current":3,"min":0,"max":5,"pending":1,"draining":2,"unplaceable":true,"cost":0}],"model_based_targets":{}}`))
	f.Add([]byte(`{"config":{"kv_cache_threshold":0.7,"queue_length_threshold":3,"kv_spare_trigger":0.2,"queue_spare_trigger":5},"replicas":[{"replica":"","variant":"","cost":"NaN","kv_cache_usage":0.1}],"variants":[{"variant":"v","current":-1},{"variant":"v","current":2000000}],"model_based_targets":{"v":-3}}`))
	f.Add([]byte("{}\n{\"config\":{\"kv_cache_threshold\":1,\"stale_after_seconds\":1}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, rules := range both {
			all, err := readFor(rules, bytes.NewReader(text))
			if err != nil && err.Error() == "" {
				t.Fatal("an error without words")
			}
			for _, in := range all {
				answer := explain(t, rules, in)
				require.Equal(t, in.Validate(capacity.Safe) == nil, answer.Notes == nil)
				again, err := readFor(rules, strings.NewReader(marshal(t, in)))
				require.NoError(t, err)
				require.Len(t, again, 1)
				require.Equal(t, marshal(t, answer), marshal(t, explain(t, rules, again[0])))
			}
		}
	})
}

// readString decodes the only input of a text.
func readString(text string) (capacity.Input, error) {
	all, err := read(strings.NewReader(text))
	if err == nil && len(all) != 1 {
		err = errors.New("not one input")
	}
	if err != nil {
		return capacity.Input{}, err
	}
	return all[0], nil
}

func marshal(t require.TestingT, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}
