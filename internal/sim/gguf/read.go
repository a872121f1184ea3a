package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
)

// Errors that Read and Inspect wrap, for callers that branch on the kind of
// mistake.
var (
	// ErrNotGGUF means that the file is of another format altogether.
	ErrNotGGUF = errors.New("not a GGUF file")
	// ErrTruncated means that the file ends before its contents do.
	ErrTruncated = errors.New("file is truncated")
	// ErrUnsupported means a GGUF file of a kind that no engine of ours can
	// serve as it is.
	ErrUnsupported = errors.New("unsupported GGUF file")
	// ErrMalformed means that the file breaks the rules of the format.
	ErrMalformed = errors.New("malformed GGUF file")
)

// Limits on what a file may claim, so that a hostile or damaged header costs
// neither memory nor time. They are far above what real models hold.
const (
	maxTensors   = 1 << 20
	maxPairs     = 1 << 16
	maxString    = 16 << 20 // bytes; chat templates and merges stay far below
	maxKey       = 64 << 10 // bytes; the format's own limit is 65535
	maxDims      = 4        // GGML_MAX_DIMS
	maxTensorLen = 64       // bytes of a tensor's name, as in the format
	maxElements  = 1 << 28  // of one metadata array
)

// Info is what a GGUF file says of itself.
type Info struct {
	// Version of the format: 2 or 3.
	Version uint32
	// Architecture is general.architecture, as in "llama" or "qwen2".
	Architecture string
	// Name is general.name, empty where the file has none.
	Name string
	// ContextLength is the context that the model was trained for, in tokens,
	// or 0 where the file does not say.
	ContextLength uint64
	// Tensors and Pairs count the file's tensors and metadata entries.
	Tensors, Pairs uint64
	// Parameters is the number of weights in all tensors.
	Parameters uint64
	// Size is the least size that the file must have to hold all tensors
	// whose type is known here, in bytes.
	Size uint64
}

