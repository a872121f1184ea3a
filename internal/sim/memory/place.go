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
}

// Held is memory of GPUs. The zero Held is none.
type Held []*vram.Taken

// Take takes n bytes on each GPU, or nothing. The error wraps vram.ErrOutOfMemory where one of them has less.
func (p Place) Take(n int64) (h Held, err error) {
	if p.Dir == "" || n == 0 {
		return nil, nil
	}
	for _, gpu := range p.GPUs {
		t, err := vram.Take(p.Dir, gpu, n)
		if err != nil {
			return nil, errors.Join(err, h.Free())
		}
		h = append(h, t)
	}
	return h, nil
}

// Free gives the memory back.
func (h Held) Free() error {
	var errs []error
	for _, t := range h {
		errs = append(errs, t.Free())
	}
	return errors.Join(errs...)
}
