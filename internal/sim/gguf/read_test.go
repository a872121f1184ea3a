package gguf_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/gguf"
)

// file builds GGUF files that Encode would not: it writes what it is told.
type file struct{ bytes.Buffer }

func (f *file) le(vs ...any) *file {
	for _, v := range vs {
		if err := binary.Write(f, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return f
}

func (f *file) str(s string) *file {
	f.le(uint64(len(s)))
	f.WriteString(s)
	return f
}

func head(version uint32, tensors, pairs uint64) *file {
	f := &file{}
	f.WriteString("GGUF")
	return f.le(version, tensors, pairs)
}

const (
	tUint32 = uint32(4)
	tInt32  = uint32(5)
	tBool   = uint32(7)
	tString = uint32(8)
	tArray  = uint32(9)
)

func (f *file) arch() *file { return f.str("general.architecture").le(tString).str("llama") }

// weight adds a tensor entry.
func (f *file) weight(name string, kind uint32, offset uint64, dims ...uint64) *file {
	return f.str(name).le(uint32(len(dims)), dims, kind, offset)
}

func TestReadNamesTheMistake(t *testing.T) {
	tests := map[string]struct {
		file []byte
		kind error
		want string
	}{
		"empty":            {nil, gguf.ErrNotGGUF, "empty"},
		"another format":   {[]byte("PK\x03\x04zipzip"), gguf.ErrNotGGUF, `starts with "PK\x03\x04"`},
		"old GGML":         {[]byte("ggjt\x03\x00\x00\x00"), gguf.ErrNotGGUF, `want "GGUF"`},
		"HTML error page":  {[]byte("<!doctype html>"), gguf.ErrNotGGUF, `"<!do"`},
		"half a magic":     {[]byte("GG"), gguf.ErrTruncated, "after 2 bytes"},
		"only magic":       {[]byte("GGUF"), gguf.ErrTruncated, "after 4 bytes"},
		"version 0":        {head(0, 1, 1).Bytes(), gguf.ErrUnsupported, "version 0"},
		"version 1":        {head(1, 1, 1).Bytes(), gguf.ErrUnsupported, "version 1"},
		"version 4":        {head(4, 1, 1).Bytes(), gguf.ErrUnsupported, "version 4"},
		"big endian":       {head(0x03000000, 1, 1).Bytes(), gguf.ErrUnsupported, "big endian"},
		"too many tensors": {head(3, 1<<40, 1).Bytes(), gguf.ErrMalformed, "1099511627776 tensors"},
		"too many pairs":   {head(3, 1, 1<<40).Bytes(), gguf.ErrMalformed, "1099511627776 metadata"},
		"no architecture": {
			head(3, 1, 1).str("general.name").le(tString).str("x").Bytes(),
			gguf.ErrMalformed, "general.architecture",
		},
		"architecture is a number": {
			head(3, 1, 1).str("general.architecture").le(tUint32, uint32(1)).Bytes(),
			gguf.ErrMalformed, "general.architecture",
		},
		"no tensors": {head(3, 0, 1).arch().Bytes(), gguf.ErrUnsupported, "no tensors"},
		"split": {
			head(3, 1, 3).arch().str("split.count").le(uint32(2), uint16(3)).str("split.no").le(uint32(2), uint16(1)).Bytes(),
			gguf.ErrUnsupported, "part 2 of a model split into 3 files",
		},
		"adapter": {
			head(3, 1, 2).arch().str("general.type").le(tString).str("adapter").Bytes(),
			gguf.ErrUnsupported, `it holds a "adapter"`,
		},
		"same key twice": {head(3, 1, 2).arch().arch().Bytes(), gguf.ErrMalformed, "twice"},
		"empty key":      {head(3, 1, 1).str("").le(tUint32, uint32(1)).Bytes(), gguf.ErrMalformed, "no key"},
		"bad bool":       {head(3, 1, 1).str("b").le(tBool, uint8(2)).Bytes(), gguf.ErrMalformed, "boolean has value 2"},
		"unknown type":   {head(3, 1, 1).str("b").le(uint32(13)).Bytes(), gguf.ErrMalformed, "unknown value type 13"},
		"nested array":   {head(3, 1, 1).str("b").le(tArray, tArray, uint64(1)).Bytes(), gguf.ErrMalformed, "value type 9"},
		"huge array":     {head(3, 1, 1).str("b").le(tArray, tUint32, uint64(1)<<60).Bytes(), gguf.ErrMalformed, "elements"},
		"huge string":    {head(3, 1, 1).str("b").le(tString, uint64(1)<<60).Bytes(), gguf.ErrMalformed, "string claims"},
		"long string that is not there": {
			head(3, 1, 1).str("b").le(tString, uint64(16<<20)).Bytes(), gguf.ErrTruncated, "inside its header",
		},
		"alignment 0": {
			head(3, 1, 2).arch().str("general.alignment").le(tUint32, uint32(0)).Bytes(),
			gguf.ErrMalformed, "general.alignment is 0",
		},
		"alignment negative": {
			head(3, 1, 2).arch().str("general.alignment").le(tInt32, int32(-8)).Bytes(),
			gguf.ErrMalformed, "general.alignment",
		},
		"same tensor twice": {
			head(3, 2, 1).arch().weight("w", 0, 0, 8).weight("w", 0, 32, 8).Bytes(),
			gguf.ErrMalformed, `tensor "w" occurs twice`,
		},
		"unaligned tensor": {
			head(3, 1, 1).arch().weight("w", 0, 4, 8).Bytes(), gguf.ErrMalformed, "offset 4",
		},
		"five dimensions": {
			head(3, 1, 1).arch().weight("w", 0, 0, 1, 1, 1, 1, 1).Bytes(), gguf.ErrMalformed, "5 dimensions",
		},
		"overflowing dimensions": {
			head(3, 1, 1).arch().weight("w", 0, 0, 1<<40, 1<<40).Bytes(), gguf.ErrMalformed, "2^63",
		},
		"overflowing size": {
			head(3, 1, 1).arch().weight("w", 0, 0, 1<<62).Bytes(), gguf.ErrMalformed, "2^64 bytes",
		},
		"partial block": {
			head(3, 1, 1).arch().weight("w", 12, 0, 100).Bytes(), gguf.ErrMalformed, "multiple of 256",
		},
		"missing tensor table": {head(3, 2, 1).arch().weight("w", 0, 0, 8).Bytes(), gguf.ErrTruncated, "header"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := gguf.Read(bytes.NewReader(tc.file))
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestReadAcceptsWhatModelsHold(t *testing.T) {
	f := head(2, 3, 5).arch().
		str("llama.context_length").le(tUint32, uint32(131072)).
		str("general.alignment").le(tUint32, uint32(64)).
		str("split.count").le(uint32(2), uint16(1)).
		str("tokens").le(tArray, tString, uint64(2)).str("a").str("bc").
		weight("q", 12, 0, 512, 2).      // Q4_K: 4 blocks of 144 bytes
		weight("scalar", 0, 576).        // no dimensions: one element
		weight("newer type", 99, 640, 7) // size unknown
	info, err := gguf.Read(bytes.NewReader(f.Bytes()))
	require.NoError(t, err)
	start := uint64(f.Len()+63) / 64 * 64
	require.Equal(t, gguf.Info{
		Version: 2, Architecture: "llama", ContextLength: 131072,
		Tensors: 3, Pairs: 5, Parameters: 1024 + 1 + 7, Size: start + 640,
	}, info)
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	require.NoError(t, gguf.Write(path, gguf.Options{Name: "n"}))
	info, err := gguf.Inspect(path)
	require.NoError(t, err)
	require.Equal(t, "n", info.Name)

	t.Run("missing", func(t *testing.T) {
		_, err := gguf.Inspect(filepath.Join(dir, "none.gguf"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("directory", func(t *testing.T) {
		_, err := gguf.Inspect(dir)
		require.ErrorContains(t, err, "not a regular file")
	})
	t.Run("one byte short", func(t *testing.T) {
		short := filepath.Join(dir, "short.gguf")
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(short, whole[:len(whole)-1], 0o600))
		_, err = gguf.Inspect(short)
		require.ErrorIs(t, err, gguf.ErrTruncated)
		require.ErrorContains(t, err, short)
	})
}

// A file that is cut anywhere is refused as truncated, or as no GGUF at all
// when nothing is left.
func TestEveryCutIsNoticed(t *testing.T) {
	whole := encode(t, gguf.Options{Seed: 5})
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, len(whole)-1).Draw(rt, "bytes left")
		path := filepath.Join(dir, "cut.gguf")
		require.NoError(rt, os.WriteFile(path, whole[:n], 0o600))
		_, err := gguf.Inspect(path)
		require.ErrorIs(rt, err, gguf.ErrTruncated)
	})
}

func FuzzRead(f *testing.F) {
	whole := encode(f, gguf.Options{Seed: 1})
	f.Add(whole[:8<<10]) // the header and a little data
	f.Add([]byte("GGUF"))
	f.Add(head(3, 1, 1).arch().weight("w", 12, 0, 256).Bytes())
	f.Add(head(2, 1, 2).arch().str("a").le(tArray, tString, uint64(1)).str("x").weight("w", 0, 0, 8).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := gguf.Read(bytes.NewReader(b))
		if err != nil {
			if info != (gguf.Info{}) {
				t.Fatalf("an error and a result: %v, %+v", err, info)
			}
			return
		}
		if info.Architecture == "" || info.Tensors == 0 {
			t.Fatalf("accepted a file that no engine can run: %+v", info)
		}
		// Bytes after the header must not matter.
		again, err := gguf.Read(bytes.NewReader(append(bytes.Clone(b), 1, 2, 3)))
		if err != nil || again != info {
			t.Fatalf("trailing bytes changed the answer: %+v, %v", again, err)
		}
	})
}
