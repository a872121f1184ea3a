package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
)

const (
	// loadVerb makes this program load a file once. The backend, the GPU, the CUDA
	// driver's library and the file follow.
	loadVerb = "load"
	// copyBytes is how much is copied at once, and readers is how many copy at a time:
	// enough to keep ahead of the bus.
	copyBytes = 8 << 20
	readers   = 8
)

// checkCold measures what a failover is compared with.
func (r *run) checkCold(ctx context.Context) {
	const name = "4 cold load"
	what := fmt.Sprintf("a new process loads the same weights from the page cache into memory of its own, without a check, n=%d", r.cfg.cold)
	if r.weights == "" {
		r.skip(name, what, "there is no weights file")
		return
	}
	_ = r.step(ctx, name, what, longTime, func(ctx context.Context) (seen, error) {
		self, err := os.Executable()
		if err != nil {
			return seen{}, err
		}
		var whole, loads []time.Duration
		for i := range r.cfg.cold + 1 {
			cmd := exec.CommandContext(ctx, self, loadVerb, r.cfg.backend, r.gpu, r.cfg.cudaLibrary, r.weights)
			cmd.Env = append(os.Environ(), r.mark)
			began := time.Now()
			out, err := cmd.Output()
			took := time.Since(began)
			var load time.Duration
			if err == nil {
				err = json.Unmarshal(out, &load)
			}
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				err = fmt.Errorf("%w: %s", err, exit.Stderr)
			}
			if err != nil {
				return seen{}, fmt.Errorf("cold load %d: %w", i, err)
			}
			if i > 0 { // the first one brings the file into the page cache
				whole, loads = append(whole, took), append(loads, load)
			}
		}
		process, load := summarize(whole), summarize(loads)
		s := seen{"the process: " + process.String() + "; the load alone: " + load.String(), Figures{}}
		process.addTo(s.figures, "cold_process")
		load.addTo(s.figures, "cold_load")
		for _, verify := range []string{"always", "import"} {
			if f, ok := r.failover[verify]; ok {
				s.text += fmt.Sprintf("; a failover with -verify %s took %.2f of the process", verify, f.p50.Seconds()/process.p50.Seconds())
			}
		}
		return s, nil
	})
}

// loadMain loads a file and prints the time that it took in nanoseconds. It returns the
// exit code.
func loadMain(backendName, gpu, library, path string, stdout, stderr io.Writer) int {
	began := time.Now()
	err := load(backendName, gpu, library, path)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(time.Since(began))
	}
	if err != nil {
		fmt.Fprintf(stderr, "load %s: %v\n", path, err)
		return 1
	}
	return 0
}

// load copies a file into new memory of the backend, which lives as long as the
// process.
func load(backendName, gpu, library, path string) error {
	var b backend.Backend
	var space client.Space
	var err error
	if backendName == backendHost {
		b, err = host.New(host.Config{GPU: gpu, Granularity: host.DefaultGranularity})
		space = host.NewSpace()
	} else if b, err = cuda.New(cuda.Config{Library: library, GPU: gpu}); err == nil {
		space, err = cuda.NewSpace(cuda.Config{Library: library, GPU: gpu})
	}
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	addr, err := mapNew(b, space, uint64(info.Size()))
	if err != nil {
		return err
	}
	var group errgroup.Group
	for reader := range int64(readers) {
		group.Go(func() error {
			buf := make([]byte, copyBytes)
			for at := reader * copyBytes; at < info.Size(); at += readers * copyBytes {
				part := buf[:min(copyBytes, info.Size()-at)]
				if _, err := file.ReadAt(part, at); err != nil {
					return err
				}
				if err := space.Write(addr+uintptr(at), part); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// mapNew maps new memory whose only descriptor is closed again.
func mapNew(b backend.Backend, space client.Space, size uint64) (uintptr, error) {
	size = (size + b.Granularity() - 1) / b.Granularity() * b.Granularity()
	memory, err := b.Allocate(size)
	if err != nil {
		return 0, err
	}
	fd, err := memory.Export()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // it was only used to map
	addr, err := space.Reserve(size)
	if err == nil {
		err = space.Map(addr, size, fd, true)
	}
	return addr, errors.Join(err, memory.Release())
}
