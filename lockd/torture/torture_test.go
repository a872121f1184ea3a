//go:build e2e

package torture

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// config is of a run by this test binary. REMUDA_TORTURE_SEED repeats the
// choices of a run.
func config(t *testing.T) Config {
	t.Helper()
	cfg := DefaultConfig()
	var err error
	cfg.Binary, err = os.Executable()
	require.NoError(t, err)
	cfg.Logf = t.Logf
	cfg.Seed = uint64(time.Now().UnixNano())
	if s := os.Getenv("REMUDA_TORTURE_SEED"); s != "" {
		cfg.Seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("REMUDA_TORTURE_SEED=%d", cfg.Seed)
	return cfg
}

// TestNeverTwoHolders is the search. REMUDA_SOAK is how long to go on.
func TestNeverTwoHolders(t *testing.T) {
	cfg := config(t)
	cfg.Kills = 2000
	if s := os.Getenv("REMUDA_SOAK"); s != "" {
		var err error
		cfg.For, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	report, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	t.Log(report)
	require.Empty(t, report.Violations, report.History)
	require.GreaterOrEqual(t, report.HolderKills+report.LockdKills, cfg.Kills)
}

// TestMutantsAreFound: the search must find a lockd that takes the end of a
// connection for the holder's death, one that gives the lock to whoever has any
// token, and one that replies before the record is on disk. The build itself is
// not to blame: without a mutant it passes.
func TestMutantsAreFound(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "mutants.test")
	build := exec.Command("go", "test", "-c", "-tags", "e2e lockd_mutants", "-o", binary, ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, mutant := range []string{"", "eof", "token", "fsync"} {
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
