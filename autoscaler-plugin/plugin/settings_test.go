package plugin_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
)

func TestLaterLayersGoOverEarlierOnes(t *testing.T) {
	r := plugin.ReadSettings(map[string]string{"a": "1", "b": "2", "c": "3"}, map[string]string{"b": " 5 ", "c": ""})
	require.Equal(t, 1, r.Whole("a", 9, 0, 10))
	require.Equal(t, 5, r.Whole("b", 9, 0, 10))
	require.Equal(t, 9, r.Whole("c", 9, 0, 10), "an empty value takes the earlier one away")
	require.NoError(t, r.Err())
}

func TestEveryBadValueIsNamedAtOnce(t *testing.T) {
	r := plugin.ReadSettings(map[string]string{
		"n": "NaN", "w": "1.5", "s": "maybe", "d": "5", "word": "safer", "json": "{", "kv_cache_treshold": "0.8", "low": "-1",
	})
	require.Equal(t, 0.8, r.Number("n", 0.8, 0, 1))
	require.Equal(t, 7, r.Whole("w", 7, 0, 10))
	require.True(t, r.Switch("s", true))
	require.Equal(t, time.Minute, r.Duration("d", time.Minute, 0, time.Hour))
	require.Equal(t, "safe", r.Word("word", "safe", "wva"))
	require.Equal(t, 3, r.Whole("low", 3, 0, 10))
	broken := errors.New("it is broken")
	r.Parsed("json", func(string) error { return broken })
	err := r.Err()
	require.ErrorIs(t, err, broken)
	for _, want := range []string{
		`n is "NaN": must be a number from 0 to 1`, `w is "1.5": must be a whole number from 0 to 10`, `s is "maybe": must be true or false`,
		`d is "5": must be a time from 0s to 1h0m0s, such as "30s"`, `word is "safer": must be safe or wva`, `json is invalid: it is broken`,
		`kv_cache_treshold is an unknown key: must be one of d, json, low, n, s, w, word`, `low is "-1": must be a whole number from 0 to 10`,
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestNomadsOwnKeysAreNoFault(t *testing.T) {
	r := plugin.ReadSettings(map[string]string{
		"nomad_address": "http://127.0.0.1:4646", "nomad_config_inherit": "true", "Job": "j", "Group": "g", "Namespace": "n",
		"dry-run": "true", "_nomad_autoscaler_grpc_timeout": "10s",
	})
	require.NoError(t, r.Err())
}

func TestController(t *testing.T) {
	for _, c := range []struct {
		name   string
		values map[string]string
		want   []string
		none   bool
	}{
		{name: "of the environment"},
		{name: "several", values: map[string]string{"controller": "http://a:1,http://b:2", "token": "t"}, want: []string{"http://a:1", "http://b:2"}},
		{name: "none", values: map[string]string{"controller": "none"}, none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := plugin.ReadSettings(c.values)
			got := r.Controller()
			require.NoError(t, r.Err())
			if c.none {
				require.Nil(t, got)
				return
			}
			require.Equal(t, c.want, got.Addresses)
			require.Equal(t, c.values["token"], got.Token)
		})
	}
}
