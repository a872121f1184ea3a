package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms/client"
)

func TestSimVerify(t *testing.T) {
	r := remuda(t, "sim", "-model", "m", "-gms-socket", "/nonexistent/gms_GPU-1_weights.sock", "-verify", "sometimes")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, `-verify is "sometimes": must be background, always or import`)
}

// TestEngineWithSharedWeights: what the shim needs to know of them.
func TestEngineWithSharedWeights(t *testing.T) {
	t.Setenv("REMUDA_GPU_UUIDS", "")
	t.Setenv("REMUDA_USE_GPUS", "")
	t.Setenv("GMS_SOCKET_DIR", "")
	t.Setenv("REMUDA_VERSION", "")
	t.Setenv("NOMAD_ALLOC_DIR", "")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"auto outside a task": {[]string{"-gms-socket", "auto"}, "neither $REMUDA_USE_GPUS nor $REMUDA_GPU_UUIDS is set"},
		"nowhere to record":   {[]string{"-gms-socket", "/nonexistent/gms_GPU-1_weights.sock"}, "gms-socket is set and record is empty"},
		"a bad backend":       {[]string{"-gms-backend", "tpu"}, `-gms-backend is "tpu"`},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"engine", "-no-consul", "-group", "m:v:r", "-engine-url", "http://127.0.0.1:1"}, tc.args...)
			r := remuda(t, append(args, "--", "true")...)
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.errout, tc.want)
		})
	}
	t.Setenv("NOMAD_ALLOC_DIR", "/alloc")
	require.Equal(t, "/alloc/data/remuda", defaultRecord())
	t.Setenv("GMS_SOCKET_DIR", "/gms")
	t.Setenv("REMUDA_GPU_UUIDS", "GPU-1,GPU-2")
	m := gmsMemory{}
	addresses, err := m.addresses("auto", "m:8b", "m:8b:v:r1")
	require.NoError(t, err)
	require.Equal(t, []string{client.Address("/gms/gms.sock", "GPU-1", "m:8b@0/1-of-2", "m:8b:v:r1"), client.Address("/gms/gms.sock", "GPU-2", "m:8b@0/2-of-2", "m:8b:v:r1")}, addresses)
	t.Setenv("REMUDA_VERSION", "12")
	t.Setenv("REMUDA_USE_GPUS", "GPU-2")
	addresses, err = m.addresses("auto", "m", "")
	require.NoError(t, err)
	require.Equal(t, []string{client.Address("/gms/gms.sock", "GPU-2", "m@12", "")}, addresses)
}
