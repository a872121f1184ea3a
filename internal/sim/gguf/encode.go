package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

const (
	magic = "GGUF"
	// version is the version that Encode writes: little endian, 64-bit
	// counts and lengths.
	version = 3
	// defaultAlignment is where tensor data starts and where each tensor
	// starts in it, in bytes, when the file has no general.alignment.
	defaultAlignment = 32
)

// valueType is the type of a metadata value, numbered as in docs/gguf.md.
type valueType uint32

const (
	typeUint8 valueType = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// pair is one metadata entry. Its value is a uint32, float32, bool, string,
// []string, []float32 or []int32.
type pair struct {
	key   string
	value any
}

// tensor is one F32 tensor; shape lists the fastest varying dimension first.
type tensor struct {
	name  string
	shape []uint64
	data  []float32
}

const tensorF32 = 0

func encode(w io.Writer, o Options) error {
	e := encoder{w: w}
	meta, tensors := metadata(o), weights(o.Seed)
	e.bytes([]byte(magic))
	e.uint32(version)
	e.uint64(uint64(len(tensors)))
	e.uint64(uint64(len(meta)))
	for _, p := range meta {
		e.string(p.key)
		e.value(p.value)
	}
	var offset uint64
	for _, t := range tensors {
		e.string(t.name)
		e.uint32(uint32(len(t.shape)))
		for _, n := range t.shape {
			e.uint64(n)
		}
		e.uint32(tensorF32)
		e.uint64(offset)
		offset += padded(uint64(len(t.data))*4, defaultAlignment)
	}
	for _, t := range tensors {
		e.pad()
		for _, v := range t.data {
			e.uint32(math.Float32bits(v))
		}
	}
	e.pad()
	return e.err
}

// padded rounds n up to a multiple of align.
func padded(n, align uint64) uint64 { return (n + align - 1) / align * align }

// encoder writes little-endian values and keeps the first error.
type encoder struct {
	w   io.Writer
	n   uint64
	err error
	buf [8]byte
}

func (e *encoder) bytes(b []byte) {
	if e.err != nil {
		return
	}
	_, e.err = e.w.Write(b)
	e.n += uint64(len(b))
}

func (e *encoder) uint32(v uint32) {
	binary.LittleEndian.PutUint32(e.buf[:4], v)
	e.bytes(e.buf[:4])
}

func (e *encoder) uint64(v uint64) {
	binary.LittleEndian.PutUint64(e.buf[:], v)
	e.bytes(e.buf[:])
}

func (e *encoder) string(s string) {
	e.uint64(uint64(len(s)))
	e.bytes([]byte(s))
}

func (e *encoder) pad() {
	e.bytes(make([]byte, padded(e.n, defaultAlignment)-e.n))
}

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case uint32:
		e.uint32(uint32(typeUint32))
		e.uint32(v)
	case float32:
		e.uint32(uint32(typeFloat32))
		e.uint32(math.Float32bits(v))
	case bool:
		e.uint32(uint32(typeBool))
		if v {
			e.bytes([]byte{1})
		} else {
			e.bytes([]byte{0})
		}
	case string:
		e.uint32(uint32(typeString))
		e.string(v)
	case []string:
		e.array(typeString, len(v))
		for _, s := range v {
			e.string(s)
		}
	case []float32:
		e.array(typeFloat32, len(v))
		for _, f := range v {
			e.uint32(math.Float32bits(f))
		}
	case []int32:
		e.array(typeInt32, len(v))
		for _, n := range v {
			e.uint32(uint32(n))
		}
	default:
		e.err = fmt.Errorf("encode metadata: no GGUF type for %T", v)
	}
}

func (e *encoder) array(t valueType, n int) {
	e.uint32(uint32(typeArray))
	e.uint32(uint32(t))
	e.uint64(uint64(n))
}
