package enginemetrics_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
)

func TestGetClassifies(t *testing.T) {
	for name, c := range map[string]struct {
		in    enginemetrics.Value
		want  float64
		flaw  enginemetrics.Flaw
		share enginemetrics.Flaw
	}{
		"absent":            {enginemetrics.Value{}, 0, enginemetrics.Absent, enginemetrics.Absent},
		"zero":              {enginemetrics.Of(0), 0, enginemetrics.None, enginemetrics.None},
		"negative zero":     {enginemetrics.Of(math.Copysign(0, -1)), 0, enginemetrics.None, enginemetrics.None},
		"one is a share":    {enginemetrics.Of(1), 1, enginemetrics.None, enginemetrics.None},
		"percent-scaled":    {enginemetrics.Of(70), 70, enginemetrics.None, enginemetrics.AboveOne},
		"NaN":               {enginemetrics.Of(math.NaN()), 0, enginemetrics.NotANumber, enginemetrics.NotANumber},
		"positive infinity": {enginemetrics.Of(math.Inf(1)), 0, enginemetrics.Infinite, enginemetrics.Infinite},
		"negative infinity": {enginemetrics.Of(math.Inf(-1)), 0, enginemetrics.Infinite, enginemetrics.Infinite},
		"negative":          {enginemetrics.Of(-5), 0, enginemetrics.Negative, enginemetrics.Negative},
	} {
		t.Run(name, func(t *testing.T) {
			got, flaw := c.in.Get()
			require.Equal(t, c.flaw, flaw)
			require.Equal(t, math.Float64bits(c.want), math.Float64bits(got))
			_, flaw = c.in.Share()
			require.Equal(t, c.share, flaw)
		})
	}
}

func TestJSONKeepsEveryBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0})).Draw(t, "f")
		b, err := json.Marshal(enginemetrics.Of(f))
		require.NoError(t, err)
		var back enginemetrics.Value
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, enginemetrics.Of(f).String(), back.String())
		_, want := enginemetrics.Of(f).Get()
		_, got := back.Get()
		require.Equal(t, want, got)
	})
}

func TestJSONOfAbsentAndWrongValues(t *testing.T) {
	type holder struct {
		A enginemetrics.Value `json:"a,omitzero"`
		B enginemetrics.Value `json:"b"`
	}
	b, err := json.Marshal(holder{})
	require.NoError(t, err)
	require.JSONEq(t, `{"b":null}`, string(b))
	var h holder
	require.NoError(t, json.Unmarshal(b, &h))
	require.Equal(t, holder{}, h)
	require.NoError(t, json.Unmarshal([]byte(`{"a":"Inf"}`), &h))
	require.Equal(t, enginemetrics.Of(math.Inf(1)), h.A)
	for _, wrong := range []string{`"nan"`, `"1"`, `true`, `[]`, `{}`, `1e999`} {
		require.ErrorContains(t, json.Unmarshal([]byte(`{"a":`+wrong+`}`), &h), "must be a number", wrong)
	}
}

func TestFlawsSurviveJSON(t *testing.T) {
	for _, flaw := range []enginemetrics.Flaw{enginemetrics.NotANumber, enginemetrics.TooLarge, enginemetrics.Unreadable, enginemetrics.Contradictory,
		enginemetrics.RankMissing, enginemetrics.Mismatch, enginemetrics.NotShown, enginemetrics.AboveOne} {
		v := enginemetrics.Flawed(flaw)
		_, got := v.Get()
		require.Equal(t, flaw, got)
		b, err := json.Marshal(v)
		require.NoError(t, err)
		var back enginemetrics.Value
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, v, back)
	}
	// A NaN of the outside never looks like one of those.
	_, flaw := enginemetrics.Of(math.Float64frombits(0x7FF8000300000001)).Get()
	require.Equal(t, enginemetrics.NotANumber, flaw)
}

func TestNoNumberIsAbsent(t *testing.T) {
	all := enginemetrics.Of(math.Float64frombits(math.MaxUint64))
	require.False(t, all.IsZero())
	require.True(t, math.IsNaN(all.Raw()))
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint64Max(math.MaxUint64-1).Draw(t, "bits")
		v := enginemetrics.Of(math.Float64frombits(bits))
		require.False(t, v.IsZero())
		if f := math.Float64frombits(bits); !math.IsNaN(f) {
			require.Equal(t, bits, math.Float64bits(v.Raw()))
		}
		require.Equal(t, math.Float64bits(v.Raw()), math.Float64bits(v.Or(7)))
	})
	require.Equal(t, 7.0, enginemetrics.Value{}.Or(7))
	require.Zero(t, enginemetrics.Value{}.Raw())
}
