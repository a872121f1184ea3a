// Package built gives tests a program of this repository as users run it: without the race
// detector, and without test code.
package built

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Copy returns the path of a copy of the program name, which is the package in the working
// directory. REMUDA_BIN names a directory where it is built, as make does; without it Copy
// builds it.
func Copy(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if dir := os.Getenv("REMUDA_BIN"); dir != "" {
		from := filepath.Join(dir, name)
		_, err := os.Stat(from) // By this the go command knows which program was tested.
		require.NoError(t, err, "REMUDA_BIN")
		out, err := exec.CommandContext(t.Context(), "cp", from, path).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return path
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-p", "1", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}
