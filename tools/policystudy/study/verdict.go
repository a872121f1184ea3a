package study

import (
	"fmt"
	"strings"

	"remuda/tools/policystudy/frontier"
	"remuda/tools/policystudy/policies"
)

// verdict compares ours with the best peer three ways: at the goal on the frontiers, with
// what hindsight would choose, and with what the first half chose. The last may miss the
// goal: it says by how much.
func (c *comparison) verdict(b *strings.Builder) error {
	var ours, hpa *series
	for _, s := range c.series {
		switch s.name {
		case policies.Predictive:
			ours = s
		case policies.HPA:
			hpa = s
		}
	}
	if ours == nil {
		return nil
	}
	hours := func(s *series) (float64, bool) { return s.atGoal, s.reachesAtGoal }
	if peer := c.cheapest(hours); peer != nil && ours.reachesAtGoal {
		fmt.Fprintf(b, "| %s | %v | %v | at goal | %.1f | %s %.1f | %+.1f %% | | |\n", c.Trace, c.Cold, c.TargetWait, ours.atGoal, peer.name, peer.atGoal, 100*(ours.atGoal/peer.atGoal-1))
	} else {
		fmt.Fprintf(b, "| %s | %v | %v | at goal | - | - | ours or all peers miss the goal | | |\n", c.Trace, c.Cold, c.TargetWait)
	}
	if err := c.pair(b, "best", ours, hpa, func(s *series) int { return s.best }); err != nil {
		return err
	}
	return c.pair(b, "tuned", ours, hpa, func(s *series) int { return s.tuned })
}

// cheapest is the peer with the fewest hours, of those that have any.
func (c *comparison) cheapest(hours func(*series) (float64, bool)) *series {
	var best *series
	least := 0.0
	for _, s := range c.series {
		if s.name == policies.Predictive || s.name == Clairvoyant {
			continue
		}
		if h, ok := hours(s); ok && (best == nil || h < least) {
			best, least = s, h
		}
	}
	return best
}

// pair writes one line for a choice of settings. Only peers whose choice reaches the goal
// on the second half count, as saving by being late is no saving.
func (c *comparison) pair(b *strings.Builder, what string, ours, hpa *series, which func(*series) int) error {
	chosen := func(s *series) *setting {
		if i := which(s); i >= 0 {
			return &s.settings[i]
		}
		return nil
	}
	peer := c.cheapest(func(s *series) (float64, bool) {
		x := chosen(s)
		if x == nil || x.InTime.Mean < c.goal {
			return 0, false
		}
		return x.GPUHours.Mean, true
	})
	x := chosen(ours)
	if x == nil {
		fmt.Fprintf(b, "| %s | %v | %v | %s | - | | | | |\n", c.Trace, c.Cold, c.TargetWait, what)
		return nil
	}
	fmt.Fprintf(b, "| %s | %v | %v | %s | %s | ", c.Trace, c.Cold, c.TargetWait, what, c.outcome(x))
	if peer == nil {
		b.WriteString("none reaches the goal | |")
	} else {
		y := chosen(peer)
		difference, err := compared(x.rows, y.rows)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%s %s | %s %% |", peer.name, c.outcome(y), difference)
	}
	if hpa != nil && chosen(hpa) != nil {
		fmt.Fprintf(b, " %.0f | %.0f |\n", chosen(hpa).Actions, x.Actions)
		return nil
	}
	fmt.Fprintf(b, " - | %.0f |\n", x.Actions)
	return nil
}

// outcome is a setting's cost, and its share where that misses the goal.
func (c *comparison) outcome(x *setting) string {
	s := fmt.Sprintf("%.1f", x.GPUHours.Mean)
	if x.InTime.Mean < c.goal {
		s += fmt.Sprintf(" (misses: %.4f %%)", 100*x.InTime.Mean)
	}
	return s
}

// compared gives how much dearer the one is, in percent, by the seeds that both have.
func compared(ours, peers []Row) (string, error) {
	of := map[uint64]float64{}
	for _, r := range peers {
		of[r.Seed] = r.GPUHours
	}
	var more, none []float64
	for _, r := range ours {
		if h, ok := of[r.Seed]; ok && h > 0 {
			more, none = append(more, 100*(r.GPUHours/h-1)), append(none, 0)
		}
	}
	switch len(more) {
	case 0:
		return "-", nil
	case 1:
		return fmt.Sprintf("%+.1f", more[0]), nil
	}
	i, err := frontier.Paired(more, none, confidence)
	return fmt.Sprintf("%+.1f [%+.1f, %+.1f]", i.Mean, i.Low, i.High), err
}