// Inspect checks the file at path: that it is a GGUF file of a supported
// version which holds one whole model, and that no tensor lies beyond its end.
func Inspect(path string) (Info, error) {
	f, err := os.Open(path)
	if err != nil {
		return Info{}, fmt.Errorf("open model file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Info{}, fmt.Errorf("open model file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return Info{}, fmt.Errorf("model file %s is not a regular file (%s): want one GGUF file", path, st.Mode().Type())
	}
	info, err := Read(f)
	if err != nil {
		return Info{}, fmt.Errorf("model file %s: %w", path, err)
	}
	if uint64(st.Size()) < info.Size {
		return Info{}, fmt.Errorf("model file %s: %w: it has %d bytes, its tensors need %d; download it again",
			path, ErrTruncated, st.Size(), info.Size)
	}
	return info, nil
}

// Read reads a file's header from r, up to where the tensor data starts, and
// checks it. It does not check that the tensor data is there: compare
// Info.Size with the file's size for that, as Inspect does.
func Read(r io.Reader) (Info, error) {
	d := decoder{r: bufio.NewReaderSize(r, 64<<10)}
	info, err := d.file()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Info{}, fmt.Errorf("%w: it ends after %d bytes, inside its header; download it again", ErrTruncated, d.n)
	}
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// decoder reads little-endian values and counts the bytes.
type decoder struct {
	r   *bufio.Reader
	n   uint64
	buf [8]byte
}

func (d *decoder) file() (Info, error) {
	info, err := d.header()
	if err != nil {
		return Info{}, err
	}
	meta, err := d.metadata(info.Pairs)
	if err != nil {
		return Info{}, err
	}
	if err := meta.fill(&info); err != nil {
		return Info{}, err
	}
	align, err := meta.alignment()
	if err != nil {
		return Info{}, err
	}
	if err := d.tensors(&info, align); err != nil {
		return Info{}, err
	}
	return info, nil
}

func (d *decoder) header() (Info, error) {
	var m [4]byte
	n, err := io.ReadFull(d.r, m[:])
	d.n += uint64(n)
	switch {
	case n == 0 && err != nil:
		return Info{}, fmt.Errorf("%w: it is empty", ErrNotGGUF)
	case string(m[:n]) != magic[:n]:
		return Info{}, fmt.Errorf("%w: it starts with %q, want %q", ErrNotGGUF, m[:n], magic)
	case err != nil:
		return Info{}, err
	}
	v, err := d.uint(4)
	if err != nil {
		return Info{}, err
	}
	switch {
	case v == 1:
		return Info{}, unsupported("format version 1: want 2 or 3; convert the model again with a current llama.cpp")
	case v != 0 && bits.ReverseBytes32(uint32(v)) <= version:
		return Info{}, unsupported("it is big endian: want a little-endian file")
	case v != 2 && v != version:
		return Info{}, unsupported("format version %d: want 2 or 3", v)
	}
	info := Info{Version: uint32(v)}
	if info.Tensors, err = d.uint(8); err != nil {
		return Info{}, err
	}
	if info.Pairs, err = d.uint(8); err != nil {
		return Info{}, err
	}
	if info.Tensors > maxTensors || info.Pairs > maxPairs {
		return Info{}, malformed("it claims %d tensors and %d metadata entries: want at most %d and %d",
			info.Tensors, info.Pairs, maxTensors, maxPairs)
	}
	return info, nil
}

// entries keeps strings, numbers and booleans by key; arrays are checked and
// dropped.
type entries map[string]any

func (d *decoder) metadata(n uint64) (entries, error) {
	meta := entries{}
	for i := range n {
		key, err := d.string(maxKey)
		if err != nil {
			return nil, fmt.Errorf("metadata entry %d of %d: %w", i+1, n, err)
		}
		if key == "" {
			return nil, malformed("metadata entry %d of %d has no key", i+1, n)
		}
		if _, ok := meta[key]; ok {
			return nil, malformed("metadata key %q occurs twice", key)
		}
		if meta[key], err = d.value(); err != nil {
			return nil, fmt.Errorf("metadata %q: %w", key, err)
		}
	}
	return meta, nil
}

// value reads a type and a value: string, uint64 (of unsigned types and of
// signed ones that are not negative), bool, or nil for anything else.
func (d *decoder) value() (any, error) {
	t, err := d.uint(4)
	if err != nil {
		return nil, err
	}
	switch vt := valueType(t); vt {
	case typeString:
		return d.string(maxString)
	case typeArray:
		return nil, d.array()
	case typeBool:
		v, err := d.uint(1)
		if err == nil && v > 1 {
			err = malformed("boolean has value %d", v)
		}
		return v == 1, err
	case typeUint8, typeUint16, typeUint32, typeUint64:
		return d.uint(vt.size())
	case typeInt8, typeInt16, typeInt32, typeInt64:
		v, err := d.uint(vt.size())
		if err != nil || v>>(8*vt.size()-1) != 0 {
			return nil, err // negative: no entry that is looked at may be
		}
		return v, nil
	case typeFloat32, typeFloat64:
		_, err := d.uint(vt.size())
		return nil, err
	}
	return nil, malformed("unknown value type %d", t)
}

func (d *decoder) array() error {
	t, err := d.uint(4)
	if err != nil {
		return err
	}
	n, err := d.uint(8)
	if err != nil {
		return err
	}
	if n > maxElements {
		return malformed("array claims %d elements: want at most %d", n, maxElements)
	}
	vt := valueType(t)
	if size := vt.size(); size > 0 {
		return d.skip(n * uint64(size))
	}
	if vt != typeString {
		return malformed("array of value type %d: want strings, numbers or booleans", t)
	}
	for range n {
		length, err := d.stringLen(maxString)
		if err != nil {
			return err
		}
		if err := d.skip(length); err != nil {
			return err
		}
	}
	return nil
}

func (m entries) fill(info *Info) error {
	var ok bool
	if info.Architecture, ok = m["general.architecture"].(string); !ok || info.Architecture == "" {
		return malformed("it has no general.architecture, so no engine can tell how to run it")
	}
	info.Name, _ = m["general.name"].(string)
	info.ContextLength, _ = m[info.Architecture+".context_length"].(uint64)
	if n, _ := m["split.count"].(uint64); n > 1 {
		part, _ := m["split.no"].(uint64)
		return unsupported("it is part %d of a model split into %d files: join them with llama-gguf-split --merge", part+1, n)
	}
	if kind, _ := m["general.type"].(string); kind != "" && kind != "model" {
		return unsupported("it holds a %q, want a model", kind)
	}
	if info.Tensors == 0 {
		return unsupported("it holds no tensors, only a vocabulary or metadata")
	}
	return nil
}

func (m entries) alignment() (uint64, error) {
	v, ok := m["general.alignment"]
	if !ok {
		return defaultAlignment, nil
	}
	align, ok := v.(uint64)
	if !ok || align < 8 || align > math.MaxUint32 || bits.OnesCount64(align) != 1 {
		return 0, malformed("general.alignment is %v: want a power of two of at least 8", v)
	}
	return align, nil
}

// tensors reads the tensor table and adds up parameters and size.
func (d *decoder) tensors(info *Info, align uint64) error {
	seen := make(map[string]bool, min(info.Tensors, 4096))
	var end uint64 // of the data, from its start
	for i := range info.Tensors {
		name, err := d.string(maxTensorLen)
		if err != nil {
			return fmt.Errorf("tensor %d of %d: %w", i+1, info.Tensors, err)
		}
		if seen[name] {
			return malformed("tensor %q occurs twice", name)
		}
		seen[name] = true
		elements, last, err := d.tensor(align)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if info.Parameters += elements; info.Parameters < elements {
			return malformed("its tensors have more than 2^64 weights")
		}
		end = max(end, last)
	}
	start := padded(d.n, align)
	if info.Size = start + end; info.Size < end {
		return malformed("its tensors need more than 2^64 bytes")
	}
	return nil
}

// tensor reads one entry after its name and returns its number of elements
// and where its data ends, counted from the start of the data.
func (d *decoder) tensor(align uint64) (elements, end uint64, err error) {
	dims, err := d.uint(4)
	if err != nil {
		return 0, 0, err
	}
	if dims > maxDims {
		return 0, 0, malformed("it has %d dimensions: want at most %d", dims, maxDims)
	}
	elements = 1
	row := uint64(1)
	for i := range dims {
		n, err := d.uint(8)
		if err != nil {
			return 0, 0, err
		}
		if i == 0 {
			row = n
		}
		hi, lo := bits.Mul64(elements, n)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, 0, malformed("it has more than 2^63 elements")
		}
		elements = lo
	}
	kind, err := d.uint(4)
	if err != nil {
		return 0, 0, err
	}
	offset, err := d.uint(8)
	if err != nil {
		return 0, 0, err
	}
	if offset%align != 0 {
		return 0, 0, malformed("its offset %d is not a multiple of the alignment %d", offset, align)
	}
	b, ok := tensorBlocks[uint32(kind)]
	if !ok {
		return elements, offset, nil // a newer type: its size is not known
	}
	if row%b.elements != 0 {
		return 0, 0, malformed("its rows have %d elements: want a multiple of %d for tensor type %d", row, b.elements, kind)
	}
	hi, size := bits.Mul64(elements/b.elements, b.bytes)
	end = offset + size
	if hi != 0 || end < offset {
		return 0, 0, malformed("it needs more than 2^64 bytes")
	}
	return elements, end, nil
}

