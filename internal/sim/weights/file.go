package weights

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
)

// readChunk is how much one read asks for, in bytes: large enough that the
// calls do not count, small enough that all CPUs have something to do.
const readChunk = 8 << 20

// File is an open weights file.
type File struct {
	Header *Header
	path   string
	f      *os.File
}

// Open opens and checks the file's layout. It does not read the tensors.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is not a regular file", ErrFormat)
	}
	var h *Header
	if err == nil {
		h, err = ReadHeader(f, info.Size())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("weights %s: %w", path, err), f.Close())
	}
	return &File{Header: h, path: path, f: f}, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// ReadTensor reads a part of a tensor into dst, from the byte at offset on.
func (f *File) ReadTensor(t Tensor, offset int64, dst []byte) error {
	if offset < 0 || offset+int64(len(dst)) > t.End-t.Begin {
		return fmt.Errorf("load tensor %q of weights %s: %d bytes at %d are over the end of %d", t.Name, f.path, len(dst), offset, t.End-t.Begin)
	}
	if _, err := f.f.ReadAt(dst, f.Header.DataOffset+t.Source+offset); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: the file was truncated while it was read", ErrFormat)
		}
		return fmt.Errorf("load tensor %q of weights %s: %w", t.Name, f.path, err)
	}
	return nil
}

// Load reads all tensors into dst, which must be Header.DataSize long.
func (f *File) Load(dst []byte) error {
	if int64(len(dst)) != f.Header.DataSize {
		return fmt.Errorf("load weights %s: the destination has %d bytes, the tensors %d", f.path, len(dst), f.Header.DataSize)
	}
	type piece struct {
		t  Tensor
		at int64
	}
	pieces := make(chan piece)
	errs := make(chan error, 1)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for p := range pieces {
				end := min(p.at+readChunk, p.t.End-p.t.Begin)
				if err := f.ReadTensor(p.t, p.at, dst[p.t.Begin+p.at:p.t.Begin+end]); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	for _, t := range f.Header.Tensors {
		for at := int64(0); at < t.End-t.Begin; at += readChunk {
			pieces <- piece{t, at}
		}
	}
	close(pieces)
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
