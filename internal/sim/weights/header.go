package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// ErrFormat is wrapped by every error about a file's content.
var ErrFormat = errors.New("not a valid safetensors file")

// maxHeader is the specification's limit for the JSON header, in bytes.
const maxHeader = 100_000_000

// metadataKey is the header's one key that does not name a tensor.
const metadataKey = "__metadata__"

// dtypeBits is the size of one element of each type of the specification.
var dtypeBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"F64": 64, "I64": 64, "U64": 64, "C64": 64,
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType string
	Shape []uint64
	// Begin and End are byte offsets into the data that follows the header, or into a part of it.
	Begin, End int64
	// Source is where the tensor begins in the data that follows the header.
	Source int64
}

// Header is the parsed beginning of a file.
type Header struct {
	// Tensors are sorted by their place in the file.
	Tensors []Tensor
	// Metadata is the free-form text map of the header.
	Metadata map[string]string
	// DataOffset is where the tensors' data begins in the file.
	DataOffset int64
	// DataSize is the total size of the tensors in bytes.
	DataSize int64
}

type jsonTensor struct {
	DType   string   `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Offsets []uint64 `json:"data_offsets"`
}

// ReadHeader parses the header of a file of the given total size.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	var length [8]byte
	if size < int64(len(length)) {
		return nil, fmt.Errorf("%w: it is %d bytes long, less than the 8 of the header's length", ErrFormat, size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		return nil, fmt.Errorf("%w: the header claims %d bytes, the limit is %d", ErrFormat, n, maxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("%w: the header claims %d bytes, the file has %d after the length (truncated?)", ErrFormat, n, size-8)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, 8, int64(n)), text); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	h, err := ParseHeader(text)
	if err != nil {
		return nil, err
	}
	h.DataOffset = 8 + int64(n)
	if have := size - h.DataOffset; have != h.DataSize {
		what := "bytes too many behind them"
		if have < h.DataSize {
			what = "the file is truncated"
		}
		return nil, fmt.Errorf("%w: the tensors need %d bytes, the file has %d: %s", ErrFormat, h.DataSize, have, what)
	}
	return h, nil
}

// ParseHeader parses the JSON part of a header. DataOffset stays 0.
func ParseHeader(text []byte) (*Header, error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, fmt.Errorf("%w: the header must begin with '{'", ErrFormat)
	}
	raw, err := decodeObject(text)
	if err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrFormat, err)
	}
	h := &Header{}
	for name, value := range raw {
		if name == metadataKey {
			if err := json.Unmarshal(value, &h.Metadata); err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrFormat, metadataKey, err)
			}
			continue
		}
		t, err := parseTensor(name, value)
		if err != nil {
			return nil, fmt.Errorf("%w: tensor %q: %w", ErrFormat, name, err)
		}
		h.Tensors = append(h.Tensors, t)
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		// Tensors without elements share their place with the next one.
		switch {
		case a.Begin != b.Begin:
			return compare(a.Begin, b.Begin)
		case a.End != b.End:
			return compare(a.End, b.End)
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, t := range h.Tensors {
		if t.Begin != h.DataSize {
			return nil, fmt.Errorf("%w: tensor %q begins at %d, the one before it ends at %d", ErrFormat, t.Name, t.Begin, h.DataSize)
		}
		h.DataSize = t.End
	}
	return h, nil
}

// decodeObject decodes one JSON object and refuses duplicate keys, which the
// specification forbids and encoding/json would let pass.
func decodeObject(text []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("key %v is not a string", token)
		}
		if _, dup := out[key]; dup {
			return nil, fmt.Errorf("key %q occurs twice", key)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		out[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if rest := bytes.TrimLeft(text[dec.InputOffset():], " "); len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes after the object: only spaces may follow", len(rest))
	}
	return out, nil
}

func parseTensor(name string, value json.RawMessage) (Tensor, error) {
	var j jsonTensor
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return Tensor{}, err
	}
	bits, ok := dtypeBits[j.DType]
	if !ok {
		return Tensor{}, fmt.Errorf("unknown dtype %q", j.DType)
	}
	if len(j.Offsets) != 2 {
		return Tensor{}, fmt.Errorf("data_offsets has %d entries: must be [begin, end]", len(j.Offsets))
	}
	begin, end := j.Offsets[0], j.Offsets[1]
	if begin > end || end > math.MaxInt64/2 {
		return Tensor{}, fmt.Errorf("data_offsets [%d, %d] are out of range", begin, end)
	}
	if j.Shape == nil {
		return Tensor{}, errors.New("shape is missing")
	}
	size := bits / 8
	for _, d := range j.Shape {
		if d != 0 && size > math.MaxUint64/2/d {
			return Tensor{}, fmt.Errorf("shape %v overflows", j.Shape)
		}
		size *= d
	}
	if size != end-begin {
		return Tensor{}, fmt.Errorf("dtype %s with shape %v takes %d bytes, data_offsets span %d", j.DType, j.Shape, size, end-begin)
	}
	return Tensor{Name: name, DType: j.DType, Shape: j.Shape, Begin: int64(begin), End: int64(end), Source: int64(begin)}, nil
}

// Part is the header of the rank's tensors, of so many ranks. Every tensor belongs to one rank.
func (h *Header) Part(rank, ranks int) *Header {
	if ranks <= 1 {
		return h
	}
	part := &Header{Metadata: h.Metadata, DataOffset: h.DataOffset}
	for i, t := range h.Tensors {
		if i%ranks != rank {
			continue
		}
		t.Begin, t.End = part.DataSize, part.DataSize+t.End-t.Begin
		part.DataSize = t.End
		part.Tensors = append(part.Tensors, t)
	}
	return part
}

func compare(a, b int64) int {
	if a < b {
		return -1
	}
	return 1
}
