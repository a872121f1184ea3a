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

	"remuda/tools/policystudy/study"
)

// writeTrace makes an hour in the documented CSV.
func writeTrace(t *testing.T) string {
	rng := rand.New(rand.NewPCG(1, 1))
	var csv strings.Builder
	csv.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	at := 0.0
	for range 3600 {
		at += rng.ExpFloat64()
		fmt.Fprintf(&csv, "%.3f,%d,%d\n", at, 1+rng.IntN(2000), 1+rng.IntN(400))
	}
	path := filepath.Join(t.TempDir(), "mine.csv")
	require.NoError(t, os.WriteFile(path, []byte(csv.String()), 0o600))
	return path
}

// TestStudy: a CSV of one's own is trained on its first half, tested on its second and
// reported for each target wait; what is done is not done again, and a test needs a training.
func TestStudy(t *testing.T) {
	dir, trace := t.TempDir(), writeTrace(t)
	do := func(phase string) (string, string, error) {
		var out, log strings.Builder
		err := run([]string{"-trace", trace, "-slots", "4", "-cold", "30s", "-target-wait", "1s,7s", "-bounds", "7s", "-policies", "static,kpa,predictive", "-phase", phase, "-dir", dir}, &out, &log)
		return out.String(), log.String(), err
	}
	_, _, err := do("test")
	require.ErrorContains(t, err, "run -phase train first")
	_, log, err := do("train")
	require.NoError(t, err)
	require.Contains(t, log, "mine 30s train kpa")
	_, log, err = do("train")
	require.NoError(t, err)
	require.Empty(t, log, "all was done")
	_, _, err = do("test")
	require.NoError(t, err)
	rows, err := study.Read(dir)
	require.NoError(t, err)
	hours := map[string]float64{}
	for _, r := range rows {
		if r.Phase == study.Test && r.Wait == 7*time.Second {
			hours[r.Policy] += r.Days[0].GPUHours
		}
	}
	require.Positive(t, hours[study.LowerBound])
	require.Greater(t, hours[study.Clairvoyant], hours[study.LowerBound])
	text, _, err := do("report")
	require.NoError(t, err)
	require.Contains(t, text, "| mine | 30s | 1s |")
	require.Contains(t, text, "### mine, cold start 30s, target wait 7s")
}

func TestMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"target-wait is 0s":       {"-target-wait", "0s", "-trace", "diurnal"},
		"invalid value":           {"-cold", "one"},
		"-trace is":               {"-trace", "other"},
		"the trace azure":         {"-trace", "azure", "-traces", t.TempDir(), "-dir", t.TempDir()},
		"-scale is":               {"-trace", "servegen", "-scale", "2"},
		"want flags only":         {"azure"},
		"no results of the phase": {"-phase", "report", "-dir", t.TempDir()},
	} {
		require.ErrorContains(t, run(args, &strings.Builder{}, &strings.Builder{}), want)
	}
}
