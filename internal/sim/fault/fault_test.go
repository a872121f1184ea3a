package fault_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim/fault"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	base := fault.Set{SlowFactor: 2, Hang: fault.HangGeneration, SlowLatency: fault.Duration(time.Second)}
	tests := []struct {
		name, object string
		want         fault.Set
	}{
		{"nothing", `{}`, base},
		{"one more", ` {"error500": true} `, fault.Set{SlowFactor: 2, Hang: fault.HangGeneration, SlowLatency: fault.Duration(time.Second), Error500: true}},
		{"changed", `{"slow_factor":3.5,"slow_latency":"20ms"}`, fault.Set{SlowFactor: 3.5, Hang: fault.HangGeneration, SlowLatency: fault.Duration(20 * time.Millisecond)}},
		{"off by zero", `{"slow_factor":0,"hang":"","slow_latency":"0s"}`, fault.Set{}},
		{"off by null", `{"slow_factor":null,"hang":null,"slow_latency":null}`, fault.Set{}},
		{"off by null and on", `{"hang":null,"crash":true}`, fault.Set{SlowFactor: 2, SlowLatency: fault.Duration(time.Second), Crash: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := base.Merge([]byte(tt.object))
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		``:                               "must be a JSON object",
		`null`:                           "must be a JSON object",
		`[]`:                             "must be a JSON object",
		`{"slow":2}`:                     `unknown field "slow"`,
		`{"slow":null}`:                  `unknown field "slow"`,
		`{"crash":1}`:                    "cannot unmarshal number",
		`{"slow_latency":5}`:             `must be text, as in "50ms"`,
		`{"slow_latency":"5"}`:           "must be a number and a unit",
		`{"slow_latency":"-5s"}`:         "slow_latency is -5s",
		`{"hang":"everything"}`:          `hang is "everything": must be generation, all`,
		`{"wake":"maybe","garbage":"x"}`: `garbage is "x": must be sse, json, http`,
		`{"slow_factor":-1}`:             "slow_factor is -1",
		`{"leak_bytes":-1}`:              "leak_bytes is -1",
		`{"take_bytes":-1}`:              "take_bytes is -1",
		`{"crash_after_tokens":-7}`:      "crash_after_tokens is -7",
		`{"error500_every":-5}`:          "error500_every is -5",
		`{"crash":true} x`:               "invalid character",
		`{"crash":true}{}`:               "invalid character",
		`{"crash":true`:                  "unexpected end",
	} {
		before := fault.Set{FailHealth: true}
		got, err := before.Merge([]byte(object))
		require.ErrorContains(t, err, want, object)
		assert.Equal(t, before, got, "a bad set changes nothing")
	}
}

func TestEverySetSurvivesJSON(t *testing.T) {
	t.Parallel()
	set := fault.Set{
		SlowFactor: 2, SlowLatency: fault.Duration(time.Millisecond), FirstTokenDelay: fault.Duration(time.Minute),
		Hang: fault.HangAll, Crash: true, CrashAfterTokens: 3, LeakBytes: 1 << 40, TakeBytes: 9, Sleep: fault.SleepSlow, Wake: fault.WakeCorrupt, FailHealth: true,
		Error500: true, Error500Every: 5, Garbage: fault.GarbageHTTP, GarbageAfterTokens: 5, DropAfterTokens: 6,
	}
	for v, i := reflect.ValueOf(set), 0; i < v.NumField(); i++ {
		assert.False(t, v.Field(i).IsZero(), "the test leaves out %s", v.Type().Field(i).Name)
	}
	b, err := json.Marshal(set)
	require.NoError(t, err)
	got, err := fault.Set{}.Merge(b)
	require.NoError(t, err)
	assert.Equal(t, set, got)
}

func TestAssign(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]fault.Set{
		"slow_factor=2.5":        {SlowFactor: 2.5},
		"slow_latency=20ms":      {SlowLatency: fault.Duration(20 * time.Millisecond)},
		"hang=all":               {Hang: fault.HangAll},
		"crash":                  {Crash: true},
		"fail_health=true":       {FailHealth: true},
		"error500=false":         {},
		"drop_after_tokens=4":    {DropAfterTokens: 4},
		"leak_bytes=1073741824":  {LeakBytes: 1 << 30},
		"wake=corrupt":           {Wake: fault.WakeCorrupt},
		"garbage_after_tokens=0": {},
	} {
		got, err := fault.Set{}.Assign(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		"nope=1":         `fault "nope": must be one of slow_factor`,
		"hang=x\"}":      "hang is",
		"hang":           "cannot unmarshal",
		"slow_factor=no": "cannot unmarshal",
		"":               "must be one of",
	} {
		_, err := fault.Set{}.Assign(text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestHelpNamesEveryFault(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimRight(fault.Help(), "\n"), "\n")
	require.Len(t, lines, len(fault.Names()))
	for i, name := range fault.Names() {
		assert.Equal(t, name, strings.Fields(lines[i])[0])
	}
}

func TestBox(t *testing.T) {
	t.Parallel()
	b := fault.NewBox(fault.Set{Crash: true})
	set, changed := b.Watch()
	assert.True(t, set.Crash)
	_, err := b.Update(func(s fault.Set) (fault.Set, error) { return s, assert.AnError })
	require.ErrorIs(t, err, assert.AnError)
	select {
	case <-changed:
		t.Fatal("a refused update was announced")
	default:
	}
	_, err = b.Update(func(fault.Set) (fault.Set, error) { return fault.Set{Error500: true}, nil })
	require.NoError(t, err)
	<-changed
	assert.Equal(t, fault.Set{Error500: true}, b.Get())
}
