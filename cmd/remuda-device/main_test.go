package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunByHand(t *testing.T) {
	for _, tc := range []struct {
		name       string
		args       []string
		code       int
		out, inErr string
	}{
		{name: "no arguments", code: 1, inErr: "does not run as a program of its own"},
		{name: "how to install it", code: 1, inErr: `plugin_dir = "/opt/nomad/plugins"`},
		{name: "version", args: []string{"-version"}, out: "remuda "},
		{name: "unknown flag", args: []string{"-x"}, code: 2, inErr: "-x"},
		{name: "help", args: []string{"-h"}, code: 0, inErr: "To install it"},
		{name: "argument", args: []string{"serve"}, code: 2, inErr: "serve"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("NOMAD_PLUGIN_MAGIC_COOKIE", "")
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, run(tc.args, &stdout, &stderr))
			require.Contains(t, stdout.String(), tc.out)
			require.Contains(t, stderr.String(), tc.inErr)
		})
	}
}
