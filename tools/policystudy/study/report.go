package study

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"remuda/tools/policystudy/frontier"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

const confidence = 0.95

// Report compares the policies on the rows of a folder. It writes there, and returns, the
// comparison of ours with the peers (report.md), the table of all settings that were scored
// (settings.csv), and a plot of the frontier for each world
// (frontier-TRACE-COLD-wait-TARGETWAIT.svg).
func Report(dir string, goal float64, tuneSeeds int) (string, error) {
	rows, err := ReadFolder(dir)
	if err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "", fmt.Errorf("report on %s: it has no results*.csv with runs", dir)
	}
	var verdicts strings.Builder
	table := [][]string{settingColumns}
	for i := 0; i < len(rows); {
		j := i
		for j < len(rows) && rows[j].World == rows[i].World {
			j++
		}
		c, err := newComparison(rows[i:j], goal, tuneSeeds)
		if err != nil {
			return "", err
		}
		i = j
		if len(c.series) == 0 {
			continue
		}
		table = append(table, c.settings()...)
		if err := c.verdict(&verdicts); err != nil {
			return "", err
		}
		if err := c.draw(dir); err != nil {
			return "", err
		}
	}
	var settings bytes.Buffer
	if err := csv.NewWriter(&settings).WriteAll(table); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "settings.csv"), settings.Bytes(), 0o644); err != nil {
		return "", err
	}
	text := fmt.Sprintf(preface, 100*goal, 100*confidence) + verdicts.String()
	return text, os.WriteFile(filepath.Join(dir, "report.md"), []byte(text), 0o644)
}

const preface = `# Scaling policies on the second half of each trace

All policies see the same requests. A request is in time if it starts within the target wait
of its line. Each policy was tuned on the same grid on the first half: its *tuned* setting is the cheapest that starts %[1]g %% of the requests in time there. *best* is
the cheapest of the scored settings that does so on the second half: hindsight, for all
alike. *at goal* is the cost on the policy's own frontier of scored settings, between two of
them along the logarithm of the late share; "-" where none reaches the goal. settings.csv has
all settings that were scored, and results.csv every run. Intervals are of
%[2]g %% over seeds: Student's t for GPU-hours, actions and differences (paired by seed), bootstrap
for the share. Charged are starting, ready and draining replicas. An action is a change of
the wanted number.

The constants of predictive were chosen with both halves of ServeGen in view, and the number
of requests that its mean service time is over with Azure's hour and synthetic loads as well.
So the second halves are no fresh evidence for that policy, as they are for the peers. Besides,
it tunes itself while it runs. The peers' wider grid (aims to 95 %%, holds to two hours) stands
against that. A seed moves ServeGen's bursts within their ten minutes, or leaves out a tenth of
Azure's requests: the intervals speak of that chance, not of other days or other services.
The lengths of ServeGen's requests are drawn from Azure's, and do not change by the hour.

## Ours against the peers

| trace | cold start | target wait | what | ours | best peer | difference | HPA's actions | ours |
|---|---|---|---|---|---|---|---|---|
`

// comparison is that of the policies in one world.
type comparison struct {
	World
	goal   float64
	series []*series
}

// series is what one policy reached in it.
type series struct {
	name          string
	settings      []setting
	tuned, best   int // of settings, -1 if there is none
	atGoal        float64
	reachesAtGoal bool
}

// setting is a setting with its runs, by seed.
type setting struct {
	frontier.Point
	rows []Row
}

// newComparison takes the rows of one world.
func newComparison(rows []Row, goal float64, tuneSeeds int) (*comparison, error) {
	c := &comparison{World: rows[0].World, goal: goal}
	for _, name := range append(policies.Names(), Clairvoyant) {
		s := &series{name: name, tuned: -1, best: -1}
		tuned := choose(rows, c.World, name, goal, 1, tuneSeeds).tuned
		for _, r := range rows { // they are in the order of settings and seeds
			if r.Phase != Score || r.Policy != name {
				continue
			}
			if n := len(s.settings); n == 0 || s.settings[n-1].rows[0].Setting != r.Setting {
				s.settings = append(s.settings, setting{})
			}
			last := &s.settings[len(s.settings)-1]
			last.rows = append(last.rows, r)
		}
		var points []frontier.Point
		for i := range s.settings {
			x := &s.settings[i]
			var results []scalesim.Result
			for _, r := range x.rows {
				results = append(results, scalesim.Result{GPUHours: r.GPUHours, InTime: r.InTime, Actions: r.Actions})
			}
			var err error
			if x.Point, err = frontier.Summarize(name, x.rows[0].Setting, results, confidence); err != nil {
				return nil, err
			}
			points = append(points, x.Point)
			if x.Setting == tuned {
				s.tuned = i
			}
		}
		if best, ok := frontier.AtShare(points, goal); ok {
			s.best = slices.IndexFunc(s.settings, func(x setting) bool { return x.Setting == best.Setting })
		}
		s.atGoal, s.reachesAtGoal = frontier.HoursAt(points, goal)
		if len(s.settings) > 0 {
			c.series = append(c.series, s)
		}
	}
	return c, nil
}

// points of the picture.
func (c *comparison) points() []frontier.Point {
	var out []frontier.Point
	for _, s := range c.series {
		for _, x := range s.settings {
			out = append(out, x.Point)
		}
	}
	return out
}

// settingColumns are those of settings.csv. Intervals of one seed are its value.
var settingColumns = []string{"trace", "cold_start_s", "target_wait_s", "policy", "setting", "chosen", "seeds",
	"gpu_hours", "gpu_hours_low", "gpu_hours_high", "in_time", "in_time_low", "in_time_high", "actions", "policy_gpu_hours_at_goal"}

// settings are the rows of settings.csv: all that was scored.
func (c *comparison) settings() [][]string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	var table [][]string
	for _, s := range c.series {
		at := ""
		if s.reachesAtGoal {
			at = f(s.atGoal)
		}
		for i, x := range s.settings {
			var chosen []string
			if i == s.tuned && s.name != Clairvoyant {
				chosen = append(chosen, "tuned")
			}
			if i == s.best && s.name != Clairvoyant {
				chosen = append(chosen, "best")
			}
			table = append(table, []string{c.Trace, f(c.Cold.Seconds()), f(c.TargetWait.Seconds()), s.name, x.Setting, strings.Join(chosen, " "), strconv.Itoa(x.GPUHours.N),
				f(x.GPUHours.Mean), f(x.GPUHours.Low), f(x.GPUHours.High), f(x.InTime.Mean), f(x.InTime.Low), f(x.InTime.High), f(x.Actions), at})
		}
	}
	return table
}

// draw plots the frontier.
func (c *comparison) draw(dir string) error {
	chart := frontier.Chart{Title: fmt.Sprintf("%v: second half", c.World), Points: c.points(), Goal: c.goal}
	svg, err := chart.SVG()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("frontier-%s-%v-wait-%v.svg", c.Trace, c.Cold, c.TargetWait)), svg, 0o644)
}
