package study

import (
	"cmp"
	"slices"
)

// choice is what of a policy is scored.
type choice struct {
	// tuned is the setting that the first half chose; hindsight those that the second would.
	tuned     string
	hindsight []string
}

func (c choice) all() []string { return append([]string{c.tuned}, c.hindsight...) }

// mean is a setting in the mean over seeds.
type mean struct {
	setting       string
	hours, inTime float64
	n             int
}

// means of a policy's settings in a world and phase, the cheapest first.
func means(rows []Row, w World, phase Phase, policy string, seeds int) []mean {
	at := map[string]int{}
	var out []mean
	// Sums in one order, whatever the order of the rows.
	var mine []Row
	for _, r := range rows {
		if r.World == w && r.Phase == phase && r.Policy == policy && r.Seed <= uint64(seeds) {
			mine = append(mine, r)
		}
	}
	slices.SortFunc(mine, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Setting, b.Setting), cmp.Compare(a.Seed, b.Seed))
	})
	for _, r := range mine {
		i, ok := at[r.Setting]
		if !ok {
			i = len(out)
			at[r.Setting] = i
			out = append(out, mean{setting: r.Setting})
		}
		m := &out[i]
		m.hours, m.inTime, m.n = m.hours+r.GPUHours, m.inTime+r.InTime, m.n+1
	}
	for i := range out {
		out[i].hours /= float64(out[i].n)
		out[i].inTime /= float64(out[i].n)
	}
	slices.SortFunc(out, func(a, b mean) int {
		return cmp.Or(cmp.Compare(a.hours, b.hours), cmp.Compare(b.inTime, a.inTime), cmp.Compare(a.setting, b.setting))
	})
	return out
}

// choose picks the settings of a policy that are scored.
func choose(rows []Row, w World, policy string, goal float64, around, seeds int) choice {
	var c choice
	best := -1.0
	for _, m := range means(rows, w, Tune, policy, seeds) {
		if m.inTime >= goal {
			c.tuned = m.setting
			break
		}
		if m.inTime > best { // none reaches it so far: the nearest
			best, c.tuned = m.inTime, m.setting
		}
	}
	reach, below := 0, []mean{}
	for _, m := range means(rows, w, Grid, policy, seeds) {
		if m.inTime >= goal {
			if reach < around {
				c.hindsight = append(c.hindsight, m.setting)
			}
			reach++
			continue
		}
		if reach == 0 {
			below = append(below, m)
		}
	}
	slices.SortStableFunc(below, func(a, b mean) int { return cmp.Compare(b.inTime, a.inTime) })
	for _, m := range below[:min(around, len(below))] {
		c.hindsight = append(c.hindsight, m.setting)
	}
	return c
}
