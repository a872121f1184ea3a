package study

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// Key tells runs apart.
type Key struct {
	Trace   string
	Cold    time.Duration
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

var columns = []string{"trace", "cold_start_s", "phase", "seed", "policy", "setting", "gpu_hours", "in_time", "actions", "started", "wait_p999_s", "requests"}

func (r *Row) record() []string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return []string{r.Trace, f(r.Cold.Seconds()), string(r.Phase), strconv.FormatUint(r.Seed, 10), r.Policy, r.Setting,
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
	seconds := func(i int) time.Duration { return time.Duration(float(i) * float64(time.Second)) }
	r := Row{Key: Key{Trace: rec[0], Cold: seconds(1), Phase: Phase(rec[2]), Seed: uint64(whole(3)), Policy: rec[4], Setting: rec[5]},
		GPUHours: float(6), InTime: float(7), Actions: int(whole(8)), Started: int(whole(9)), WaitP999: seconds(10), Requests: whole(11)}
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
		return cmp.Or(cmp.Compare(a.Trace, b.Trace), cmp.Compare(a.Cold, b.Cold), cmp.Compare(a.Phase, b.Phase),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Setting, b.Setting), cmp.Compare(a.Seed, b.Seed))
	})
	return rows, nil
}
