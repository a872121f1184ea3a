package study

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"remuda/internal/scalesim"
	"remuda/internal/scalesim/frontier"
	"remuda/internal/scalesim/policies"
)

const confidence = 0.95

// Report puts the rows of a folder into tables (also report.md) and one picture of the
// frontier for each trace and cold start (frontier-TRACE-COLD.svg).
func Report(dir string, goal float64, tuneSeeds int) (string, error) {
	rows, err := ReadFolder(dir)
	if err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "", fmt.Errorf("report on %s: it has no results*.csv with runs", dir)
	}
	var tables, verdicts strings.Builder
	for i := 0; i < len(rows); {
		j := i
		for j < len(rows) && rows[j].Trace == rows[i].Trace && rows[j].Cold == rows[i].Cold {
			j++
		}
		c, err := newComparison(rows[i:j], goal, tuneSeeds)
		if err != nil {
			return "", err
		}
		i = j
		if len(c.points()) == 0 {
			continue
		}
		c.table(&tables)
		if err := c.verdict(&verdicts); err != nil {
			return "", err
		}
		chart := frontier.Chart{Title: fmt.Sprintf("%s, cold start %v: second half", c.trace, c.cold), Points: c.points(), Goal: goal}
		svg, err := chart.SVG()
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("frontier-%s-%v.svg", c.trace, c.cold)), []byte(svg), 0o644); err != nil {
			return "", err
		}
	}
	text := fmt.Sprintf(preface, 100*goal, 100*confidence) + verdicts.String() + "\n## All settings that were scored\n" + tables.String()
	if err := os.WriteFile(filepath.Join(dir, "report.md"), []byte(text), 0o644); err != nil {
		return "", err
	}
	return text, nil
}

const preface = `# Scaling policies on the second half of each trace

All policies see the same requests. Each was tuned on the same grid on the first half: its
*tuned* setting is the cheapest that starts %[1]g %% of the requests in time there. *best* is
the cheapest of the scored settings that does so on the second half: hindsight, for all
alike. *at goal* is the cost on the policy's own frontier of scored settings, between two of
them along the logarithm of the late share; "-" where none reaches the goal. Intervals are of
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

| trace | cold start | what | ours | best peer | difference | HPA's actions | ours |
|---|---|---|---|---|---|---|---|
`

// comparison is one trace and cold start.
type comparison struct {
	trace  string
	cold   time.Duration
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

// newComparison takes the rows of one trace and cold start.
func newComparison(rows []Row, goal float64, tuneSeeds int) (*comparison, error) {
	c := &comparison{trace: rows[0].Trace, cold: rows[0].Cold, goal: goal}
	for _, name := range append(policies.Names(), Clairvoyant) {
		s := &series{name: name, tuned: -1, best: -1}
		tuned := choose(rows, c.trace, c.cold, name, goal, 1, tuneSeeds).tuned
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

// table writes all that was scored.
func (c *comparison) table(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s, cold start %v\n\n", c.trace, c.cold)
	b.WriteString("| policy | at goal | setting | | seeds | GPU-hours | % in time | actions |\n|---|---|---|---|---|---|---|---|\n")
	for _, s := range c.series {
		name, at := s.name, "-"
		if s.reachesAtGoal {
			at = fmt.Sprintf("%.1f", s.atGoal)
		}
		for i, x := range s.settings {
			var marks []string
			if i == s.tuned && s.name != Clairvoyant {
				marks = append(marks, "tuned")
			}
			if i == s.best && s.name != Clairvoyant {
				marks = append(marks, "best")
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %d | %s | %s | %.1f |\n", name, at, x.Setting, strings.Join(marks, ", "), x.GPUHours.N,
				interval("%.1f", x.GPUHours, 1), interval("%.4f", x.InTime, 100), x.Actions)
			name, at = "", ""
		}
	}
}

func interval(format string, i frontier.Interval, unit float64) string {
	mean := fmt.Sprintf(format, unit*i.Mean)
	if i.N < 2 {
		return mean
	}
	return fmt.Sprintf("%s ["+format+", "+format+"]", mean, unit*i.Low, unit*i.High)
}
