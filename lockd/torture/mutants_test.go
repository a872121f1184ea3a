//go:build e2e

package torture

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/long"
)

// hooks are the calls of testdata/mutants.go: in a file of lockd, the text that
// gives way to another.
var hooks = []struct{ file, text, hooked string }{
	{"server.go", "range effects {", "range s.mutate(effects) {"},
	{"server.go", "doc, err := json.Marshal(document{s.cfg.Node, next.Records})", "mutateWrite(); doc, err := json.Marshal(document{s.cfg.Node, next.Records})"},
	{"conn.go", "return s.machine.Closed(now, c.id)", "return s.mutateClosed(now, c, s.machine.Closed(now, c.id))"},
	{"conn.go", "return s.machine.Acquire(now, c.id, req.Group, req.Holder, req.Token, c.peer)",
		"req, peer := s.mutateAcquire(req, c.peer); return s.machine.Acquire(now, c.id, req.Group, req.Holder, req.Token, peer)"},
}

// buildMutants builds this test binary with a lockd that has the hooks and the
// mutants. The files of lockd stay as they are: the compiler reads others in their
// place.
func buildMutants(t *testing.T) string {
	t.Helper()
	lockd, err := filepath.Abs("..")
	require.NoError(t, err)
	mutants, err := filepath.Abs(filepath.Join("testdata", "mutants.go"))
	require.NoError(t, err)
	sources := map[string]string{}
	for _, h := range hooks {
		if sources[h.file] == "" {
			raw, err := os.ReadFile(filepath.Join(lockd, h.file))
			require.NoError(t, err)
			sources[h.file] = string(raw)
		}
		require.Equal(t, 1, strings.Count(sources[h.file], h.text), "%s must have this once: %s", h.file, h.text)
		sources[h.file] = strings.Replace(sources[h.file], h.text, h.hooked, 1)
	}
	dir := t.TempDir()
	replace := map[string]string{filepath.Join(lockd, "mutants.go"): mutants}
	for file, source := range sources {
		hooked := filepath.Join(dir, file)
		require.NoError(t, os.WriteFile(hooked, []byte(source), 0o600))
		replace[filepath.Join(lockd, file)] = hooked
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, raw, 0o600))
	binary := filepath.Join(dir, "mutants.test")
	out, err := exec.Command("go", "test", "-c", "-tags", "e2e", "-overlay", overlay, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// TestMutantsAreFound: the search must find a lockd that takes the end of a
// connection for the holder's death, one that gives the lock to whoever has any
// token, and one that replies before the record is on disk. The build itself is
// not to blame: without a mutant it passes. The short form has the first of them.
func TestMutantsAreFound(t *testing.T) {
	binary := buildMutants(t)
	mutants := []string{"eof"}
	if long.Enabled() {
		mutants = []string{"", "eof", "token", "fsync"}
	}
	for _, mutant := range mutants {
		t.Run("mutant="+mutant, func(t *testing.T) {
			cfg := config(t)
			cfg.LockdBinary, cfg.LockdEnv = binary, []string{"REMUDA_LOCKD_MUTANT=" + mutant}
			cfg.For, cfg.Limit = 30*time.Second, 30*time.Second
			if mutant == "" {
				cfg.For, cfg.Limit = 5*time.Second, 5*time.Second
			}
			report, err := Run(t.Context(), cfg)
			require.NoError(t, err)
			if mutant == "" {
				require.Empty(t, report.Violations, report.History)
				require.NotZero(t, report.Grants)
				return
			}
			require.NotEmpty(t, report.Violations, "the mutant was not found: %s", report)
			t.Logf("found after %s: %s", report.Took, report.Violations[0])
		})
	}
}
