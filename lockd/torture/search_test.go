//go:build e2e

package torture

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/long"
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
	cfg.Kills = long.Pick(200, 2000)
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
