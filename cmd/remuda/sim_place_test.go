package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/cudatest"
	"remuda/internal/vram"
)

// TestWorkersCacheIsOnTheGPU: with the cuda backend a worker's memory is the driver's, which refuses
// what does not fit.
func TestWorkersCacheIsOnTheGPU(t *testing.T) {
	at, err := (&gmsMemory{backend: "cuda", cudaLibrary: cudatest.Build(t)}).place(cudatest.UUIDs[0], t.TempDir())
	require.NoError(t, err)
	const mib = 1 << 20
	held, err := at.Take(40*mib + 1) // of 64 MiB, in units of 2 MiB
	require.NoError(t, err)
	_, err = at.Take(24 * mib)
	require.ErrorIs(t, err, vram.ErrOutOfMemory)
	require.NoError(t, held.Free())
	require.NoError(t, held.Free(), "once more does nothing")
	held, err = at.Take(64 * mib)
	require.NoError(t, err)
	require.NoError(t, held.Free())

	_, err = (&gmsMemory{backend: "cuda", cudaLibrary: "/nonexistent/libcuda.so.1"}).place(cudatest.UUIDs[0], "")
	require.ErrorContains(t, err, "/nonexistent/libcuda.so.1")
}
