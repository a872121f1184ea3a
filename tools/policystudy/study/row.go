package study

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Phase is what a run was for.
type Phase string

// The phases; see the package comment.
const (
	Tune  Phase = "tune"
	Grid  Phase = "grid"
	Score Phase = "score"
)

// World is where policies are compared with each other.
type World struct {
	Trace string
	Cold  time.Duration
	// TargetWait is how long a request may wait and still count as started in time.
	TargetWait time.Duration
}

// String names the world in headings and logs.
func (w World) String() string {
	return fmt.Sprintf("%s, cold start %v, target wait %v", w.Trace, w.Cold, w.TargetWait)
}

// Key tells runs apart.
type Key struct {
	World
	Phase   Phase
	Seed    uint64
	Policy  string
	Setting string
}

// Row is one run.
type Row struct {
	Key
	GPUHours float64
	InTime   float64
	Actions  int
	Started  int
	WaitP999 time.Duration
	Requests int64
}

var columns = []string{"trace", "cold_start_s", "target_wait_s", "phase", "seed", "policy", "setting", "gpu_hours", "in_time", "actions", "started", "wait_p999_s", "requests"}

func (r *Row) record() []string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return []string{r.Trace, f(r.Cold.Seconds()), f(r.TargetWait.Seconds()), string(r.Phase), strconv.FormatUint(r.Seed, 10), r.Policy, r.Setting,
		f(r.GPUHours), f(r.InTime), strconv.Itoa(r.Actions), strconv.Itoa(r.Started), f(r.WaitP999.Seconds()), strconv.FormatInt(r.Requests, 10)}
}

func parseRow(rec []string) (Row, error) {
	var errs []error
	float := func(i int) float64 {
		v, err := strconv.ParseFloat(rec[i], 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q: it must be a number", columns[i], rec[i]))
		}
		return v
	}
	whole := func(i int) int64 {
		v, err := strconv.ParseInt(rec[i], 10, 64)
		if err != nil || v < 0 {
			errs = append(errs, fmt.Errorf("%s is %q: it must be a whole number", columns[i], rec[i]))
		}
		return v
	}
	seconds := func(i int) time.Duration { return time.Duration(math.Round(float(i) * float64(time.Second))) }
	r := Row{Key: Key{World: World{Trace: rec[0], Cold: seconds(1), TargetWait: seconds(2)}, Phase: Phase(rec[3]), Seed: uint64(whole(4)), Policy: rec[5], Setting: rec[6]},
		GPUHours: float(7), InTime: float(8), Actions: int(whole(9)), Started: int(whole(10)), WaitP999: seconds(11), Requests: whole(12)}
	return r, errors.Join(errs...)
}

// ReadRows reads results, each run once (the first wins). A last line that was cut off is
// passed over: its run is done again.
func ReadRows(name string, r io.Reader) ([]Row, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = -1
	var rows []Row
	for n := 1; ; n++ {
		rec, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if n == 1 {
			if !slices.Equal(rec, columns) {
				return nil, fmt.Errorf("read %s: its header is %q: it must be %q", name, rec, columns)
			}
			continue
		}
		if len(rec) != len(columns) {
			continue
		}
		row, err := parseRow(rec)
		if err != nil {
			return nil, fmt.Errorf("read %s: line %d: %w", name, n, err)
		}
		rows = append(rows, row)
	}
}

// ReadFolder reads all results*.csv of a folder, sorted, each run once.
func ReadFolder(dir string) ([]Row, error) {
	names, err := filepath.Glob(filepath.Join(dir, "results*.csv"))
	if err != nil {
		return nil, err
	}
	var rows []Row
	seen := map[Key]bool{}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		some, err := ReadRows(name, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, r := range some {
			if !seen[r.Key] {
				seen[r.Key] = true
				rows = append(rows, r)
			}
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Trace, b.Trace), cmp.Compare(a.Cold, b.Cold), cmp.Compare(a.TargetWait, b.TargetWait), cmp.Compare(a.Phase, b.Phase),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Setting, b.Setting), cmp.Compare(a.Seed, b.Seed))
	})
	return rows, nil
}
