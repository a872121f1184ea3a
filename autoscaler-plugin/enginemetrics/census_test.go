package enginemetrics_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
)

// view is what is known of a replica with this queue.
func view(replica string, class enginemetrics.Class, waiting float64) enginemetrics.View {
	return enginemetrics.View{Replica: replica, Class: class, Waiting: of(waiting), KVUsage: of(0.1), Running: of(1),
		Last: enginemetrics.Sample{Dialect: "vllm", Ranks: 1}}
}

// blind is a replica whose page has only the finding.
func blind(replica string, f enginemetrics.Finding) enginemetrics.View {
	return enginemetrics.View{Replica: replica, Class: enginemetrics.ClassUnknown, Last: enginemetrics.Sample{Dialect: "vllm", Findings: []enginemetrics.Finding{f}}}
}

func TestCensus(t *testing.T) {
	mismatch := enginemetrics.Finding{Kind: enginemetrics.LabelMismatch, Want: []string{"m"}, Seen: []string{"x"}}
	ok, stale, unknown, asleep, duplicate := enginemetrics.ClassOK, enginemetrics.ClassStale, enginemetrics.ClassUnknown, enginemetrics.ClassAsleep, enginemetrics.ClassDuplicate
	for name, tc := range map[string]struct {
		live  []string
		views []enginemetrics.View
		found []enginemetrics.Finding
		want  enginemetrics.Census // without Replicas
		why   string
	}{
		"nothing lives":        {want: enginemetrics.Census{}},
		"all well":             {live: []string{"a", "b"}, views: []enginemetrics.View{view("a", ok, 1), view("b", ok, 2)}, want: enginemetrics.Census{OK: 2}},
		"one is missing":       {live: []string{"a", "b"}, views: []enginemetrics.View{view("a", ok, 1)}, want: enginemetrics.Census{OK: 1, Unknown: 1}},
		"one has died":         {live: []string{"a"}, views: []enginemetrics.View{view("a", ok, 1), view("b", ok, 9)}, want: enginemetrics.Census{OK: 1, Gone: 1}},
		"only the dead report": {live: []string{"a"}, views: []enginemetrics.View{view("b", ok, 9)}, want: enginemetrics.Census{Unknown: 1, Gone: 1, Inert: true}, why: "no matching series for any of 1 replicas"},
		"all stale":            {live: []string{"a", "b"}, views: []enginemetrics.View{view("a", stale, 1), view("b", stale, 1)}, want: enginemetrics.Census{Stale: 2, Inert: true}, why: "none of 2 replicas has usable metrics: 0 unknown, 2 stale"},
		"all unknown":          {live: []string{"a"}, views: []enginemetrics.View{view("a", unknown, 1)}, want: enginemetrics.Census{Unknown: 1, Inert: true}, why: "1 unknown"},
		"all asleep":           {live: []string{"a"}, views: []enginemetrics.View{view("a", asleep, 0)}, want: enginemetrics.Census{Asleep: 1}},
		"scrapes disagree": {live: []string{"a"}, views: []enginemetrics.View{view("a", duplicate, 5)}, why: "1 duplicate",
			want: enginemetrics.Census{Duplicate: 1, Inert: true, Findings: []enginemetrics.Finding{{Kind: enginemetrics.DuplicateSeries, Seen: []string{"a"}}}}},
		"label mismatch": {live: []string{"a", "b"}, views: []enginemetrics.View{blind("a", mismatch), blind("b", mismatch)}, why: "no matching series: label mismatch: the engine's series are of model x and not of m",
			want: enginemetrics.Census{Unknown: 2, Inert: true, Findings: []enginemetrics.Finding{mismatch}}},
		"of the model as a whole": {live: []string{"a"}, found: []enginemetrics.Finding{mismatch}, why: "no matching series: label mismatch",
			want: enginemetrics.Census{Unknown: 1, Inert: true, Findings: []enginemetrics.Finding{mismatch}}},
		"findings of the dead do not count": {live: []string{"a"}, views: []enginemetrics.View{view("a", ok, 1), blind("b", mismatch)}, want: enginemetrics.Census{OK: 1, Gone: 1}},
		"no series": {live: []string{"a"}, views: []enginemetrics.View{blind("a", enginemetrics.Finding{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}})}, why: "no matching series: no series: the page has no series of vllm",
			want: enginemetrics.Census{Unknown: 1, Inert: true, Findings: []enginemetrics.Finding{{Kind: enginemetrics.NoSeries, Want: []string{"vllm"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := enginemetrics.TakeCensus(tc.live, tc.views, tc.found...)
			require.Contains(t, c.Why, tc.why)
			require.Equal(t, tc.why == "", c.Why == "")
			require.Len(t, c.Replicas, c.OK+c.Stale+c.Unknown+c.Asleep+c.Duplicate+c.Gone)
			c.Replicas, c.Why = nil, ""
			if len(c.Findings) == 0 {
				c.Findings = nil
			}
			require.Equal(t, tc.want, c)
		})
	}
}

func TestCensusOrderDoesNotMatter(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	one := rapid.Custom(func(t *rapid.T) enginemetrics.View {
		v := view(name.Draw(t, "replica"), rapid.SampledFrom([]enginemetrics.Class{enginemetrics.ClassOK, enginemetrics.ClassStale, enginemetrics.ClassUnknown}).Draw(t, "class"),
			float64(rapid.IntRange(0, 2).Draw(t, "waiting")))
		v.Age = time.Duration(rapid.IntRange(0, 2).Draw(t, "age"))
		v.KVUsage = rapid.SampledFrom([]enginemetrics.Value{of(0.5), of(0.6), absent, bad(enginemetrics.Negative), bad(enginemetrics.NotANumber)}).Draw(t, "kv")
		if rapid.Bool().Draw(t, "finding") {
			v.Last.Findings = []enginemetrics.Finding{{Kind: enginemetrics.NoSeries}}
		}
		return v
	})
	rapid.Check(t, func(t *rapid.T) {
		live := rapid.SliceOf(name).Draw(t, "live")
		views := rapid.SliceOfDistinct(one, func(v enginemetrics.View) string { return v.Replica }).Draw(t, "views")
		a := enginemetrics.TakeCensus(live, append([]enginemetrics.View{}, views...))
		b := enginemetrics.TakeCensus(rapid.Permutation(live).Draw(t, "live2"), rapid.Permutation(views).Draw(t, "views2"))
		require.Equal(t, a, b)
		if a.OK > 0 {
			require.False(t, a.Inert)
		}
	})
}
