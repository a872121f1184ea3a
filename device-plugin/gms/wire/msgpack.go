package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// maxDepth bounds how deep values may be nested. The protocol's own messages
// need three levels; unknown fields may be deeper.
const maxDepth = 32

// ErrMalformed is wrapped where bytes are no MessagePack, or no single map. There
// is nothing to answer to: the connection is over.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// kind is the type of a MessagePack value.
type kind string

const (
	kindNil   kind = "nil"
	kindBool  kind = "a bool"
	kindInt   kind = "an integer"
	kindFloat kind = "a float"
	kindStr   kind = "a string"
	kindBin   kind = "bytes"
	kindArray kind = "a list"
	kindMap   kind = "a map"
	kindExt   kind = "an extension"
)

// token is one value, or the head of a list or a map.
type token struct {
	kind kind
	// flag is of a bool; n is the value of an integer, or the number of elements
	// of a list or of pairs of a map; negative: n is an int64.
	flag     bool
	negative bool
	n        uint64
	// raw is of a string or of bytes. It is part of the message.
	raw []byte
}

// decoder walks through a message. It copies nothing.
type decoder struct {
	rest []byte
}

// take cuts n bytes off.
func (d *decoder) take(n uint64) ([]byte, error) {
	if n > uint64(len(d.rest)) {
		return nil, malformed("%d bytes are left where %d are needed", len(d.rest), n)
	}
	out := d.rest[:n:n]
	d.rest = d.rest[n:]
	return out, nil
}

// number reads a big-endian unsigned integer of size bytes.
func (d *decoder) number(size uint64) (uint64, error) {
	raw, err := d.take(size)
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint64(raw[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(raw)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(raw)), nil
	default:
		return binary.BigEndian.Uint64(raw), nil
	}
}

// signed reads a two's complement integer of size bytes.
func (d *decoder) signed(size uint64) (token, error) {
	n, err := d.number(size)
	if err != nil {
		return token{}, err
	}
	shift := 64 - 8*size
	value := int64(n<<shift) >> shift
	return token{kind: kindInt, negative: value < 0, n: uint64(value)}, nil
}

// sized reads the length of a value, of size bytes, and its bytes.
func (d *decoder) sized(k kind, size uint64) (token, error) {
	n, err := d.number(size)
	if err != nil {
		return token{}, err
	}
	raw, err := d.take(n)
	return token{kind: k, raw: raw}, err
}

// next reads a value, or the head of a list or a map. The number of elements of
// a list or a map is at most the number of bytes that are left.
func (d *decoder) next() (token, error) {
	first, err := d.take(1)
	if err != nil {
		return token{}, err
	}
	t, err := d.value(first[0])
	if err != nil {
		return token{}, err
	}
	if (t.kind == kindArray && t.n > uint64(len(d.rest))) || (t.kind == kindMap && t.n > uint64(len(d.rest))/2) {
		return token{}, malformed("%s of %d elements in %d bytes", t.kind, t.n, len(d.rest))
	}
	return t, nil
}

func (d *decoder) value(c byte) (token, error) {
	switch {
	case c <= 0x7f:
		return token{kind: kindInt, n: uint64(c)}, nil
	case c <= 0x8f:
		return token{kind: kindMap, n: uint64(c & 0x0f)}, nil
	case c <= 0x9f:
		return token{kind: kindArray, n: uint64(c & 0x0f)}, nil
	case c <= 0xbf:
		raw, err := d.take(uint64(c & 0x1f))
		return token{kind: kindStr, raw: raw}, err
	case c >= 0xe0:
		return token{kind: kindInt, negative: true, n: uint64(int64(int8(c)))}, nil
	}
	switch c {
	case 0xc0:
		return token{kind: kindNil}, nil
	case 0xc2, 0xc3:
		return token{kind: kindBool, flag: c == 0xc3}, nil
	case 0xc4, 0xc5, 0xc6:
		return d.sized(kindBin, 1<<(c-0xc4))
	case 0xc7, 0xc8, 0xc9:
		n, err := d.number(1 << (c - 0xc7))
		if err != nil {
			return token{}, err
		}
		_, err = d.take(n + 1) // with the extension's type
		return token{kind: kindExt}, err
	case 0xca, 0xcb:
		_, err := d.take(4 << (c - 0xca))
		return token{kind: kindFloat}, err
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := d.number(1 << (c - 0xcc))
		return token{kind: kindInt, n: n}, err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		return d.signed(1 << (c - 0xd0))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		_, err := d.take(1 + 1<<(c-0xd4)) // with the extension's type
		return token{kind: kindExt}, err
	case 0xd9, 0xda, 0xdb:
		return d.sized(kindStr, 1<<(c-0xd9))
	case 0xdc, 0xdd:
		n, err := d.number(2 << (c - 0xdc))
		return token{kind: kindArray, n: n}, err
	case 0xde, 0xdf:
		n, err := d.number(2 << (c - 0xde))
		return token{kind: kindMap, n: n}, err
	default:
		return token{}, malformed("0x%x begins no value", c)
	}
}

