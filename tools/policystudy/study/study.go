package study

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"remuda/tools/policystudy/peers"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// The series that are no policies of a grid.
const (
	Clairvoyant = "clairvoyant"
	LowerBound  = "lower bound"
)

// Phase is whether a run is of the first half or of the second.
type Phase string

// The phases.
const (
	Train Phase = "train"
	Test  Phase = "test"
)

// Config is a study.
type Config struct {
	Sources []Source
	Colds   []time.Duration
	Waits   []time.Duration
	Phase   Phase
	// Policies are those to run; Grid their settings; Goal the share to start in time.
	Policies []string
	Grid     policies.Grid
	Goal     float64
	// DataAge and BatchSlope are those of scalesim.Config.
	DataAge    time.Duration
	BatchSlope float64
	// Bounds are the target waits with a clairvoyant plan (54 runs) and a lower bound.
	Bounds   []time.Duration
	Dir      string
	Parallel int
	Log      io.Writer
}

// Validate names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, v any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be %s", field, v, want))
		}
	}
	check(len(c.Sources) > 0, "traces", "empty", "at least one")
	check(len(c.Colds) > 0, "cold", "empty", "at least one cold start")
	check(len(c.Waits) > 0, "target-wait", "empty", "at least one target wait")
	for _, w := range c.Waits {
		check(w > 0, "target-wait", w, "above 0")
	}
	check(c.Phase == Train || c.Phase == Test, "phase", fmt.Sprintf("%q", c.Phase), "train or test")
	for _, p := range c.Policies {
		_, err := c.Grid.Specs(p, 1, 1)
		check(err == nil, "policies", fmt.Sprintf("%q", p), fmt.Sprintf("of %v", policies.Names()))
	}
	check(c.Goal > 0 && c.Goal < 1, "goal", c.Goal, "between 0 and 1")
	check(c.Dir != "", "dir", "empty", "a folder")
	check(c.Parallel >= 1, "parallel", c.Parallel, "at least 1")
	return errors.Join(errs...)
}

// Key names a run. Wait is 0 where one run counts for all target waits.
type Key struct {
	Trace   string        `json:"trace"`
	Cold    time.Duration `json:"cold_ns"`
	Phase   Phase         `json:"phase"`
	Policy  string        `json:"policy"`
	Setting string        `json:"setting"`
	Wait    time.Duration `json:"wait_ns,omitempty"`
}

// Row is a run with its days.
type Row struct {
	Key
	Spec policies.Spec `json:"spec"`
	Days []Day         `json:"days"`
	// WorstEpisode is the most late requests of an episode (see scalesim.Result), by Config.Waits.
	WorstEpisode []int64 `json:"worst_episode,omitempty"`
}

// Day is a day of a run, or what there is of it.
type Day struct {
	Requests int64   `json:"requests"`
	Late     []int64 `json:"late"` // by Config.Waits
	GPUHours float64 `json:"gpu_hours"`
	Actions  int     `json:"actions"`
	// WorstHour is the most late requests of an hour, by Config.Waits.
	WorstHour []int64 `json:"worst_hour"`
}

// outcome is a row for one target wait.
type outcome struct {
	requests, late, worst, actions float64
	hours                          float64
}

func (r *Row) outcome(wait, skip int) outcome {
	var o outcome
	for i, d := range r.Days {
		if i == skip {
			continue
		}
		o.requests += float64(d.Requests)
		o.late += float64(d.Late[wait])
		o.worst = math.Max(o.worst, float64(d.WorstHour[wait]))
		o.hours += d.GPUHours
		o.actions += float64(d.Actions)
	}
	return o
}

// inTime is the share that started in time.
func (o outcome) inTime() float64 { return 1 - o.late/math.Max(o.requests, 1) }

// runner is a study that goes on.
type runner struct {
	*Config
	mu   sync.Mutex
	done map[Key]Row
	out  *os.File
}

