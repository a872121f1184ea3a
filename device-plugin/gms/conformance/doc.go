// Package conformance has only tests: a reading of the GMS wire protocol page
// that shares no code with the server. The tests start the real `remuda gms` (and
// its keeper), talk to its Unix sockets in raw frames, and play engines with
// processes of their own that they stop and kill.
//
// REMUDA_BIN names a directory with a built remuda; without it the tests build one.
//
// The suite runs in host memory. On a machine with a GPU, REMUDA_GMS_BACKEND=cuda
// runs it on the CUDA driver; REMUDA_GMS_GPU (a UUID) and REMUDA_GMS_CUDA_LIBRARY
// (a path) choose the GPU and the driver. The compiled suite needs no Go there:
//
//	go test -c -o gms-conformance ./device-plugin/gms/conformance
//	REMUDA_BIN=DIR REMUDA_GMS_BACKEND=cuda ./gms-conformance -test.v
//
// Tests that cannot run on a real GPU are skipped with "left out on cuda" and the
// reason. `make gpu-check` bundles all of it.
package conformance
