package conformance_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"remuda/internal/testkit/parallel"
)

// childEnv makes the test binary play a client process.
const childEnv = "REMUDA_GMS_CONFORMANCE_CHILD"

// remuda is the binary under test, world-readable as its directory is.
var remuda string

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := playClient(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "client process:", err)
			os.Exit(1)
		}
		return
	}
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (int, error) {
	if err := errors.Join(chooseBackend(), os.Setenv(suiteEnv, fmt.Sprint(os.Getpid()))); err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "gms-conformance")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 1, err
	}
	if bin := os.Getenv("REMUDA_BIN"); bin != "" {
		remuda = filepath.Join(bin, "remuda")
		if _, err := os.Stat(remuda); err != nil {
			return 1, fmt.Errorf("REMUDA_BIN: %w", err)
		}
	} else {
		remuda = filepath.Join(dir, "remuda")
		build := exec.Command("go", "build", "-o", remuda, "./cmd/remuda")
		build.Dir = filepath.Join("..", "..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build remuda: %w\n%s", err, out)
		}
	}
	parallel.Raise("8") // most tests wait for a server, not for a processor
	code := m.Run()
	return code, stopShared()
}
