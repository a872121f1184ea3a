package study_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
	"remuda/tools/policystudy/study"
)

func small(dir string) study.Config {
	source := study.Source{Name: "made-up", Slots: 4, Make: func(seed uint64) (*scalesim.Trace, error) {
		rate := func(at time.Duration) float64 { return 2 + math.Sin(2*math.Pi*at.Hours()) }
		return synthetic.Poisson(seed, 3*time.Hour, rate, 4, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	}}
	grid := policies.DefaultGrid()
	grid.Aims, grid.Holds, grid.Goals = []float64{0.5, 0.8}, []time.Duration{5 * time.Minute}, []float64{0.9, 0.999}
	return study.Config{Sources: []study.Source{source}, Colds: []time.Duration{30 * time.Second}, TargetWait: 2 * time.Second, FirstSeed: 1, Seeds: 2, TuneSeeds: 1,
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
	require.Contains(t, text, "| made-up | 30s | 2s | at goal |")
	svg, err := os.ReadFile(filepath.Join(dir, "frontier-made-up-30s-wait-2s.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), ">made-up, cold start 30s, target wait 2s: second half</text>")
	settings, err := os.ReadFile(filepath.Join(dir, "settings.csv"))
	require.NoError(t, err)
	for _, name := range append(policies.Names(), study.Clairvoyant) {
		require.Contains(t, string(settings), "\nmade-up,30,2,"+name+",")
		require.Contains(t, string(svg), ">"+name+"</text>")
	}

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

// TestTargetWait: what is printed is what is scored. Runs of two target waits share a folder.
// Each row of the results is what a run with the row's target wait gives, and only that; both
// have a table, a line of the comparison and a plot of their own.
func TestTargetWait(t *testing.T) {
	dir := t.TempDir()
	c := small(dir)
	c.Policies, c.Clairvoyant, c.Seeds = []string{policies.Static, policies.Predictive}, 0, 1
	trace, err := c.Sources[0].Make(1)
	require.NoError(t, err)
	scored := func(r study.Row, wait time.Duration) float64 {
		n, err := strconv.Atoi(strings.TrimPrefix(r.Setting, "replicas="))
		require.NoError(t, err)
		w := scalesim.DefaultConfig()
		w.Slots, w.ColdStart, w.TargetWait, w.ScoreFrom, w.Initial = 4, r.Cold, wait, trace.Span/2, n
		policy, err := policies.Spec{Policy: policies.Static, Replicas: n}.New()
		require.NoError(t, err)
		res, err := scalesim.Run(w, trace, policy)
		require.NoError(t, err)
		return res.InTime
	}
	waits := []time.Duration{2 * time.Second, 5 * time.Second}
	for _, c.TargetWait = range waits {
		var log strings.Builder
		c.Parallel, c.Log = 1, &log
		require.NoError(t, study.Run(c))
		require.NotEmpty(t, log.String())
		for line := range strings.Lines(log.String()) {
			require.Contains(t, line, fmt.Sprintf("target wait %v:", c.TargetWait))
		}
	}
	rows, err := study.ReadFolder(dir)
	require.NoError(t, err)
	compared := map[time.Duration]int{}
	for _, r := range rows {
		if r.Policy != policies.Static || r.Phase != study.Score || r.InTime == 1 {
			continue
		}
		compared[r.TargetWait]++
		for _, wait := range waits {
			if in := scored(r, wait); wait == r.TargetWait {
				require.InDelta(t, in, r.InTime, 1e-4, "%+v", r)
			} else {
				require.Greater(t, math.Abs(in-r.InTime), 1e-3, "%+v", r)
			}
		}
	}
	require.Len(t, compared, len(waits))

	text, err := study.Report(dir, c.Goal, c.TuneSeeds)
	require.NoError(t, err)
	settings, err := os.ReadFile(filepath.Join(dir, "settings.csv"))
	require.NoError(t, err)
	for _, wait := range waits {
		require.Contains(t, text, fmt.Sprintf("\n| made-up | 30s | %v | tuned |", wait))
		require.Contains(t, string(settings), fmt.Sprintf("\nmade-up,30,%v,predictive,", wait.Seconds()))
		svg, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("frontier-made-up-30s-wait-%v.svg", wait)))
		require.NoError(t, err)
		require.Contains(t, string(svg), fmt.Sprintf("target wait %v: second half", wait))
	}
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
	for _, field := range []string{"sources", "cold starts", "target wait", "first seed", "tune seeds", `"none"`, "goal", "around", "dir", "parallel"} {
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
	lines := []string{"trace,cold_start_s,target_wait_s,phase,seed,policy,setting,gpu_hours,in_time,actions,started,wait_p999_s,requests"}
	add := func(phase, policy, setting string, hours, inTime [2]float64, actions int) {
		for i := range hours {
			lines = append(lines, fmt.Sprintf("x,30,2,%s,%d,%s,%s,%g,%g,%d,1,0,100", phase, i+1, policy, setting, hours[i], inTime[i], actions))
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
	require.Contains(t, text, "| x | 30s | 2s | at goal | 120.0 | hpa 150.0 | -20.0 % | | |")
	require.Contains(t, text, "| x | 30s | 2s | tuned | 120.0 | hpa 150.0 | -20.0 [-20.0, -20.0] % | 40 | 10 |")
	settings, err := os.ReadFile(filepath.Join(dir, "settings.csv"))
	require.NoError(t, err)
	require.Contains(t, string(settings), "\nx,30,2,kpa,aim=0.5 hold=1h0m0s,tuned,2,55,")
	require.Contains(t, string(settings), "\nx,30,2,hpa,aim=0.5 hold=1h0m0s,tuned best,2,150,")
	file, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Equal(t, text, string(file))
	require.FileExists(t, filepath.Join(dir, "frontier-x-30s-wait-2s.svg"))
}
