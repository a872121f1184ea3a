package study

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// Source makes a trace for a seed.
type Source struct {
	Name string
	// Slots of a replica in its world.
	Slots int
	Make  func(seed uint64) (*scalesim.Trace, error)
}

// Clairvoyant is the series of peers.Clairvoyant, which is not tuned.
const Clairvoyant = "clairvoyant"

// Config is a study.
type Config struct {
	Sources []Source
	Colds   []time.Duration
	// TargetWait is how long a request may wait and still count as started in time.
	TargetWait time.Duration
	// FirstSeed to FirstSeed+Seeds-1 are scored; those up to TuneSeeds (from 1) are tuned on.
	FirstSeed, Seeds, TuneSeeds int
	// Clairvoyant is for how many seeds the clairvoyant plan is made: it takes 54 runs each.
	Clairvoyant int
	Policies    []string
	Grid        policies.Grid
	Goal        float64
	// Bisect looks for a policy's hindsight settings by halving each line of its grid, as a
	// leaner setting is in time less often: about 17 runs in place of 40. It is for one seed
	// to tune on. Without it all settings run.
	Bisect bool
	// Around is how many hindsight settings a policy has on each side of the goal.
	Around int
	// Dir is where results go, in results.csv or, for a part, results-PART.csv.
	Dir, Part string
	// Parallel is how many runs go on at once.
	Parallel int
	// Log takes a line for each run.
	Log io.Writer
}

// Validate names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, v any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be %s", field, v, want))
		}
	}
	check(len(c.Sources) > 0, "sources", "empty", "at least one trace")
	check(len(c.Colds) > 0, "cold starts", "empty", "at least one")
	check(c.TargetWait > 0, "target wait", c.TargetWait, "above 0")
	check(c.FirstSeed >= 1, "first seed", c.FirstSeed, "at least 1")
	check(c.Seeds >= 0, "seeds", c.Seeds, "0 or more")
	check(c.TuneSeeds >= 1, "tune seeds", c.TuneSeeds, "at least 1")
	check(!c.Bisect || c.TuneSeeds == 1, "tune seeds", c.TuneSeeds, "1 where the grid is bisected")
	check(c.Clairvoyant >= 0, "clairvoyant", c.Clairvoyant, "0 or more")
	check(len(c.Policies) > 0, "policies", "empty", fmt.Sprintf("some of %v", policies.Names()))
	for _, p := range c.Policies {
		check(slices.Contains(policies.Names(), p), "policies", fmt.Sprintf("%q", p), fmt.Sprintf("of %v", policies.Names()))
	}
	check(c.Goal > 0 && c.Goal < 1, "goal", c.Goal, "between 0 and 1")
	check(c.Around >= 1, "around", c.Around, "at least 1")
	check(c.Dir != "", "dir", "empty", "a folder")
	check(c.Parallel >= 1, "parallel", c.Parallel, "at least 1")
	return errors.Join(errs...)
}

// world is where the policies are compared on a source.
func (c *Config) world(s Source, cold time.Duration) World {
	return World{Trace: s.Name, Cold: cold, TargetWait: c.TargetWait}
}

// simulated is the simulation's configuration of a world for one of its traces.
func (c *Config) simulated(s Source, cold time.Duration, t *scalesim.Trace) scalesim.Config {
	w := scalesim.DefaultConfig()
	w.Slots, w.ColdStart, w.TargetWait = s.Slots, cold, c.TargetWait
	// What the first minutes ask for, so that the start of the trace is nobody's fault.
	first := t.Slice(0, min(10*time.Minute, t.Span))
	w.Initial = min(int(1.5*first.Offered()/float64(s.Slots))+1, w.Max)
	return w
}

// runner is a study that goes on.
type runner struct {
	*Config
	mu   sync.Mutex
	done map[Key]Row
	out  *csv.Writer
}

// Run does what is not yet in the folder. Seeds to be scored come after all that are tuned
// on, as those say what to score: a part with other seeds needs the tuning in the folder,
// or does it itself.
func Run(c Config) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	rows, err := ReadFolder(c.Dir)
	if err != nil {
		return err
	}
	r := &runner{Config: &c, done: map[Key]Row{}}
	for _, row := range rows {
		r.done[row.Key] = row
	}
	f, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if r.out, err = appendTo(f); err != nil {
		return err
	}
	for _, s := range c.Sources {
		for seed := 1; seed <= c.TuneSeeds; seed++ {
			if err := r.tune(s, uint64(seed)); err != nil {
				return err
			}
		}
		for seed := c.FirstSeed; seed < c.FirstSeed+c.Seeds; seed++ {
			if err := r.score(s, uint64(seed)); err != nil {
				return err
			}
		}
	}
	return nil
}

// open opens the file of this part's results.
func (c *Config) open() (*os.File, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	name := "results.csv"
	if c.Part != "" {
		name = "results-" + c.Part + ".csv"
	}
	return os.OpenFile(filepath.Join(c.Dir, name), os.O_RDWR|os.O_CREATE, 0o644)
}

// appendTo goes to the end of results: a new file gets its header, and a line that was cut
// off is ended.
func appendTo(f *os.File) (*csv.Writer, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	out := csv.NewWriter(f)
	if size == 0 {
		return out, out.Write(columns)
	}
	last := []byte{0}
	if _, err := f.ReadAt(last, size-1); err != nil {
		return nil, err
	}
	if last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return out, err
}
