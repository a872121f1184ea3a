package gpucheck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/internal/sim/gpu"
	"remuda/internal/version"
)

// endTime is what is kept of the budget to take everything down.
const endTime = 15 * time.Second

// run is one run of all checks.
type run struct {
	cfg    Config
	out    io.Writer
	report *Report
	// self, remuda and device are the programs.
	self, remuda, device string
	// mark is in the environment of everything that is started.
	mark string
	// dir is short, for sockets; logs is in the results.
	dir, logs string
	// gpu is the UUID.
	gpu   string
	meter meter
	// deadline is when the budget is used up.
	deadline time.Time
	// weights is the pair's file, "" until there is one, and weightsDir the
	// directory that was made for it, "" for none.
	weights, weightsDir string
	// takeovers are the failovers by how the engines checked their weights.
	takeovers struct{ always, imported Summary }

	// strays are processes that had to be looked for to be ended.
	strays []string

	mu        sync.Mutex // guards processes
	processes []*process
}

// Run does all checks and writes the results. It prints each step as it is done.
// An error says why nothing could be checked, or that the results could not be
// written; what the checks found is in the report.
func Run(ctx context.Context, cfg Config, out io.Writer) (_ *Report, err error) {
	r := &run{cfg: cfg, out: out, mark: uuid.NewString()}
	if err := r.cfg.validate(); err != nil {
		return nil, fmt.Errorf("wrong usage: %w", err)
	}
	began := time.Now()
	r.deadline = began.Add(r.cfg.Budget)
	ctx, cancel := context.WithDeadlineCause(ctx, r.deadline.Add(-endTime), errors.New("the -budget is used up"))
	defer cancel()
	r.report = &Report{Date: began, Backend: r.cfg.Backend, Version: version.String(), Host: describeHost(), Weights: r.cfg.Weights.String()}
	if err := r.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	r.checkPlugin(ctx)
	r.checkSharing(ctx)
	r.checkKeeper(ctx)
	r.checkFailover(ctx)
	r.checkCold(ctx)
	r.checkEnd(ctx)
	r.report.Seconds = time.Since(began).Seconds()
	if err := r.meter.close(); err != nil {
		return nil, err
	}
	if err := r.report.Write(r.cfg.Out); err != nil {
		return nil, err
	}
	return r.report, nil
}

// say prints a line for whoever watches.
func (r *run) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// open finds what is needed before anything can be checked.
func (r *run) open() (err error) {
	if r.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	for name, path := range map[string]*string{"remuda": &r.remuda, "remuda-device": &r.device} {
		if *path, err = filepath.Abs(filepath.Join(r.cfg.Bin, name)); err != nil {
			return err
		}
		if _, err := os.Stat(*path); err != nil {
			return fmt.Errorf("the program %s is not beside this one: %w: unpack the whole bundle, or give -bin", name, err)
		}
	}
	if err := r.openGPU(); err != nil {
		return err
	}
	if r.logs, err = filepath.Abs(filepath.Join(r.cfg.Out, "logs")); err != nil {
		return err
	}
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return fmt.Errorf("make the directory of the results: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(r.logs, "*.log"))
	for _, path := range old {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove the logs of an earlier run: %w", err)
	}
	if r.dir, err = os.MkdirTemp("", "gpuc"); err != nil {
		return fmt.Errorf("make a directory for sockets: %w", err)
	}
	return nil
}

// openGPU finds the GPU and opens the meter.
func (r *run) openGPU() error {
	if r.cfg.Backend == backendHost {
		r.gpu, r.meter = gpu.UUID("", 0), memfdMeter{r.mark}
		r.report.Device, r.report.Meter = "none (host memory stands in for a GPU)", r.meter.name()
		return nil
	}
	devices, err := cuda.Devices(r.cfg.CUDALibrary)
	if err != nil {
		return fmt.Errorf("no GPU can be used here: %w", err)
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.UUID)
		if r.gpu == "" && (r.cfg.GPU == "" || r.cfg.GPU == d.UUID) {
			r.gpu = d.UUID
			r.report.Device, r.report.UUID, r.report.MemoryBytes = d.Name, d.UUID, d.Memory
		}
	}
	if r.gpu == "" {
		return fmt.Errorf("no GPU can be used here: -gpu is %q, and the CUDA driver shows %d: %s", r.cfg.GPU, len(devices), strings.Join(names, ", "))
	}
	r.meter = memfdMeter{r.mark}
	if r.cfg.Meter == meterDriver {
		space, err := cuda.NewSpace(cuda.Config{Library: r.cfg.CUDALibrary, GPU: r.gpu})
		if err != nil {
			return fmt.Errorf("no GPU can be used here: %w", err)
		}
		r.meter = driverMeter{space}
	}
	r.report.Meter = r.meter.name()
	return nil
}

// checkEnd takes down whatever is left, and finds that nothing is.
func (r *run) checkEnd(context.Context) {
	c := &check{r, "6 end"}
	// The budget may be used up, and Ctrl-C may have been pressed.
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = c.step(ctx, "nothing is left behind: no process, no file", endTime, func(ctx context.Context) (seen, error) {
		err := r.endAll(ctx)
		if len(r.strays) > 0 {
			err = errors.Join(err, fmt.Errorf("processes that outlived who started them: %s", strings.Join(r.strays, ", ")))
		}
		if r.weightsDir != "" {
			err = errors.Join(err, os.RemoveAll(r.weightsDir))
		}
		return note("all processes that were started are gone"), err
	})
}

// baseline is how much memory is in use now.
type baseline struct {
	r    *run
	used uint64
}

func (r *run) baseline() (baseline, error) {
	used, err := r.meter.used()
	return baseline{r, used}, err
}

// more is by how much more is used now.
func (b baseline) more() (int64, error) {
	used, err := b.r.meter.used()
	return int64(used) - int64(b.used), err
}

// held is nil while at least size bytes more are in use.
func (b baseline) held(size uint64) error {
	more, err := b.more()
	if err == nil && more < int64(size)-int64(b.r.meter.slack(size)) {
		err = fmt.Errorf("%d bytes more than before are in use, and %d should be", more, size)
	}
	return err
}

// returned waits until no more than before is in use, of size bytes that should
// have gone, and tells how long that took.
func (b baseline) returned(ctx context.Context, size uint64) (time.Duration, error) {
	began := time.Now()
	err := await(ctx, func(context.Context) error {
		more, err := b.more()
		if err == nil && more > int64(b.r.meter.slack(size)) {
			err = fmt.Errorf("%d bytes more than before are still in use", more)
		}
		return err
	})
	return time.Since(began), err
}

// describeHost says what the machine is.
func describeHost() string {
	parts := []string{fmt.Sprintf("%d CPUs", runtime.NumCPU())}
	if n := procField("/proc/cpuinfo", "model name"); n != "" {
		parts[0] += " (" + n + ")"
	}
	if total, err := memInfo("MemTotal"); err == nil {
		parts = append(parts, amount(total)+" of memory")
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		parts = append(parts, "Linux "+unix.ByteSliceToString(u.Release[:]))
	}
	return strings.Join(parts, ", ")
}

// procField is the first value of a name in a file of "name : value" lines.
func procField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// memInfo is a line of /proc/meminfo, in bytes.
func memInfo(name string) (uint64, error) {
	var kib uint64
	if _, err := fmt.Sscanf(procField("/proc/meminfo", name), "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("read %s of /proc/meminfo: %w", name, err)
	}
	return kib << 10, nil
}
