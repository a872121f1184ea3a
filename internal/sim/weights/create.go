package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

const (
	metaFormat = "format"
	metaSeed   = "remuda.seed"
	metaSize   = "remuda.size"

	// MinSize is the smallest size that Create accepts, in bytes.
	MinSize = 4 << 10

	hidden     = 1024       // columns of a weight matrix
	rowBytes   = 2 * hidden // BF16
	maxTensor  = 64 << 20   // so that one tensor never keeps one CPU busy for long
	minTensors = 8
	copyBuffer = 1 << 20
)

// Spec says which file to make. Equal specs give equal files.
type Spec struct {
	// Size is the total size of the tensors in bytes, what the weights will
	// take on the device; the file is longer by its header.
	Size int64
	// Seed chooses the content.
	Seed uint64
}

// Validate says whether the spec can be made.
func (s Spec) Validate() error {
	if s.Size < MinSize || s.Size > 1<<42 {
		return fmt.Errorf("size is %d bytes: must be %d (4KiB) to %d (4TiB)", s.Size, MinSize, int64(1)<<42)
	}
	return nil
}

// Create writes a weights file. When path already holds one that is whole and
// was made from the same spec, it is kept and created is false; anything else
// under that name is replaced.
//
// The file appears under its name by a rename once it is complete. It is not
// synced: every use checks the digests, so a file that a power cut tore is
// found out and made again. The temporary file of a killed process is used again.
func Create(path string, spec Spec) (created bool, err error) {
	if err := spec.Validate(); err != nil {
		return false, err
	}
	if ok, err := matches(path, spec); err != nil || ok {
		return false, err
	}
	tmp, err := lockTemp(path)
	if err != nil {
		return false, fmt.Errorf("create weights: %w", err)
	}
	// The lock ends with the file, which nobody else must take for theirs before the rename.
	defer tmp.Close()              //nolint:errcheck // nothing is left to be written
	ok, err := matches(path, spec) // another process may have made it meanwhile
	if err != nil || ok {
		return false, errors.Join(err, os.Remove(tmp.Name()))
	}
	err = write(tmp, spec)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("create weights %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return true, nil
}

// lockTemp opens the temporary file for path, empty, and waits until no other process writes it. One of a
// process that was killed is used again.
func lockTemp(path string) (*os.File, error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
		// Whoever had the lock may have given the file its name, or removed it.
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Lstat(name); err == nil && os.SameFile(mine, there) {
			if err := f.Truncate(0); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		}
		_ = f.Close()
	}
}

// matches tells whether path holds a whole file made from spec.
func matches(path string, spec Spec) (bool, error) {
	f, err := Open(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrFormat) {
		if info, serr := os.Stat(path); serr == nil && !info.Mode().IsRegular() {
			return false, fmt.Errorf("create weights %s: something that is not a regular file is there", path)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // the file was only read
	m := f.Header.Metadata
	if f.Header.DataSize != spec.Size || m[metaSize] != strconv.FormatInt(spec.Size, 10) || m[metaSeed] != strconv.FormatUint(spec.Seed, 10) {
		return false, nil
	}
	want, err := f.Header.Digests()
	if err != nil || len(want) != len(f.Header.Tensors) {
		return false, nil // malformed digests mean that the file is to be replaced
	}
	buf := make([]byte, copyBuffer)
	for _, t := range f.Header.Tensors {
		d := xxhash.New()
		if _, err := io.CopyBuffer(onlyWriter{d}, io.NewSectionReader(f.f, f.Header.DataOffset+t.Begin, t.End-t.Begin), buf); err != nil {
			return false, fmt.Errorf("read weights %s: %w", path, err)
		}
		if d.Sum64() != want[t.Name] {
			return false, nil
		}
	}
	return true, nil
}

// onlyWriter hides other methods, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

// write puts the data first and the header, which holds the data's digests and
// whose length does not depend on them, last.
func write(f *os.File, spec Spec) error {
	tensors := layout(spec.Size)
	blank, err := encodeHeader(tensors, spec, nil)
	if err != nil {
		return err
	}
	if _, err := f.Seek(int64(len(blank)), io.SeekStart); err != nil {
		return err
	}
	random := splitMix(spec.Seed)
	buf := make([]byte, copyBuffer)
	digests := Digests{}
	for _, t := range tensors {
		d := xxhash.New()
		for left := t.End - t.Begin; left > 0; {
			part := buf[:min(left, int64(len(buf)))]
			random.fill(part)
			_, _ = d.Write(part) // never fails
			if _, err := f.Write(part); err != nil {
				return err
			}
			left -= int64(len(part))
		}
		digests[t.Name] = d.Sum64()
	}
	header, err := encodeHeader(tensors, spec, digests)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(header, 0)
	return err
}

// layout cuts size into the tensors of a small transformer: BF16 matrices of
// equal size and, for what does not fill a row, a vector of bytes.
func layout(size int64) []Tensor {
	rows := size / rowBytes
	n := max(min(int64(minTensors), rows), (rows*rowBytes+maxTensor-1)/maxTensor)
	kinds := []string{"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}
	var tensors []Tensor
	var at int64
	for i := range n {
		r := rows/n + b2i(i < rows%n)
		name := fmt.Sprintf("model.layers.%d.%s.weight", i/int64(len(kinds)), kinds[i%int64(len(kinds))])
		tensors = append(tensors, Tensor{Name: name, DType: "BF16", Shape: []uint64{uint64(r), hidden}, Begin: at, End: at + r*rowBytes})
		at += r * rowBytes
	}
	if at < size {
		tensors = append(tensors, Tensor{Name: "model.norm.weight", DType: "U8", Shape: []uint64{uint64(size - at)}, Begin: at, End: size})
	}
	return tensors
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// encodeHeader returns length and JSON, padded with spaces so that the data
// begins at a multiple of 8 as the specification wants.
func encodeHeader(tensors []Tensor, spec Spec, digests Digests) ([]byte, error) {
	meta := map[string]string{
		metaFormat: "pt",
		metaSize:   strconv.FormatInt(spec.Size, 10),
		metaSeed:   strconv.FormatUint(spec.Seed, 10),
	}
	object := map[string]any{metadataKey: meta}
	for _, t := range tensors {
		meta[digestPrefix+t.Name] = fmt.Sprintf("%016x", digests[t.Name])
		object[t.Name] = jsonTensor{DType: t.DType, Shape: t.Shape, Offsets: []uint64{uint64(t.Begin), uint64(t.End)}}
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	text = append(text, bytes.Repeat([]byte{' '}, (8-len(text)%8)%8)...)
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}

// splitMix is the SplitMix64 generator: one multiply-xorshift chain per eight
// bytes, reproducible everywhere.
type splitMixState uint64

func splitMix(seed uint64) *splitMixState {
	s := splitMixState(seed)
	return &s
}

func (s *splitMixState) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	x := uint64(*s)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (s *splitMixState) fill(p []byte) {
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, s.next())
	}
	if len(p) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], s.next())
		copy(p, last[:])
	}
}
