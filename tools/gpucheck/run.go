package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/internal/bytesize"
	"remuda/internal/testkit/process"
	"remuda/internal/version"
	"remuda/internal/vram"
)

// markEnv marks the processes of a run: everything that they start inherits it.
const markEnv = "REMUDA_GPU_CHECK"

// run is one run of all checks.
type run struct {
	cfg    config
	log    io.Writer // a line for each step
	report *Report
	// mark is the variable in the environment of everything that is started.
	mark string
	// dir is a short path for sockets, and logs is in the results.
	dir, logs string
	// gpu is the UUID.
	gpu string
	// weightsDir and weights are the paths of the pair's weights file and of the
	// directory that was made for it; empty for none.
	weightsDir, weights string
	// cache is the KV cache of an engine in bytes. Two have no room beside the weights.
	cache uint64
	// usedBefore is how much of the GPU's memory was in use before the pair, in bytes.
	usedBefore uint64
	// failover is the time of the failovers by how the weights were checked.
	failover  map[string]summary
	processes []*process.Process
}

// check does all checks and writes the results. An error means that nothing could be
// checked or that the results could not be written; failed checks are in the report.
func check(ctx context.Context, cfg config, log io.Writer) (_ *Report, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.budget, errors.New("the -budget is used up"))
	defer cancel()
	r := &run{cfg: cfg, log: log, mark: markEnv + "=" + uuid.NewString(), failover: map[string]summary{}}
	r.report = &Report{Date: began, Backend: cfg.backend, Version: version.String(), CPUs: runtime.NumCPU(), Weights: bytesize.Text(int64(cfg.weights))}
	if r.cfg.bin, err = filepath.Abs(cfg.bin); err != nil {
		return nil, err
	}
	if r.logs, err = filepath.Abs(filepath.Join(cfg.out, "logs")); err != nil {
		return nil, err
	}
	for _, name := range []string{"remuda", "remuda-device", "gms-conformance"} {
		if _, err := os.Stat(r.program(name)); err != nil {
			return nil, fmt.Errorf("-bin has no program %s: %w", name, err)
		}
	}
	if err := r.findGPU(); err != nil {
		return nil, fmt.Errorf("no GPU can be used here: %w", err)
	}
	if err := errors.Join(os.RemoveAll(r.logs), os.MkdirAll(r.logs, 0o755)); err != nil {
		return nil, fmt.Errorf("make the directory of the logs: %w", err)
	}
	if r.dir, err = os.MkdirTemp("", "gpuc"); err != nil {
		return nil, fmt.Errorf("make a directory for sockets: %w", err)
	}
	if cfg.backend == backendHost {
		if err := vram.Create(r.dir, r.gpu, int64(r.cache)/2*3); err != nil {
			return nil, err
		}
	}
	r.checkAgreement(ctx)
	r.checkMemory(ctx)
	r.checkFailover(ctx)
	r.checkCold(ctx)
	r.checkEnd()
	r.report.Seconds = time.Since(began).Seconds()
	return r.report, r.report.Write(cfg.out)
}

// program is the path of a program of the bundle.
func (r *run) program(name string) string { return filepath.Join(r.cfg.bin, name) }

// findGPU chooses the GPU and checks that the weights fit.
func (r *run) findGPU() error {
	if r.cfg.backend == backendHost {
		r.gpu, r.report.Device = "GPU-00000000-0000-4000-8000-000000000000", "none (host memory stands in for a GPU)"
		r.cache = r.cfg.weights
		return nil
	}
	devices, err := cuda.Devices(r.cfg.cudaLibrary)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(devices, func(d cuda.Device) bool { return r.cfg.gpu == "" || r.cfg.gpu == d.UUID })
	if i < 0 {
		return fmt.Errorf("-gpu is %q: the CUDA driver shows %v", r.cfg.gpu, devices)
	}
	d := devices[i]
	r.gpu, r.report.Device, r.report.UUID, r.report.MemoryBytes = d.UUID, d.Name, d.UUID, d.Memory
	used, err := r.memoryInUse()
	if free := d.Memory - min(used, d.Memory); err == nil && free < r.cfg.weights+r.cfg.weights/8 {
		err = fmt.Errorf("%s of its %s are free and -weights is %s: try a smaller -weights",
			bytesize.Text(int64(free)), bytesize.Text(int64(d.Memory)), r.report.Weights)
	} else if err == nil {
		r.cache = (free - r.cfg.weights) / 5 * 3
	}
	return err
}

// memoryInUse is how much memory of the GPU is in use, as the CUDA driver reports it. Where host memory stands
// in for a GPU it is that of the KV caches.
func (r *run) memoryInUse() (uint64, error) {
	if r.cfg.backend == backendHost {
		used, _, err := vram.Used(r.dir, r.gpu)
		return uint64(used), err
	}
	space, err := cuda.NewSpace(cuda.Config{Library: r.cfg.cudaLibrary, GPU: r.gpu})
	if err != nil {
		return 0, err
	}
	free, total, err := space.Info()
	return total - free, errors.Join(err, space.Close())
}

// checkEnd removes the files of the run and kills what is left of its processes. It
// fails if a process outlived the one that started it.
func (r *run) checkEnd() {
	// The budget may be used up, and the run may have been interrupted.
	ctx := context.Background()
	_ = r.step(ctx, "5 end", "no process and no file is left", time.Minute, func(ctx context.Context) (seen, error) {
		r.killAll()
		removed := errors.Join(os.RemoveAll(r.weightsDir), os.RemoveAll(r.dir))
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var pids []int
		// A worker ends by itself once its engine is gone.
		err := await(ctx, func(context.Context) (err error) {
			if pids, err = process.WithEnv(r.mark); err == nil && len(pids) > 0 {
				err = fmt.Errorf("processes %v outlived the programs that started them", pids)
			}
			return err
		})
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		return seen{}, errors.Join(err, removed)
	})
}

// seen is what a step measured.
type seen struct {
	text    string
	figures Figures
}

func note(format string, args ...any) seen { return seen{text: fmt.Sprintf(format, args...)} }

// step does one step within its time and adds its row to the report.
func (r *run) step(ctx context.Context, check, what string, within time.Duration, f func(ctx context.Context) (seen, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it took longer than %s", within))
	defer cancel()
	began := time.Now()
	s, err := f(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	row := Row{Check: check, What: what, Result: Pass, Seen: s.text, Figures: s.figures, Seconds: time.Since(began).Seconds()}
	if err != nil {
		row.Result, row.Seen = Fail, strings.TrimPrefix(s.text+"; "+err.Error(), "; ")
	}
	r.add(row)
	return err
}

func (r *run) skip(check, what, why string) {
	r.add(Row{Check: check, What: what, Result: Skip, Seen: why})
}

func (r *run) add(row Row) {
	r.report.Rows = append(r.report.Rows, row)
	fmt.Fprintf(r.log, "%-4s %s: %s: %s\n", strings.ToUpper(string(row.Result)), row.Check, row.What, row.Seen)
}

// start starts a program of the bundle. Its log is named after name.
func (r *run) start(name string, env []string, program string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Config{
		Path: r.program(program), Args: args, Env: append(env, r.mark), Dir: r.dir, Log: filepath.Join(r.logs, name+".log"),
	})
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return p, err
}

// killAll kills the processes that a check left running.
func (r *run) killAll() {
	for _, p := range r.processes {
		p.Kill()
	}
	r.processes = nil
}

// await calls f each millisecond until it returns nil or ctx ends. It returns at once
// if a process that f needs has ended.
func await(ctx context.Context, f func(ctx context.Context) error) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil || errors.Is(err, process.ErrEnded) {
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
