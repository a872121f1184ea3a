package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
		err := run([]string{"-trace", trace, "-slots", "4", "-cold", "30s", "-target-wait", "1s,7s", "-bounds", "1s,7s", "-policies", "static,kpa,predictive", "-phase", phase, "-dir", dir}, &out, &log)
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
		if r.Policy == study.Clairvoyant {
			late := r.Days[0].Late[slices.Index([]time.Duration{time.Second, 7 * time.Second}, r.Wait)]
			require.LessOrEqual(t, float64(late), 0.001*float64(r.Days[0].Requests), "the plan is for %s", r.Wait)
		}
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

// TestProfile: what remuda-predictive spends is all that it has, and each late request is counted once.
func TestProfile(t *testing.T) {
	var out, log strings.Builder
	require.NoError(t, run([]string{"-trace", writeTrace(t), "-slots", "4", "-cold", "30s", "-target-wait", "1s", "-goal", "0.9", "-phase", "profile", "-dir", t.TempDir()}, &out, &log))
	text := out.String()
	require.Contains(t, text, "mine, cold start 30s, target wait 1s, goal 0.9: ")
	parts := regexp.MustCompile(`(-?[\d.]+) replica-hours, +(-?\d+) %`).FindAllStringSubmatch(text, -1)
	require.Len(t, parts, 4, text)
	hours, percent := 0.0, 0.0
	for _, p := range parts {
		h, err := strconv.ParseFloat(p[1], 64)
		require.NoError(t, err)
		n, err := strconv.ParseFloat(p[2], 64)
		require.NoError(t, err)
		hours, percent = hours+h, percent+n
		require.Positive(t, h, text)
	}
	require.InDelta(t, 100, percent, 2, text)
	spent := regexp.MustCompile(`: ([\d.]+) GPU-hours`).FindStringSubmatch(text)
	require.Len(t, spent, 2, text)
	all, err := strconv.ParseFloat(spent[1], 64)
	require.NoError(t, err)
	require.InDelta(t, all, hours, all/50, text) // what drains is spent, too
	late := regexp.MustCompile(`late: (\d+) while ordered replicas started, (\d+) while none did; (\d+) episodes`).FindStringSubmatch(text)
	require.Len(t, late, 4, text)
	require.NotEqual(t, []string{"0", "0", "0"}, late[1:], "at 90 % some are late")
}

func TestMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"target-wait is 0s":       {"-target-wait", "0s", "-trace", "diurnal"},
		"invalid value":           {"-cold", "one"},
		"-trace is":               {"-trace", "other"},
		"the trace missing":       {"-trace", "missing.csv", "-dir", t.TempDir()},
		"the ServeGen trace":      {"-trace", "missing.tar.gz", "-dir", t.TempDir()},
		"-scale is":               {"-trace", "servegen.tar.gz", "-scale", "2"},
		"want flags only":         {"azure"},
		"no results of the phase": {"-phase", "report", "-dir", t.TempDir()},
	} {
		require.ErrorContains(t, run(args, &strings.Builder{}, &strings.Builder{}), want)
	}
}
