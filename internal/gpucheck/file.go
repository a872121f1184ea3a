package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// fileTime is for writing and digesting a large file, or for reading it once.
	fileTime = 3 * time.Minute
	// fileRoom is left free beside the weights file, and memoryRoom of the host's
	// memory: the file must stay in the page cache.
	fileRoom   = 64 << 20
	memoryRoom = 1 << 30
)

// makeWeights makes the pair's weights file.
func (r *run) makeWeights(ctx context.Context) (seen, error) {
	size := uint64(r.cfg.Weights)
	if available, err := memInfo("MemAvailable"); err != nil {
		return seen{}, err
	} else if available < size+memoryRoom {
		return seen{}, fmt.Errorf("the host has %s of memory available: want %s, so that %s of weights stay in the page cache; try a smaller -weights", amount(available), amount(size+memoryRoom), r.cfg.Weights)
	}
	dir, err := r.roomFor(size)
	if err != nil {
		return seen{}, err
	}
	if !r.cfg.KeepWeights {
		if dir, err = os.MkdirTemp(dir, "gpu-check-"); err != nil {
			return seen{}, fmt.Errorf("make a directory for the weights: %w", err)
		}
		r.weightsDir = dir
	}
	path := filepath.Join(dir, fmt.Sprintf("gpu-check-%d.safetensors", size))
	p, err := r.start("4-weights", false, r.remuda, "sim", "weights", "-size", fmt.Sprint(size), path)
	if err != nil {
		return seen{}, err
	}
	if err := p.await(ctx); err != nil {
		return seen{}, err
	}
	if p.endErr != nil {
		return seen{}, p.alive()
	}
	r.weights = path
	return note("%s in %s", r.cfg.Weights, path), nil
}

// roomFor finds a directory with room for size bytes.
func (r *run) roomFor(size uint64) (string, error) {
	dirs := []string{r.cfg.WeightsDir}
	if r.cfg.WeightsDir == "" {
		dirs = []string{"/dev/shm", os.TempDir()}
	}
	var errs []error
	for _, dir := range dirs {
		if r.cfg.KeepWeights { // it may be there already
			if info, err := os.Stat(filepath.Join(dir, fmt.Sprintf("gpu-check-%d.safetensors", size))); err == nil && uint64(info.Size()) > size {
				return dir, nil
			}
		}
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		if free := st.Bavail * uint64(st.Bsize); free < size+fileRoom {
			errs = append(errs, fmt.Errorf("%s has %s free", dir, amount(free)))
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("there is no room for %s of weights: %w; name another -weights-dir or a smaller -weights", amount(size), errors.Join(errs...))
}

// warm reads the weights file once, so that the page cache has it.
func (r *run) warm(ctx context.Context) error {
	f, err := os.Open(r.weights)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, copyBytes)
	for ctx.Err() == nil {
		switch _, err := f.Read(buf); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
	return ctx.Err()
}
