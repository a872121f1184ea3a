package weights_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim/weights"
)

// file is a safetensors file with the given header and data.
func file(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func write(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func load(t *testing.T, path string) (*weights.Header, []byte) {
	t.Helper()
	f, err := weights.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	data := make([]byte, f.Header.DataSize)
	require.NoError(t, f.Load(data))
	return f.Header, data
}

func TestCreate(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{weights.MinSize, weights.MinSize + 1, 100_003, 3 << 20, 70<<20 + 8} {
		path := filepath.Join(t.TempDir(), "w.safetensors")
		created, err := weights.Create(path, weights.Spec{Size: size, Seed: 7})
		require.NoError(t, err)
		assert.True(t, created)
		h, data := load(t, path)
		assert.Equal(t, size, h.DataSize)
		assert.Zero(t, h.DataOffset%8, "the data is aligned")
		assert.Greater(t, len(h.Tensors), 1)
		digests, err := h.Digests()
		require.NoError(t, err)
		require.Len(t, digests, len(h.Tensors))
		require.NoError(t, h.Check(bytes.NewReader(data), digests))

		// Damage anywhere is found, and named.
		for _, at := range []int64{0, size / 2, size - 1} {
			data[at] ^= 0x40
			err := h.Check(bytes.NewReader(data), digests)
			require.ErrorIs(t, err, weights.ErrDigest)
			for _, tensor := range h.Tensors {
				assert.Equal(t, tensor.Begin <= at && at < tensor.End, strings.Contains(err.Error(), `"`+tensor.Name+`"`))
			}
			data[at] ^= 0x40
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
		require.NoError(t, err)
		assert.Empty(t, left, "no temporary file stays")
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	spec := weights.Spec{Size: 100_000, Seed: 1}
	create := func(spec weights.Spec) bool {
		created, err := weights.Create(path, spec)
		require.NoError(t, err)
		return created
	}
	require.True(t, create(spec))
	before, err := os.Stat(path)
	require.NoError(t, err)
	assert.False(t, create(spec), "equal spec")
	after, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after))

	first, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, create(weights.Spec{Size: 100_000, Seed: 2}), "another seed")
	assert.True(t, create(weights.Spec{Size: 100_001, Seed: 2}), "another size")
	assert.True(t, create(spec), "back")
	second, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, first, second, "equal specs give equal files")

	for name, damage := range map[string]func([]byte) []byte{
		"flipped bit":    func(b []byte) []byte { b[len(b)-5] ^= 1; return b },
		"truncated":      func(b []byte) []byte { return b[:len(b)-1] },
		"header damaged": func(b []byte) []byte { b[9] = 'x'; return b },
		"empty":          func([]byte) []byte { return nil },
		"foreign file":   func([]byte) []byte { return file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{1}) },
	} {
		require.NoError(t, os.WriteFile(path, damage(append([]byte(nil), first...)), 0o600))
		assert.True(t, create(spec), name)
		again, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, first, again, name)
	}
}

// The temporary file of a process that was killed is used by the next one.
func TestCreateAfterAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "w.safetensors")
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".w.safetensors.tmp"), make([]byte, 1<<20), 0o600))
	created, err := weights.Create(path, weights.Spec{Size: 100_000, Seed: 1})
	require.NoError(t, err)
	require.True(t, created)
	load(t, path)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestCreateAtOnce: several tasks may make one file.
func TestCreateAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := weights.Create(path, weights.Spec{Size: 1 << 20, Seed: 1})
			assert.NoError(t, err)
		})
	}
	all.Wait()
	load(t, path)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := weights.Create(filepath.Join(dir, "w"), weights.Spec{Size: 100})
	require.ErrorContains(t, err, "size is 100 bytes: must be 4096")
	_, err = weights.Create(filepath.Join(dir, "no", "such", "w"), weights.Spec{Size: weights.MinSize})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = weights.Create(dir, weights.Spec{Size: weights.MinSize})
	require.ErrorContains(t, err, "not a regular file")
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	const a = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	eight := make([]byte, 8)
	tests := []struct {
		name    string
		content []byte
		want    string
	}{
		{"empty file", nil, "0 bytes long"},
		{"no header", []byte{1, 2, 3}, "3 bytes long"},
		{"header cut off", file(a+"}", eight)[:20], "truncated?"},
		{"header length absurd", append([]byte{255, 255, 255, 255, 255, 255, 255, 255}, eight...), "the limit is 100000000"},
		{"header length zero", make([]byte, 8), "begin with '{'"},
		{"not JSON", file(`{"a":`, nil), "header"},
		{"JSON but a list", file(`[]`, nil), "begin with '{'"},
		{"text after the object", file(a+"} x", eight), "only spaces may follow"},
		{"duplicate tensor", file(a+`,"a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`, eight), "occurs twice"},
		{"data cut off", file(a+"}", eight[:7]), "the file is truncated"},
		{"data too long", file(a+"}", append(eight, 0)), "too many"},
		{"unknown dtype", file(`{"a":{"dtype":"Q7","shape":[8],"data_offsets":[0,8]}}`, eight), `unknown dtype "Q7"`},
		{"unknown field", file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}}`, eight), "unknown field"},
		{"shape missing", file(`{"a":{"dtype":"U8","data_offsets":[0,8]}}`, eight), "shape is missing"},
		{"shape does not match", file(`{"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}}`, eight), "takes 7 bytes"},
		{"shape overflows", file(`{"a":{"dtype":"U8","shape":[9223372036854775807,9],"data_offsets":[0,8]}}`, eight), "overflows"},
		{"negative shape", file(`{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}`, eight), "cannot unmarshal"},
		{"offsets swapped", file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}}`, eight), "out of range"},
		{"one offset", file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[8]}}`, eight), "has 1 entries"},
		{"gap", file(a+`,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, make([]byte, 10)), "the one before it ends at 8"},
		{"overlap", file(a+`,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, eight), "the one before it ends at 8"},
		{"gap at the start", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, eight[:2]), "ends at 0"},
		{"metadata not text", file(a+`,"__metadata__":{"k":1}}`, eight), "__metadata__"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := write(t, tt.content)
			_, err := weights.Open(path)
			require.ErrorIs(t, err, weights.ErrFormat)
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestOpenForeignFiles(t *testing.T) {
	t.Parallel()
	// Tensors in any order, one without elements, one scalar, spaces behind.
	h, data := load(t, write(t, file(
		`{"b":{"dtype":"F64","shape":[],"data_offsets":[2,10]},"none":{"dtype":"F32","shape":[3,0],"data_offsets":[2,2]},`+
			`"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"__metadata__":{"format":"pt"}}   `, []byte("0123456789"))))
	var names []string
	for _, tensor := range h.Tensors {
		names = append(names, tensor.Name)
	}
	assert.Equal(t, []string{"a", "none", "b"}, names)
	assert.Equal(t, "0123456789", string(data))
	digests, err := h.Digests()
	require.NoError(t, err)
	assert.Empty(t, digests, "it carries none")
	sums, err := h.Sum(bytes.NewReader(data))
	require.NoError(t, err)
	assert.Len(t, sums, 3)

	h, _ = load(t, write(t, file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"xxh64.a":"12"}}`, []byte{1})))
	_, err = h.Digests()
	require.ErrorContains(t, err, "must be 16 hexadecimal digits")
}

func TestLoadNoticesTruncation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	_, err := weights.Create(path, weights.Spec{Size: 20 << 20})
	require.NoError(t, err)
	f, err := weights.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, os.Truncate(path, 9<<20))
	require.ErrorContains(t, f.Load(make([]byte, f.Header.DataSize)), "truncated while it was read")
	require.ErrorContains(t, f.Load(make([]byte, 5)), "the destination has 5 bytes")
}

// FuzzReadHeader checks that no header makes the parser panic or accept what
// does not add up.
func FuzzReadHeader(f *testing.F) {
	f.Add(file(`{}`, nil))
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"xxh64.a":"0123456789abcdef"}}  `, make([]byte, 8)))
	f.Add(file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"I16","shape":[],"data_offsets":[0,2]}}`, make([]byte, 2)))
	f.Add(file(`{"a":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,18446744073709551614]}}`, nil))
	f.Add([]byte{255, 0, 0, 0, 0, 0, 0, 128})
	f.Fuzz(func(t *testing.T, content []byte) {
		h, err := weights.ReadHeader(strings.NewReader(string(content)), int64(len(content)))
		if err != nil {
			require.ErrorIs(t, err, weights.ErrFormat)
			return
		}
		require.Equal(t, int64(len(content)), h.DataOffset+h.DataSize)
		var end int64
		for _, tensor := range h.Tensors {
			require.Equal(t, end, tensor.Begin)
			require.GreaterOrEqual(t, tensor.End, tensor.Begin)
			end = tensor.End
		}
		require.Equal(t, h.DataSize, end)
		data := content[h.DataOffset:]
		sums, err := h.Sum(bytes.NewReader(data))
		require.NoError(t, err)
		require.NoError(t, h.Check(bytes.NewReader(data), sums))
		_, _ = h.Digests()
	})
}

func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(b.TempDir(), "w.safetensors")
	_, err := weights.Create(path, weights.Spec{Size: 256 << 20})
	require.NoError(b, err)
	f, err := weights.Open(path)
	require.NoError(b, err)
	data := make([]byte, f.Header.DataSize)
	require.NoError(b, f.Load(data))
	require.NoError(b, f.Close())
	digests, err := f.Header.Digests()
	require.NoError(b, err)
	b.SetBytes(256 << 20)
	for b.Loop() {
		require.NoError(b, f.Header.Check(bytes.NewReader(data), digests))
	}
}