// skip reads what belongs to a value whose head is t.
func (d *decoder) skip(t token, depth int) error {
	var elements uint64
	switch t.kind {
	case kindArray:
		elements = t.n
	case kindMap:
		elements = 2 * t.n
	default:
		return nil
	}
	if depth >= maxDepth {
		return malformed("values are nested deeper than %d", maxDepth)
	}
	for range elements {
		inner, err := d.next()
		if err != nil {
			return err
		}
		if err := d.skip(inner, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// encoder appends values in their shortest form.
type encoder struct {
	out []byte
}

func (e *encoder) null() { e.out = append(e.out, 0xc0) }

func (e *encoder) bool(v bool) {
	if v {
		e.out = append(e.out, 0xc3)
		return
	}
	e.out = append(e.out, 0xc2)
}

func (e *encoder) uint(v uint64) {
	switch {
	case v <= 0x7f:
		e.out = append(e.out, byte(v))
	case v <= math.MaxUint8:
		e.out = append(e.out, 0xcc, byte(v))
	case v <= math.MaxUint16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		e.out = binary.BigEndian.AppendUint32(append(e.out, 0xce), uint32(v))
	default:
		e.out = binary.BigEndian.AppendUint64(append(e.out, 0xcf), v)
	}
}

func (e *encoder) int(v int64) {
	switch {
	case v >= 0:
		e.uint(uint64(v))
	case v >= -32:
		e.out = append(e.out, byte(v))
	case v >= math.MinInt8:
		e.out = append(e.out, 0xd0, byte(v))
	case v >= math.MinInt16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, 0xd1), uint16(v))
	case v >= math.MinInt32:
		e.out = binary.BigEndian.AppendUint32(append(e.out, 0xd2), uint32(v))
	default:
		e.out = binary.BigEndian.AppendUint64(append(e.out, 0xd3), uint64(v))
	}
}

// head appends a code and a length: codes are those for lengths of one (0 where
// there is none), two and four bytes, fix is the code that holds a length up to
// fixMax by itself.
func (e *encoder) head(n int, fix byte, fixMax int, one, two, four byte) {
	switch {
	case n <= fixMax:
		e.out = append(e.out, fix|byte(n))
	case n <= math.MaxUint8 && one != 0:
		e.out = append(e.out, one, byte(n))
	case n <= math.MaxUint16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, two), uint16(n))
	default:
		e.out = binary.BigEndian.AppendUint32(append(e.out, four), uint32(n))
	}
}

func (e *encoder) str(v string) {
	e.head(len(v), 0xa0, 31, 0xd9, 0xda, 0xdb)
	e.out = append(e.out, v...)
}

func (e *encoder) bin(v []byte) {
	e.head(len(v), 0, -1, 0xc4, 0xc5, 0xc6)
	e.out = append(e.out, v...)
}

func (e *encoder) array(n int)   { e.head(n, 0x90, 15, 0, 0xdc, 0xdd) }
func (e *encoder) mapping(n int) { e.head(n, 0x80, 15, 0, 0xde, 0xdf) }

// text tells whether bytes may be a string of the protocol.
func text(raw []byte) bool { return utf8.Valid(raw) }
