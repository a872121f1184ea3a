package measure_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/measure"
)

func TestGetClassifies(t *testing.T) {
	for name, c := range map[string]struct {
		in    measure.Value
		want  float64
		flaw  measure.Flaw
		share measure.Flaw
	}{
		"absent":            {measure.Value{}, 0, measure.Absent, measure.Absent},
		"zero":              {measure.Of(0), 0, measure.None, measure.None},
		"negative zero":     {measure.Of(math.Copysign(0, -1)), 0, measure.None, measure.None},
		"one is a share":    {measure.Of(1), 1, measure.None, measure.None},
		"percent-scaled":    {measure.Of(70), 70, measure.None, measure.AboveOne},
		"NaN":               {measure.Of(math.NaN()), 0, measure.NotANumber, measure.NotANumber},
		"positive infinity": {measure.Of(math.Inf(1)), 0, measure.Infinite, measure.Infinite},
		"negative infinity": {measure.Of(math.Inf(-1)), 0, measure.Infinite, measure.Infinite},
		"negative":          {measure.Of(-5), 0, measure.Negative, measure.Negative},
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
		b, err := json.Marshal(measure.Of(f))
		require.NoError(t, err)
		var back measure.Value
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, measure.Of(f).String(), back.String())
		_, want := measure.Of(f).Get()
		_, got := back.Get()
		require.Equal(t, want, got)
	})
}

func TestJSONOfAbsentAndWrongValues(t *testing.T) {
	type holder struct {
		A measure.Value `json:"a,omitzero"`
		B measure.Value `json:"b"`
	}
	b, err := json.Marshal(holder{})
	require.NoError(t, err)
	require.JSONEq(t, `{"b":null}`, string(b))
	var h holder
	require.NoError(t, json.Unmarshal(b, &h))
	require.Equal(t, holder{}, h)
	require.NoError(t, json.Unmarshal([]byte(`{"a":"Inf"}`), &h))
	require.Equal(t, measure.Of(math.Inf(1)), h.A)
	for _, wrong := range []string{`"nan"`, `"1"`, `true`, `[]`, `{}`, `1e999`} {
		require.ErrorContains(t, json.Unmarshal([]byte(`{"a":`+wrong+`}`), &h), "must be a number", wrong)
	}
}

func TestNoNumberIsAbsent(t *testing.T) {
	all := measure.Of(math.Float64frombits(math.MaxUint64))
	require.False(t, all.IsZero())
	require.True(t, math.IsNaN(all.Raw()))
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint64Max(math.MaxUint64-1).Draw(t, "bits")
		v := measure.Of(math.Float64frombits(bits))
		require.False(t, v.IsZero())
		require.Equal(t, math.Float64bits(math.Float64frombits(bits)), math.Float64bits(v.Raw()))
		require.Equal(t, math.Float64bits(v.Raw()), math.Float64bits(v.Or(7)))
	})
	require.Equal(t, 7.0, measure.Value{}.Or(7))
	require.Zero(t, measure.Value{}.Raw())
}
