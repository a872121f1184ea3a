package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// seen is what a step measured.
type seen struct {
	text    string
	figures Figures
}

// note makes a seen of text alone.
func note(format string, args ...any) seen { return seen{text: fmt.Sprintf(format, args...)} }

// check is a group of steps that build on each other.
type check struct {
	r    *run
	name string
}

// step does one step within its time and notes what came of it. Whoever gets an
// error leaves the check: later steps build on this one.
func (c *check) step(ctx context.Context, what string, within time.Duration, f func(ctx context.Context) (seen, error)) error {
	limited, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it took longer than %s", within))
	defer cancel()
	began := time.Now()
	s, err := f(limited)
	if err != nil && limited.Err() != nil && errors.Is(err, limited.Err()) {
		err = fmt.Errorf("%w (%w)", context.Cause(limited), err)
	}
	row := Row{Check: c.name, What: what, Result: Pass, Seen: s.text, Figures: s.figures, Seconds: time.Since(began).Seconds()}
	if err != nil {
		row.Result = Fail
		row.Seen = err.Error()
		if s.text != "" {
			row.Seen = s.text + "; " + row.Seen
		}
	}
	c.r.add(row)
	return err
}

// fail notes what went wrong beside the steps.
func (c *check) fail(what string, err error) {
	c.r.add(Row{Check: c.name, What: what, Result: Fail, Seen: err.Error()})
}

// skip notes a step that has no meaning here.
func (c *check) skip(what, why string) {
	c.r.add(Row{Check: c.name, What: what, Result: Skip, Seen: why})
}

// add notes a row, and tells it to whoever watches.
func (r *run) add(row Row) {
	r.report.Rows = append(r.report.Rows, row)
	r.say("%-4s %s: %s: %s", strings.ToUpper(string(row.Result)), row.Check, row.What, row.Seen)
}

// pollEvery is how often something that cannot tell by itself is looked at.
const pollEvery = 5 * time.Millisecond

// errEnded is wrapped where a process that is needed has ended.
var errEnded = errors.New("has ended")

// await looks until f is content, or says what it last complained of. What needs a
// process that has ended is given up at once.
func await(ctx context.Context, f func(ctx context.Context) error) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-t.C:
		}
	}
}