// Run does what is not yet in the folder.
func Run(c Config) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	rows, err := Read(c.Dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	r := &runner{Config: &c, done: map[Key]Row{}}
	for _, row := range rows {
		r.done[row.Key] = row
	}
	if r.out, err = os.OpenFile(filepath.Join(c.Dir, resultsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.out.Close()) }()
	for _, s := range c.Sources {
		if err := r.source(s); err != nil {
			return fmt.Errorf("trace %s: %w", s.Name, err)
		}
	}
	return nil
}

const resultsFile = "results.jsonl"

// Read reads the rows of a folder; a line that was cut off is left out.
func Read(dir string) ([]Row, error) {
	f, err := os.Open(filepath.Join(dir, resultsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Row
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Row
		if json.Unmarshal(lines.Bytes(), &r) == nil && len(r.Days) > 0 {
			out = append(out, r)
		}
	}
	return out, lines.Err()
}

// job is a run that is to be done.
type job struct {
	key   Key
	spec  policies.Spec
	world scalesim.Config
	make  func() (scalesim.Policy, error)
}

func (r *runner) source(s Source) error {
	trace, err := s.Load(r.Phase == Train)
	if err != nil {
		return err
	}
	var jobs []job
	for _, cold := range r.Colds {
		w := r.world(s, cold, trace)
		for _, policy := range r.Policies {
			specs, err := r.specs(s, policy, cold, trace)
			if err != nil {
				return err
			}
			for _, spec := range specs {
				key := Key{s.Name, cold, r.Phase, policy, spec.Setting(), 0}
				if policy != policies.Predictive {
					jobs = append(jobs, job{key, spec, w, spec.New})
					continue
				}
				for _, wait := range r.Waits {
					key.Wait, w.TargetWait = wait, wait
					jobs = append(jobs, job{key, spec, w, spec.New})
				}
				w.TargetWait = r.Waits[0]
			}
		}
		if r.Phase == Test {
			jobs = append(jobs, r.bounds(s, cold, w, trace)...)
		}
	}
	return r.all(jobs, trace)
}

// world is that of a source.
func (c *Config) world(s Source, cold time.Duration, trace *scalesim.Trace) scalesim.Config {
	w := scalesim.DefaultConfig()
	w.Slots, w.ColdStart, w.DataAge, w.BatchSlope = s.Slots, cold, c.DataAge, c.BatchSlope
	w.Waits, w.TargetWait = c.Waits, c.Waits[0]
	// The replicas that the first ten minutes need: a cold start of the whole trace is not scored.
	first := trace.Slice(0, min(10*time.Minute, trace.Span))
	w.Initial = min(int(1.5*first.Offered()/float64(s.Slots))+1, w.Max)
	w.ScoreFrom = trace.Span / 2
	if c.Phase == Train {
		w.ScoreFrom = trace.Span / 7 // a day of a week: all have warmed up
	}
	return w
}

// specs are the settings of a policy: its grid, or what training chose of it for some wait at
// the study's goal, and at half of its late requests.
func (r *runner) specs(s Source, policy string, cold time.Duration, trace *scalesim.Trace) ([]policies.Spec, error) {
	if r.Phase == Train || policy == policies.Predictive {
		return r.Grid.Specs(policy, trace.Offered()/(1+r.BatchSlope/2), s.Slots)
	}
	var rows []Row
	for _, row := range r.done {
		rows = append(rows, row)
	}
	seen := map[string]bool{}
	var out []policies.Spec
	late := 1 - r.Goal
	for i := range r.Waits {
		for _, goal := range []float64{r.Goal, 1 - late/2} {
			if row := choose(rows, s.Name, cold, Train, policy, i, 0, goal); row != nil && !seen[row.Setting] {
				seen[row.Setting] = true
				out = append(out, row.Spec)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no training with a cold start of %v: run -phase train first", policy, cold)
	}
	return out, nil
}

// choose is the cheapest setting of a policy that reaches the goal for a wait; where none does,
// the one that comes nearest.
func choose(rows []Row, trace string, cold time.Duration, phase Phase, policy string, wait int, own time.Duration, goal float64) *Row {
	sort.Slice(rows, func(i, j int) bool { return rows[i].Setting < rows[j].Setting })
	var best *Row
	var is outcome
	for i := range rows {
		x := &rows[i]
		if x.Trace != trace || x.Cold != cold || x.Phase != phase || x.Policy != policy || x.Wait != 0 && x.Wait != own {
			continue
		}
		o := x.outcome(wait, -1)
		switch {
		case best == nil, o.inTime() >= goal && is.inTime() < goal:
		case o.inTime() < goal && (is.inTime() >= goal || o.inTime() <= is.inTime()):
			continue
		case o.inTime() >= goal && o.hours >= is.hours:
			continue
		}
		best, is = x, o
	}
	return best
}

// bounds are the clairvoyant plan and the lower bound. They know everything, so their data are
// of the moment.
func (r *runner) bounds(s Source, cold time.Duration, w scalesim.Config, trace *scalesim.Trace) []job {
	var jobs []job
	for _, wait := range r.Bounds {
		world := w
		world.DataAge, world.TargetWait = 0, wait
		jobs = append(jobs, job{Key{s.Name, cold, Test, Clairvoyant, "", wait}, policies.Spec{}, world,
			func() (scalesim.Policy, error) { return peers.NewClairvoyant(world, trace, r.Goal) }},
			job{Key{s.Name, cold, Test, LowerBound, "", wait}, policies.Spec{}, world, nil})
	}
	return jobs
}

// all does the jobs that are not done.
func (r *runner) all(jobs []job, trace *scalesim.Trace) error {
	var (
		wg   sync.WaitGroup
		next = make(chan job)
		errs = make([]error, r.Parallel)
	)
	for i := range r.Parallel {
		wg.Go(func() {
			for j := range next {
				errs[i] = errors.Join(errs[i], r.do(j, trace))
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

func (r *runner) do(j job, trace *scalesim.Trace) error {
	begin := time.Now()
	row := Row{Key: j.key, Spec: j.spec}
	if j.make == nil {
		b, err := peers.LowerBound(j.world, trace, r.Goal)
		if err != nil {
			return err
		}
		row.Days = []Day{{GPUHours: b.GPUHours, Late: make([]int64, len(r.Waits)), WorstHour: make([]int64, len(r.Waits))}}
	} else {
		p, err := j.make()
		if err != nil {
			return fmt.Errorf("%s %s: %w", j.key.Policy, j.key.Setting, err)
		}
		res, err := scalesim.Run(j.world, trace, p)
		if err != nil {
			return err
		}
		row.Days, row.WorstEpisode = days(res.Hours, len(r.Waits)), res.WorstEpisode
	}
	text, err := json.Marshal(row)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[j.key] = row
	if r.Log != nil {
		o := row.outcome(0, -1)
		fmt.Fprintf(r.Log, "%s %v %s %s %s %v: %.1f GPU-h (%v)\n", j.key.Trace, j.key.Cold, j.key.Phase, j.key.Policy, strings.TrimSpace(j.key.Setting), j.key.Wait, o.hours, time.Since(begin).Round(time.Millisecond))
	}
	_, err = r.out.Write(append(text, '\n'))
	return err
}

// days sums hours up. A trace of hours has days of ten minutes only by name: less than two days
// are one.
func days(hours []scalesim.Hour, waits int) []Day {
	var out []Day
	for i, h := range hours {
		if i%24 == 0 {
			out = append(out, Day{Late: make([]int64, waits), WorstHour: make([]int64, waits)})
		}
		d := &out[len(out)-1]
		d.Requests += h.Requests
		d.GPUHours += h.GPUHours
		d.Actions += h.Actions
		for w, n := range h.LateAfter {
			d.Late[w] += n
			d.WorstHour[w] = max(d.WorstHour[w], n)
		}
	}
	return out
}
