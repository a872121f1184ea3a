package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Config says what to run and for how long.
type Config struct {
	// Binary is a program that calls Play first. Required.
	Binary string
	// LockdBinary plays lockd, with LockdEnv added to its environment. Empty for
	// Binary.
	LockdBinary string
	LockdEnv    []string
	// Seed is of the random choices. How processes interleave is not repeated.
	Seed uint64
	// Groups are locks, and Seats are processes that want each of them.
	Groups, Seats int
	// Kills are the SIGKILLs to send, and For is how long to go on at least. A
	// run ends when both are reached, or at the first violation.
	Kills int
	For   time.Duration
	// Limit is how long to go on at most; 0 for no limit.
	Limit time.Duration
	// Logf is told of the run's course.
	Logf func(format string, args ...any)
}

// DefaultConfig suits two processors.
func DefaultConfig() Config {
	return Config{
		Groups: 4, // enough for lockd to do several things at once
		Seats:  3, // a primary, a shadow, and one that waits behind it
		Logf:   func(string, ...any) {},
	}
}

// Report is what a run did and found.
type Report struct {
	// Rounds have a lockd with a fresh state file each.
	Rounds int
	// HolderKills and LockdKills are the SIGKILLs that ended a process.
	HolderKills, LockdKills int
	// Lives are processes that wanted a lock; Grants are those that got it.
	Lives, Grants int
	// Fenced are processes that lockd has killed.
	Fenced int
	// Stops are holders that were stopped, Cuts those that closed their
	// connection and lived on, Claims the attempts with another's token.
	Stops, Cuts, Claims int
	// Kept are holders that asked again and were given the same grant.
	Kept int
	Took time.Duration
	// Violations are what the witnesses saw; none is expected.
	Violations []string
	// History is of the round with the violations: what was done, each group's
	// operations, and lockd's log.
	History string
}

func (r *Report) String() string {
	return fmt.Sprintf("%d kills (%d of holders and waiters, %d of lockd) in %s: %d lives, %d grants, %d fenced, %d stopped, %d cut off, %d kept, %d claims, %d rounds, %d violations",
		r.HolderKills+r.LockdKills, r.HolderKills, r.LockdKills, r.Took.Round(100*time.Millisecond), r.Lives, r.Grants, r.Fenced, r.Stops, r.Cuts, r.Kept, r.Claims,
		r.Rounds, len(r.Violations))
}

// roundKills bounds a round, so that its history is soon checked.
const roundKills = 500

// Run searches. The error says that the search could not be made; what it found
// is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if cfg.Binary == "" || cfg.Groups < 1 || cfg.Seats < 1 || cfg.Logf == nil {
		return nil, errors.New("torture: binary, groups, seats and logf must be set")
	}
	if cfg.LockdBinary == "" {
		cfg.LockdBinary = cfg.Binary
	}
	report := &Report{}
	began := time.Now()
	over := func() bool { return cfg.Limit > 0 && time.Since(began) >= cfg.Limit }
	for len(report.Violations) == 0 && ctx.Err() == nil && !over() {
		kills := report.HolderKills + report.LockdKills
		if kills >= cfg.Kills && time.Since(began) >= cfg.For {
			break
		}
		goal := roundKills
		if cfg.Kills > kills {
			goal = min(goal, cfg.Kills-kills)
		}
		limit := time.Duration(0)
		if cfg.Limit > 0 {
			limit = cfg.Limit - time.Since(began)
		}
		if err := runRound(ctx, cfg, cfg.Seed+uint64(report.Rounds), goal, limit, report); err != nil {
			return report, fmt.Errorf("torture: round %d: %w", report.Rounds, err)
		}
		report.Rounds++
		report.Took = time.Since(began)
		cfg.Logf("after round %d: %s", report.Rounds, report)
	}
	return report, nil
}

// tail is the end of a file.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
