package enginemetrics_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
)

// answer is a server's answer at t=1000 s; each series is labels, then a value.
func answer(series ...string) string {
	var parts []string
	for i := 0; i < len(series); i += 2 {
		parts = append(parts, fmt.Sprintf(`{"metric":{%s},"value":[1000.5,"%s"]}`, series[i], series[i+1]))
	}
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(parts, ",") + `]}}`
}

func vector(t *testing.T, series ...string) *enginemetrics.Vector {
	t.Helper()
	v, err := enginemetrics.DecodeVector([]byte(answer(series...)))
	require.NoError(t, err)
	return &v
}

func TestDecodeVector(t *testing.T) {
	v, err := enginemetrics.DecodeVector([]byte(`{"status":"success","warnings":["half of it"],"infos":["x"],"data":{"resultType":"vector","result":[
		{"metric":{"pod":"a"},"value":[1435781451.781,"1.5"]},{"metric":{},"value":[1,"NaN"]},{"metric":{},"value":[1,"-Inf"]}]}}`))
	require.NoError(t, err)
	require.Equal(t, []string{"half of it"}, v.Warnings)
	require.Equal(t, &model.Sample{Metric: model.Metric{"pod": "a"}, Value: 1.5, Timestamp: 1435781451781}, v.Series[0])
	require.True(t, math.IsNaN(float64(v.Series[1].Value)))
	require.True(t, math.IsInf(float64(v.Series[2].Value), -1))

	_, err = enginemetrics.DecodeVector([]byte(`{"status":"error","errorType":"bad_data","error":"parse error"}`))
	var failed *enginemetrics.QueryError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, enginemetrics.QueryError{Kind: "bad_data", Message: "parse error"}, *failed)

	result := func(s string) string {
		return `{"status":"success","data":{"resultType":"vector","result":` + s + `}}`
	}
	for text, part := range map[string]string{
		``:                     "unexpected end",
		`<html>`:               "invalid character",
		`{"status":"perhaps"}`: `status is "perhaps"`,
		`{"status":"success"}`: "must be vector",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`: "must be vector, as for an instant query",
		`{"status":"success","data":{"resultType":"vector"}}`:             "data.result",
		result(`null`):                              "must be a list",
		result(`{}`):                                "data.result",
		result(`[null]`):                            "result[0] is not a number",
		result(`[{"metric":{}}]`):                   "result[0] is not a number",
		result(`[{"metric":{},"value":[1,1]}]`):     "data.result",
		result(`[{"metric":{},"value":["x","1"]}]`): "data.result",
		result(`[{"metric":{},"value":[1,"one"]}]`): "data.result",
		result(`[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[]}]}]`): "result[0] is not a number",
		result(`[{"metric":{"a":1},"value":[1,"1"]}]`):                                 "data.result",
	} {
		_, err := enginemetrics.DecodeVector([]byte(text))
		require.ErrorContains(t, err, part, text)
	}
	many := strings.TrimSuffix(strings.Repeat(`{"metric":{},"value":[1,"1"]},`, enginemetrics.MaxSeries+1), ",")
	_, err = enginemetrics.DecodeVector([]byte(result("[" + many + "]")))
	require.ErrorIs(t, err, enginemetrics.ErrTooManySeries)
}

func TestReadAnswers(t *testing.T) {
	opts := enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter, Model: "m"}
	a := enginemetrics.Answers{
		// b has two ranks; c is scraped twice and disagrees; d is dead; e shows no KV usage; f is absurd; g is old.
		KVUsage: vector(t, `"pod":"a"`, "0.5", `"pod":"b","engine":"0"`, "0.2", `"pod":"b","engine":"1"`, "0.9",
			`"pod":"c","job":"x"`, "0.1", `"pod":"c","job":"y"`, "0.3", `"pod":"d"`, "0.9", `"pod":"f"`, "NaN", `"pod":"g"`, "0.1", `"job":"x"`, "1"),
		Waiting: vector(t, `"pod":"a"`, "2", `"pod":"b","engine":"0"`, "3", `"pod":"b","engine":"1"`, "4",
			`"pod":"c","job":"x"`, "1", `"pod":"c","job":"y"`, "1", `"pod":"d"`, "50", `"pod":"e"`, "1", `"pod":"f"`, "0", `"pod":"g"`, "0"),
		Seen: vector(t, `"pod":"a"`, "995.5", `"pod":"b","engine":"0"`, "990.5", `"pod":"b","engine":"1"`, "980.5", `"pod":"c"`, "2000", `"pod":"e"`, "1000", `"pod":"f"`, "1000", `"pod":"g"`, "970"),
	}
	r := enginemetrics.ReadAnswers(a, opts)
	require.Equal(t, 1, r.Nameless)
	require.Empty(t, r.Findings)
	type row struct {
		replica     string
		class       enginemetrics.Class
		kv, waiting enginemetrics.Value
		age         time.Duration
		ranks       int
	}
	var got []row
	for _, v := range r.Views {
		got = append(got, row{v.Replica, v.Class, v.KVUsage, v.Waiting, v.Age, v.Last.Ranks})
		require.Equal(t, v.Class == enginemetrics.ClassOK, v.Why == "")
	}
	require.Equal(t, []row{
		{"a", enginemetrics.ClassOK, of(0.5), of(2), 5 * time.Second, 1},
		{"b", enginemetrics.ClassOK, of(0.9), of(7), 10 * time.Second, 2},
		{"c", enginemetrics.ClassDuplicate, of(0.3), of(1), 0, 1},
		{"d", enginemetrics.ClassStale, of(0.9), of(50), 0, 1},
		{"e", enginemetrics.ClassUnknown, bad(enginemetrics.NotShown), of(1), 500 * time.Millisecond, 1},
		{"f", enginemetrics.ClassUnknown, bad(enginemetrics.NotANumber), of(0), 500 * time.Millisecond, 1},
		{"g", enginemetrics.ClassStale, of(0.1), of(0), 30500 * time.Millisecond, 1},
	}, got)

	c := enginemetrics.TakeCensus([]string{"a", "b", "c", "e", "x"}, r.Views)
	require.Equal(t, [5]int{2, 1, 2, 3, 0}, [5]int{c.OK, c.Duplicate, c.Unknown, c.Gone, c.Stale})

	t.Run("without the time of the scrapes, the living tell the dead", func(t *testing.T) {
		a := a
		a.Seen = nil
		r := enginemetrics.ReadAnswers(a, opts)
		require.Equal(t, enginemetrics.ClassOK, r.Views[3].Class)
		require.Equal(t, enginemetrics.ClassGone, enginemetrics.TakeCensus([]string{"a"}, r.Views).Replicas[3].Class)
	})
}

// TestAbsurdAnswers: what a server's answers must not say makes a replica unknown, by name,
// and spoils no other one.
func TestAbsurdAnswers(t *testing.T) {
	percent, err := enginemetrics.Lookup("vllm-percent")
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		kv, waiting string
		dialect     *enginemetrics.Dialect
		wantKV      enginemetrics.Value
		wantWaiting enginemetrics.Value
	}{
		"a percentage without being told": {kv: "75", waiting: "0", wantKV: bad(enginemetrics.AboveOne), wantWaiting: of(0)},
		"a percentage":                    {kv: "75", waiting: "0", dialect: percent, wantKV: of(0.75), wantWaiting: of(0)},
		"KV NaN":                          {kv: "NaN", waiting: "0", wantKV: bad(enginemetrics.NotANumber), wantWaiting: of(0)},
		"KV infinite":                     {kv: "+Inf", waiting: "0", wantKV: bad(enginemetrics.Infinite), wantWaiting: of(0)},
		"KV minus infinite":               {kv: "-Inf", waiting: "0", wantKV: bad(enginemetrics.Infinite), wantWaiting: of(0)},
		"KV negative":                     {kv: "-5", waiting: "0", wantKV: bad(enginemetrics.Negative), wantWaiting: of(0)},
		"a queue of NaN":                  {kv: "0.5", waiting: "NaN", wantKV: of(0.5), wantWaiting: bad(enginemetrics.NotANumber)},
		"a negative queue":                {kv: "0.5", waiting: "-1", wantKV: of(0.5), wantWaiting: bad(enginemetrics.Negative)},
		"an infinite queue":               {kv: "0.5", waiting: "+Inf", wantKV: of(0.5), wantWaiting: bad(enginemetrics.Infinite)},
	} {
		t.Run(name, func(t *testing.T) {
			opts := enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter, Model: "m"}
			sound := "0.25"
			if tc.dialect != nil {
				opts.Dialect, sound = tc.dialect, "25"
			}
			r := enginemetrics.ReadAnswers(enginemetrics.Answers{
				KVUsage: vector(t, `"pod":"a"`, tc.kv, `"pod":"b"`, sound),
				Waiting: vector(t, `"pod":"a"`, tc.waiting, `"pod":"b"`, "3"),
			}, opts)
			a, b := r.Views[0], r.Views[1]
			require.Equal(t, [2]enginemetrics.Value{tc.wantKV, tc.wantWaiting}, [2]enginemetrics.Value{a.KVUsage, a.Waiting})
			_, kvFlaw := tc.wantKV.Get()
			_, waitingFlaw := tc.wantWaiting.Get()
			known := kvFlaw == enginemetrics.None && waitingFlaw == enginemetrics.None
			require.Equal(t, known, a.Class == enginemetrics.ClassOK)
			require.Equal(t, known, a.Why == "")
			require.Equal(t, enginemetrics.ClassOK, b.Class)
			require.Equal(t, [2]enginemetrics.Value{of(0.25), of(3)}, [2]enginemetrics.Value{b.KVUsage, b.Waiting})
		})
	}
}

// TestOldAndNewNames: the query asks for both, and a server that has both of one replica with
// different labels has one replica, as full as the fuller of them.
func TestOldAndNewNames(t *testing.T) {
	r := enginemetrics.ReadAnswers(enginemetrics.Answers{
		KVUsage: vector(t, `"__name__":"vllm:kv_cache_usage_perc","pod":"a","engine":"0"`, "0.3", `"__name__":"vllm:gpu_cache_usage_perc","pod":"a"`, "0.4",
			`"__name__":"vllm:gpu_cache_usage_perc","pod":"b"`, "0.6"),
		Waiting: vector(t, `"pod":"a","engine":"0"`, "2", `"pod":"b"`, "1"),
	}, enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter, Model: "m"})
	require.Len(t, r.Views, 2)
	for i, want := range []enginemetrics.Value{of(0.4), of(0.6)} {
		require.Equal(t, enginemetrics.ClassOK, r.Views[i].Class, r.Views[i].Why)
		require.Equal(t, want, r.Views[i].KVUsage)
		require.Equal(t, 1, r.Views[i].Last.Ranks)
	}
}

func TestEmptyAnswers(t *testing.T) {
	opts := enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter, Model: "m", ModelLabel: "model_id"}
	none := vector(t)
	for name, tc := range map[string]struct {
		models *enginemetrics.Vector
		want   enginemetrics.Finding
	}{
		"other models": {vector(t, `"model_id":"b"`, "1", `"model_id":"a"`, "2", ``, "1"), enginemetrics.Finding{Kind: enginemetrics.LabelMismatch, Want: []string{"m"}, Seen: []string{"a", "b"}}},
		"no model":     {vector(t, ``, "1"), enginemetrics.Finding{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}},
		"nothing":      {none, enginemetrics.Finding{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}},
		"not asked":    {nil, enginemetrics.Finding{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := enginemetrics.ReadAnswers(enginemetrics.Answers{KVUsage: none, Waiting: none, Models: tc.models}, opts)
			require.Equal(t, []enginemetrics.Finding{tc.want}, r.Findings)
			require.True(t, enginemetrics.TakeCensus([]string{"a"}, r.Views, r.Findings...).Inert)
		})
	}
}

func TestAnswersOrderDoesNotMatter(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) *model.Sample {
		return &model.Sample{Metric: model.Metric{
			"pod":    rapid.SampledFrom([]model.LabelValue{"a", "b", ""}).Draw(t, "pod"),
			"engine": rapid.SampledFrom([]model.LabelValue{"0", "1", ""}).Draw(t, "engine"),
			"job":    rapid.SampledFrom([]model.LabelValue{"x", "y"}).Draw(t, "job"),
		}, Value: rapid.SampledFrom([]model.SampleValue{0, 0.1, 0.2, 0.3, 0.7, 1, 2, -1, model.SampleValue(math.Inf(1)), model.SampleValue(math.NaN()), 990, 100}).Draw(t, "value"), Timestamp: 1_000_000}
	})
	rapid.Check(t, func(t *rapid.T) {
		var a, b enginemetrics.Answers
		for _, v := range [][2]**enginemetrics.Vector{{&a.KVUsage, &b.KVUsage}, {&a.Waiting, &b.Waiting}, {&a.Running, &b.Running}, {&a.Seen, &b.Seen}} {
			series := rapid.SliceOf(one).Draw(t, "series")
			*v[0] = &enginemetrics.Vector{Series: series}
			*v[1] = &enginemetrics.Vector{Series: rapid.Permutation(series).Draw(t, "shuffled")}
		}
		opts := enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter}
		x := enginemetrics.ReadAnswers(a, opts)
		y := enginemetrics.ReadAnswers(b, opts)
		require.Equal(t, x, y)
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte(answer(`"pod":"a","engine":"0"`, "0.5", `"pod":"a","engine":"1"`, "NaN")))
	f.Add([]byte(`{"status":"error","errorType":"timeout","error":"late"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := enginemetrics.DecodeVector(body)
		if err != nil {
			return
		}
		r := enginemetrics.ReadAnswers(enginemetrics.Answers{KVUsage: &v, Waiting: &v, Seen: &v, Models: &v}, enginemetrics.ReportOptions{Dialect: enginemetrics.VLLM(), ReplicaLabels: []string{"replica", "pod"}, StaleAfter: enginemetrics.DefaultStaleAfter, Model: "m"})
		for _, view := range r.Views {
			sound(t, view.Last)
			require.GreaterOrEqual(t, view.Age, time.Duration(0))
		}
	})
}
