package study

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"remuda/tools/policystudy/peers"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// job is one run that is to be done.
type job struct {
	key   Key
	world scalesim.Config
	trace *scalesim.Trace
	make  func() (scalesim.Policy, error)
}

// line is a group of a grid's settings on the second half, each leaner than the one before.
// Those before low are known to reach the goal, or to be safer than one that does; those
// from high on do not.
type line struct {
	jobs      []job
	low, high int
}

// next gives what is to run to know more of the line, nothing at the end.
func (l *line) next() []job {
	if l.low == l.high {
		return nil
	}
	return l.jobs[(l.low+l.high)/2:][:1]
}

// took narrows the line by the result of what next gave.
func (l *line) took(reached bool) {
	if middle := (l.low + l.high) / 2; reached {
		l.low = middle + 1
	} else {
		l.high = middle
	}
}

// tune runs the grid on the first half, and on the second what hindsight chooses from.
func (r *runner) tune(s Source, seed uint64) error {
	whole, err := s.Make(seed)
	if err != nil {
		return err
	}
	first, _ := whole.Halves()
	var jobs []job
	var lines []*line
	for _, cold := range r.Colds {
		for _, policy := range r.Policies {
			groups, err := r.Grid.Lines(policy, first.Offered(), s.Slots)
			if err != nil {
				return err
			}
			for _, group := range groups {
				l := &line{high: len(group)}
				for _, spec := range group {
					at := r.world(s, cold)
					w := r.simulated(s, cold, whole)
					w.ScoreFrom = first.Span / 28 // six hours of a week: all have warmed up
					jobs = append(jobs, job{Key{at, Tune, seed, policy, spec.Setting()}, w, first, spec.New})
					w.ScoreFrom = whole.Span / 2
					l.jobs = append(l.jobs, job{Key{at, Grid, seed, policy, spec.Setting()}, w, whole, spec.New})
				}
				lines = append(lines, l)
			}
		}
	}
	if err := r.all(jobs); err != nil {
		return err
	}
	return r.hindsight(lines)
}

// hindsight runs the lines: all of them, or what halving them asks for.
func (r *runner) hindsight(lines []*line) error {
	if !r.Bisect {
		var jobs []job
		for _, l := range lines {
			jobs = append(jobs, l.jobs...)
		}
		return r.all(jobs)
	}
	for {
		var jobs []job
		for _, l := range lines {
			jobs = append(jobs, l.next()...)
		}
		if len(jobs) == 0 {
			return nil
		}
		if err := r.all(jobs); err != nil {
			return err
		}
		for _, l := range lines {
			for _, j := range l.next() {
				l.took(r.done[j.key].InTime >= r.Goal)
			}
		}
	}
}

// score runs what was chosen on the second half.
func (r *runner) score(s Source, seed uint64) error {
	whole, err := s.Make(seed)
	if err != nil {
		return err
	}
	first, _ := whole.Halves()
	rows := make([]Row, 0, len(r.done))
	for _, row := range r.done {
		rows = append(rows, row)
	}
	var jobs []job
	for _, cold := range r.Colds {
		at := r.world(s, cold)
		w := r.simulated(s, cold, whole)
		w.ScoreFrom = whole.Span / 2
		for _, policy := range r.Policies {
			chosen := choose(rows, at, policy, r.Goal, r.Around, r.TuneSeeds)
			specs, err := r.Grid.Specs(policy, first.Offered(), s.Slots)
			if err != nil {
				return err
			}
			if policy == policies.Static { // its grid hangs on the seed's load
				specs = specs[:0]
				for n := 1; n <= w.Max; n++ {
					specs = append(specs, policies.Spec{Policy: policy, Replicas: n})
				}
			}
			for _, spec := range specs {
				if slices.Contains(chosen.all(), spec.Setting()) {
					jobs = append(jobs, job{Key{at, Score, seed, policy, spec.Setting()}, w, whole, spec.New})
				}
			}
		}
		if int(seed) <= r.Clairvoyant {
			jobs = append(jobs, job{Key{at, Score, seed, Clairvoyant, fmt.Sprintf("goal=%g", r.Goal)}, w, whole,
				func() (scalesim.Policy, error) { return peers.NewClairvoyant(w, whole, r.Goal) }})
		}
	}
	return r.all(jobs)
}

// all does the jobs that are not done.
func (r *runner) all(jobs []job) error {
	var (
		wg   sync.WaitGroup
		next = make(chan job)
		errs = make([]error, r.Parallel)
	)
	for i := range r.Parallel {
		wg.Go(func() {
			for j := range next {
				errs[i] = errors.Join(errs[i], r.do(j))
			}
		})
	}
	for _, j := range jobs {
		r.mu.Lock()
		_, done := r.done[j.key]
		r.mu.Unlock()
		if !done {
			next <- j
		}
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

func (r *runner) do(j job) error {
	begin := time.Now()
	p, err := j.make()
	if err != nil {
		return fmt.Errorf("%s %s: %w", j.key.Policy, j.key.Setting, err)
	}
	res, err := scalesim.Run(j.world, j.trace, p)
	if err != nil {
		return err
	}
	row := Row{Key: j.key, GPUHours: res.GPUHours, InTime: res.InTime, Actions: res.Actions, Started: res.Started, WaitP999: res.WaitP999, Requests: res.Requests}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[j.key] = row
	if r.Log != nil {
		fmt.Fprintf(r.Log, "%v: %s seed %d %s %s: %.1f GPU-h, %.4f %% in time, %d actions (%v)\n", j.key.World, j.key.Phase, j.key.Seed,
			j.key.Policy, j.key.Setting, res.GPUHours, 100*res.InTime, res.Actions, time.Since(begin).Round(time.Millisecond))
	}
	if err := r.out.Write(row.record()); err != nil {
		return err
	}
	r.out.Flush()
	return r.out.Error()
}
