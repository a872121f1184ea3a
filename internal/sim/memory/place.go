package memory

import (
	"errors"

	"remuda/internal/vram"
)

// Place is where device memory is.
type Place struct {
	// GPUs are the UUIDs of the GPUs; empty if unknown.
	GPUs []string
	// Dir is the directory of their memory (see package vram); empty: it is not counted and has no limit.
	Dir string
	// Real takes so many bytes of a GPU that is there, in place of Dir, until they are freed. Its error wraps
	// vram.ErrOutOfMemory where the GPU has less.
	Real func(gpu string, n int64) (free func() error, err error)
}

// Held is memory of GPUs. The zero Held is none.
type Held []func() error

// Take takes n bytes on each GPU, or nothing. The error wraps vram.ErrOutOfMemory where one of them has less.
func (p Place) Take(n int64) (h Held, err error) {
	take := p.Real
	if take == nil {
		take = p.simulated
	}
	if n == 0 || p.Real == nil && p.Dir == "" {
		return nil, nil
	}
	for _, gpu := range p.GPUs {
		free, err := take(gpu, n)
		if err != nil {
			return nil, errors.Join(err, h.Free())
		}
		h = append(h, free)
	}
	return h, nil
}

func (p Place) simulated(gpu string, n int64) (func() error, error) {
	t, err := vram.Take(p.Dir, gpu, n)
	if err != nil {
		return nil, err
	}
	return t.Free, nil
}

// Free gives the memory back.
func (h Held) Free() error {
	var errs []error
	for _, free := range h {
		errs = append(errs, free())
	}
	return errors.Join(errs...)
}
