package weights

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// ErrDigest is wrapped by Check for data that is not what its digest says.
var ErrDigest = errors.New("weights digest mismatch")

// digestPrefix is the metadata key of a tensor's digest, before its name.
const digestPrefix = "xxh64."

// Digests holds one XXH64 per tensor, by the tensor's name.
type Digests map[string]uint64

// Digests returns the digests that the file itself carries. It fails when one
// is malformed; files that were not made by Create carry none.
func (h *Header) Digests() (Digests, error) {
	d := Digests{}
	for _, t := range h.Tensors {
		text, ok := h.Metadata[digestPrefix+t.Name]
		if !ok {
			continue
		}
		v, err := strconv.ParseUint(text, 16, 64)
		if err != nil || len(text) != 16 {
			return nil, fmt.Errorf("%w: digest %q of tensor %q: must be 16 hexadecimal digits", ErrFormat, text, t.Name)
		}
		d[t.Name] = v
	}
	return d, nil
}

// sumChunk is how much is summed at once, while it is in the processor's cache.
const sumChunk = 64 << 10

// Sum computes the digest of every tensor of data, in parallel.
func (h *Header) Sum(data io.ReaderAt) (Digests, error) {
	sums, errs := make([]uint64, len(h.Tensors)), make([]error, len(h.Tensors))
	h.each(func(i int, t Tensor) {
		sum := xxhash.New()
		buf := make([]byte, min(sumChunk, t.End-t.Begin))
		for at := t.Begin; at < t.End && errs[i] == nil; at += int64(len(buf)) {
			buf = buf[:min(int64(len(buf)), t.End-at)]
			_, errs[i] = data.ReadAt(buf, at)
			_, _ = sum.Write(buf) // never fails
		}
		sums[i] = sum.Sum64()
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	d := make(Digests, len(sums))
	for i, t := range h.Tensors {
		d[t.Name] = sums[i]
	}
	return d, nil
}

// Check compares data, tensor by tensor, with the digests that want has. The
// error names every tensor that differs.
func (h *Header) Check(data io.ReaderAt, want Digests) error {
	got, err := h.Sum(data)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range h.Tensors {
		if w, ok := want[t.Name]; ok && got[t.Name] != w {
			errs = append(errs, fmt.Errorf("%w: tensor %q has xxh64 %016x, want %016x", ErrDigest, t.Name, got[t.Name], w))
		}
	}
	return errors.Join(errs...)
}

// each calls f for every tensor, on as many goroutines as there are CPUs.
func (h *Header) each(f func(i int, t Tensor)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(h.Tensors)) {
		wg.Go(func() {
			for i := range next {
				f(i, h.Tensors[i])
			}
		})
	}
	for i := range h.Tensors {
		next <- i
	}
	close(next)
	wg.Wait()
}