// uint reads size bytes as an unsigned number.
func (d *decoder) uint(size int) (uint64, error) {
	b := d.buf[:size]
	n, err := io.ReadFull(d.r, b)
	d.n += uint64(n)
	if err != nil {
		return 0, err
	}
	clear(d.buf[size:])
	return binary.LittleEndian.Uint64(d.buf[:]), nil
}

func (d *decoder) stringLen(limit uint64) (uint64, error) {
	n, err := d.uint(8)
	if err == nil && n > limit {
		err = malformed("string claims %d bytes: want at most %d", n, limit)
	}
	return n, err
}

func (d *decoder) string(limit uint64) (string, error) {
	length, err := d.stringLen(limit)
	if err != nil {
		return "", err
	}
	// Grow with what is really there: a header may claim anything.
	var b []byte
	for uint64(len(b)) < length {
		step := min(length-uint64(len(b)), 64<<10)
		at := len(b)
		b = append(b, make([]byte, step)...)
		n, err := io.ReadFull(d.r, b[at:])
		d.n += uint64(n)
		if err != nil {
			return "", err
		}
	}
	return string(b), nil
}

func (d *decoder) skip(n uint64) error {
	for n > 0 {
		done, err := d.r.Discard(int(min(n, 1<<30)))
		d.n += uint64(done)
		n -= uint64(done)
		if err != nil {
			return err
		}
	}
	return nil
}
