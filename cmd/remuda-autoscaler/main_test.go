package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestByHand(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{name: "as what", code: 2, stderr: `must be ["strategy", NAME]`},
		{name: "help", args: []string{"-h"}, stderr: "plugin_dir"},
		{name: "version", args: []string{"-version"}, stdout: "remuda "},
		{name: "an unknown flag", args: []string{"-x"}, code: 2, stderr: "-x"},
		{name: "an unknown strategy", args: []string{"strategy", "remuda-magic"}, code: 2, stderr: `unknown strategy "remuda-magic": must be one of [remuda-capacity remuda-hpa remuda-utilization remuda-predictive]`},
		{name: "too many args", args: []string{"target", "m"}, code: 2, stderr: "args is"},
		{name: "not under nomad-autoscaler", args: []string{"target"}, code: 1, stderr: "It does not run as a program of its own"},
		{name: "help of replay", args: []string{"replay", "-h"}, stderr: "replay FILE|-"},
		{name: "replay of nothing", args: []string{"replay", "-"}, stdout: "0 decisions are the same, 0 differ"},
		{name: "replay of no JSON", args: []string{"replay", "-"}, stdin: "\nx\n", code: 1, stderr: "line 2"},
		{name: "replay of a file with a line that was cut", args: []string{"replay", "-"}, stdin: "{\"time\":\"2026-\n{\"call\":{\"state\":{}},\"answer\":{\"direction\":\"up\"}}\n", code: 1,
			stdout: "0 decisions are the same, 1 differ", stderr: "line 1: not a decision record"},
		{name: "replay without a file", args: []string{"replay"}, code: 2, stderr: "exactly one FILE"},
		{name: "replay of a file that is not there", args: []string{"replay", "/nowhere"}, code: 1, stderr: "/nowhere"},
		{name: "an answer that is another now", args: []string{"replay", "-"},
			stdin: `{"call":{"options":{"model":"m"}},"answer":{"direction":"up","current":0,"count":5,"reason":"r"}}`, code: 1, stdout: "0 decisions are the same, 1 differ", stderr: "model m"},
		{name: "a state that is elsewhere", args: []string{"replay", "-"},
			stdin: `{"call":{"options":{"model":"m"}},"answer":{},"state_hash":"00ff"}`, code: 1, stdout: "1 more start from a state in an earlier file"},
		{name: "inputs of the analyzer", args: []string{"input", "-"},
			stdin: `{"call":{"strategy":"remuda-capacity","options":{"model":"m","capacity":{"rules":"safe","config":{}}},"snapshot":{"model":"m"}},"answer":{}}`, stdout: `{"model":"m"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, c.code, run(append([]string{"remuda-autoscaler"}, c.args...), strings.NewReader(c.stdin), &out, &errs), errs.String())
			require.Contains(t, out.String(), c.stdout)
			require.Contains(t, errs.String(), c.stderr)
		})
	}
}
