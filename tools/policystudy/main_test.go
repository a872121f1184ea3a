package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/study"
)

// writeTrace makes an hour in the format of the Azure trace.
func writeTrace(t *testing.T, dir string) {
	rng := rand.New(rand.NewPCG(1, 1))
	var csv strings.Builder
	csv.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	at := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for range 3600 {
		at = at.Add(time.Duration(rng.ExpFloat64() * float64(time.Second)))
		fmt.Fprintf(&csv, "%s,%d,%d\n", at.Format("2006-01-02 15:04:05.0000000"), 1+rng.IntN(2000), 1+rng.IntN(400))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "azure-llm-2023-conv.csv"), []byte(csv.String()), 0o600))
}

// TestTargetWait: the flag -target-wait reaches every file of the study. Without it the study
// scores the wait that remuda-predictive aims at by default.
func TestTargetWait(t *testing.T) {
	traces := t.TempDir()
	writeTrace(t, traces)
	for want, args := range map[time.Duration][]string{2 * time.Second: nil, 7 * time.Second: {"-target-wait", "7s"}} {
		t.Run(want.String(), func(t *testing.T) {
			dir := t.TempDir()
			c, o, err := flags(append(args, "-traces", traces, "-trace", "azure", "-cold", "30", "-policies", policies.Static, "-seeds", "2", "-clairvoyant", "0", "-dir", dir))
			require.NoError(t, err)
			var out, log strings.Builder
			c.Log = &log
			require.NoError(t, run(c, o, &out))
			rows, err := study.ReadFolder(dir)
			require.NoError(t, err)
			require.NotEmpty(t, rows)
			for _, r := range rows {
				require.Equal(t, want, r.TargetWait)
			}
			table, err := os.ReadFile(filepath.Join(dir, "settings.csv"))
			require.NoError(t, err)
			require.Contains(t, string(table), fmt.Sprintf("\nazure,30,%v,static,", want.Seconds()))
			require.FileExists(t, filepath.Join(dir, fmt.Sprintf("frontier-azure-30s-wait-%v.svg", want)))
			require.Contains(t, log.String(), fmt.Sprintf("azure, cold start 30s, target wait %v: score", want))

			c, o, err = flags([]string{"-report", "-dir", dir})
			require.NoError(t, err)
			var again strings.Builder
			require.NoError(t, run(c, o, &again))
			require.Equal(t, out.String(), again.String())
		})
	}
}

func TestMistakes(t *testing.T) {
	for name, args := range map[string][]string{
		"target wait is 0s": {"-target-wait", "0", "-traces", t.TempDir(), "-trace", "azure", "-dir", t.TempDir()},
		"-cold is":          {"-cold", "1m"},
		"-trace is":         {"-trace", "other"},
		"the Azure trace":   {"-trace", "azure", "-traces", t.TempDir()},
		"want flags only":   {"azure"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "target") {
				writeTrace(t, args[3])
			}
			c, o, err := flags(args)
			if err == nil {
				err = run(c, o, &strings.Builder{})
			}
			require.ErrorContains(t, err, name)
		})
	}
}
