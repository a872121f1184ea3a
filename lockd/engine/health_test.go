package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/lockd/engine/dialect"
)

// TestProgress: an engine hangs that has requests and whose figures stand still. A prefill, in
// which the KV cache grows chunk by chunk and no token is counted, is work.
func TestProgress(t *testing.T) {
	t.Parallel()
	busy := func(mark string) dialect.Usage { return dialect.Usage{Running: 1, Progress: mark} }
	unreachable := errors.New("connection refused")
	type look struct {
		usage dialect.Usage
		err   error
		want  time.Duration
	}
	for name, looks := range map[string][]look{
		"works":                       {{busy("1"), nil, 0}, {busy("2"), nil, 0}, {busy("3"), nil, 0}},
		"hangs":                       {{busy("1"), nil, 0}, {busy("1"), nil, 1}, {busy("1"), nil, 2}},
		"works again":                 {{busy("1"), nil, 0}, {busy("1"), nil, 1}, {busy("2"), nil, 0}, {busy("2"), nil, 1}},
		"has nothing to do":           {{dialect.Usage{Progress: "1"}, nil, 0}, {dialect.Usage{Progress: "1"}, nil, 0}},
		"gets a request and hangs":    {{dialect.Usage{Progress: "1"}, nil, 0}, {busy("1"), nil, 1}, {busy("1"), nil, 2}},
		"its queue stands still":      {{dialect.Usage{Waiting: 3, Progress: "1"}, nil, 0}, {dialect.Usage{Waiting: 4, Progress: "1"}, nil, 1}},
		"has no counters":             {{busy(""), nil, 0}, {busy(""), nil, 0}},
		"does not report":             {{dialect.Usage{}, dialect.ErrUnknown, 0}, {dialect.Usage{}, dialect.ErrUnknown, 0}},
		"does not answer":             {{busy("1"), nil, 0}, {dialect.Usage{}, unreachable, 1}, {dialect.Usage{}, unreachable, 2}},
		"does not answer for a while": {{busy("1"), nil, 0}, {dialect.Usage{}, unreachable, 1}, {busy("2"), nil, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p progress
			now := time.Unix(1e9, 0)
			for i, l := range looks {
				require.Equal(t, l.want*time.Second, p.observe(now, l.usage, l.err), i)
				now = now.Add(time.Second)
			}
		})
	}
}

// TestAPauseOfTheMachineIsNoHang: after a pause the engine is looked at again before it is ended,
// and one that goes on failing is ended all the same.
func TestAPauseOfTheMachineIsNoHang(t *testing.T) {
	t.Parallel()
	busy := dialect.Usage{Running: 1, Progress: "1"}
	real := time.Unix(1000, 0)
	c := clock{most: 2 * time.Second}
	var p progress
	look := func(after time.Duration) time.Duration {
		real = real.Add(after)
		return p.observe(c.now(real), busy, nil)
	}
	require.Zero(t, look(0))
	require.Equal(t, time.Second, look(time.Second))
	require.Equal(t, 3*time.Second, look(time.Hour), "nobody has looked at the engine for an hour")
	require.Equal(t, 4*time.Second, look(time.Second))
}
