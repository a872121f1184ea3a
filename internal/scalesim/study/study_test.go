package study_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/scalesim"
	"remuda/internal/scalesim/policies"
	"remuda/internal/scalesim/study"
)

func small(dir string) study.Config {
	source := study.Source{Name: "made-up", Slots: 4, Make: func(seed uint64) (*scalesim.Trace, error) {
		rate := func(at time.Duration) float64 { return 2 + math.Sin(2*math.Pi*at.Hours()) }
		return scalesim.Poisson(seed, 3*time.Hour, rate, 4, scalesim.DefaultLengths(), scalesim.DefaultSpeed())
	}}
	grid := policies.DefaultGrid()
	grid.Aims, grid.Holds, grid.Goals = []float64{0.5, 0.8}, []time.Duration{5 * time.Minute}, []float64{0.9, 0.999}
	return study.Config{Sources: []study.Source{source}, Colds: []time.Duration{30 * time.Second}, FirstSeed: 1, Seeds: 2, TuneSeeds: 1,
		Clairvoyant: 1, Policies: policies.Names(), Grid: grid, Goal: 0.99, Around: 1, Dir: dir, Parallel: 2}
}

// TestSmoke runs a whole small study, cuts its last line off, goes on, and reports.
func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	c := small(dir)
	var log strings.Builder
	c.Parallel, c.Log = 1, &log
	require.NoError(t, study.Run(c))
	text, err := study.Report(dir, c.Goal, c.TuneSeeds)
	require.NoError(t, err)
	for _, name := range append(policies.Names(), study.Clairvoyant, "Ours against the peers") {
		require.Contains(t, text, name)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "frontier-made-up-30s.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), "</svg>")

	file := filepath.Join(dir, "results.csv")
	all, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, all[:len(all)-20], 0o644))
	log.Reset()
	require.NoError(t, study.Run(c))
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "only the run that was cut off is done again:\n%s", log.String())
	again, err := study.Report(dir, c.Goal, c.TuneSeeds)
	require.NoError(t, err)
	require.Equal(t, text, again)
}

// TestParts: parts by policies and seeds, put together, report what one study does.
func TestParts(t *testing.T) {
	one, parts := t.TempDir(), t.TempDir()
	require.NoError(t, study.Run(small(one)))
	for i, names := range [][]string{policies.Names()[:4], policies.Names()[4:]} {
		for seed := 1; seed <= 2; seed++ {
			c := small(parts)
			c.Policies, c.Part, c.FirstSeed, c.Seeds = names, string(rune('a'+2*i+seed)), seed, 1
			require.NoError(t, study.Run(c))
		}
	}
	want, err := study.Report(one, 0.99, 1)
	require.NoError(t, err)
	got, err := study.Report(parts, 0.99, 1)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestBad(t *testing.T) {
	err := study.Run(study.Config{Policies: []string{"none"}})
	for _, field := range []string{"sources", "cold starts", "first seed", "tune seeds", `"none"`, "goal", "around", "dir", "parallel"} {
		require.ErrorContains(t, err, field)
	}
	_, err = study.ReadRows("f.csv", strings.NewReader("a,b\n"))
	require.ErrorContains(t, err, "its header is")
	_, err = study.Report(t.TempDir(), 0.99, 1)
	require.ErrorContains(t, err, "no results")
	_, err = study.ServeGen(t.TempDir(), 1, 1)
	require.ErrorContains(t, err, "the ServeGen trace")
	_, err = study.Azure(t.TempDir(), 1)
	require.ErrorContains(t, err, "the Azure trace")
}

// TestBisect: halving the lines of the grid runs less of it on the second half, and finds the
// setting of each policy that all of it would have found.
func TestBisect(t *testing.T) {
	cheapest := func(bisect bool) (found map[string]string, runs int) {
		c := small(t.TempDir())
		c.Bisect, c.Seeds, c.Clairvoyant = bisect, 0, 0
		c.Grid.Aims = []float64{0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}
		require.NoError(t, study.Run(c))
		rows, err := study.ReadFolder(c.Dir)
		require.NoError(t, err)
		best := map[string]study.Row{}
		for _, r := range rows {
			if r.Phase != study.Grid {
				continue
			}
			runs++
			if b, ok := best[r.Policy]; r.InTime >= c.Goal && (!ok || r.GPUHours < b.GPUHours) {
				best[r.Policy] = r
			}
		}
		found = map[string]string{}
		for policy, r := range best {
			found[policy] = r.Setting
		}
		return found, runs
	}
	all, many := cheapest(false)
	halved, few := cheapest(true)
	require.Len(t, all, len(policies.Names()))
	require.Equal(t, all, halved)
	require.Less(t, few, 2*many/3)

	c := small(t.TempDir())
	c.Bisect, c.TuneSeeds = true, 2
	require.ErrorContains(t, study.Run(c), "tune seeds is 2: it must be 1 where the grid is bisected")
}

// TestReport: the comparison names the peer that is cheapest at the goal, pairs by seed, and
// says what misses the goal.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	lines := []string{"trace,cold_start_s,phase,seed,policy,setting,gpu_hours,in_time,actions,started,wait_p999_s,requests"}
	add := func(phase, policy, setting string, hours, inTime [2]float64, actions int) {
		for i := range hours {
			lines = append(lines, fmt.Sprintf("x,30,%s,%d,%s,%s,%g,%g,%d,1,0,100", phase, i+1, policy, setting, hours[i], inTime[i], actions))
		}
	}
	for _, phase := range []string{"tune", "score"} {
		add(phase, "hpa", "aim=0.5 hold=1h0m0s", [2]float64{100, 200}, [2]float64{1, 1}, 40)
		add(phase, "kpa", "aim=0.5 hold=1h0m0s", [2]float64{50, 60}, [2]float64{0.98, 0.98}, 90)
		add(phase, "predictive", "goal=0.99 lower=0.1", [2]float64{80, 160}, [2]float64{0.995, 1}, 10)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "results-a.csv"), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	text, err := study.Report(dir, 0.99, 2)
	require.NoError(t, err)
	require.Contains(t, text, "| x | 30s | at goal | 120.0 | hpa 150.0 | -20.0 % | | |")
	require.Contains(t, text, "| x | 30s | tuned | 120.0 | hpa 150.0 | -20.0 [-20.0, -20.0] % | 40 | 10 |")
	require.Contains(t, text, "| kpa | - | aim=0.5 hold=1h0m0s | tuned | 2 | 55.0 [")
	file, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Equal(t, text, string(file))
	require.FileExists(t, filepath.Join(dir, "frontier-x-30s.svg"))
}
