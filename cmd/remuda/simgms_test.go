package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimVerify(t *testing.T) {
	r := remuda(t, "sim", "-model", "m", "-gms-socket", "/nonexistent/gms_GPU-1_weights.sock", "-verify", "sometimes")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, `-verify is "sometimes": want always or import`)
}
