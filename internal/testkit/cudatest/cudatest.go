// Package cudatest makes a small fake of the CUDA driver, so that the path
// through dlopen is tested on machines without a GPU. Its memory is shared
// between processes as a GPU's is.
package cudatest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/fakecuda.c
var source []byte

// UUIDs are those of the first GPUs of the fake. It has two, or as many as
// FAKECUDA_GPUS says when the library is loaded; FAKECUDA_MEMORY is how many
// bytes each has.
var UUIDs = []string{
	"GPU-00102030-4050-6070-8090-a0b0c0d0e0f0",
	"GPU-01112131-4151-6171-8191-a1b1c1d1e1f1",
}

// Build compiles the library and returns its path; flags go to the compiler. A
// machine without gcc skips the test.
func Build(t testing.TB, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc to compile the fake driver with")
	}
	dir := t.TempDir()
	c, library := filepath.Join(dir, "fakecuda.c"), filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, c, "-lpthread"}, flags...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}
