package gguf_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/gguf"
)

func encode(t testing.TB, o gguf.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, gguf.Encode(&b, o))
	return b.Bytes()
}

// The bytes are pinned: machines of any architecture and later versions of Go
// must make the same file, because test answers and blob digests depend on it.
func TestEncodeIsTheSameEverywhere(t *testing.T) {
	sum := sha256.Sum256(encode(t, gguf.Options{Seed: 1}))
	require.Equal(t, "f8da91b4925fdce9a77aee6cb626088264b0cda00670206bb6886bb1951be793", hex.EncodeToString(sum[:]))
}

func TestEncodeDependsOnSeedAndName(t *testing.T) {
	one := encode(t, gguf.Options{Seed: 1})
	require.Equal(t, one, encode(t, gguf.Options{Seed: 1, Name: gguf.DefaultName}))
	require.NotEqual(t, one, encode(t, gguf.Options{Seed: 2}))
	require.NotEqual(t, one, encode(t, gguf.Options{Seed: 1, Name: "other"}))
}

func TestEncodedModelIsRead(t *testing.T) {
	file := encode(t, gguf.Options{Seed: 7, Name: "demo"})
	info, err := gguf.Read(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, gguf.Info{
		Version: 3, Architecture: "llama", Name: "demo", ContextLength: 8192,
		Tensors: 21, Pairs: 23, Parameters: 115_392, Size: uint64(len(file)),
	}, info)
	require.InDelta(t, 470_000, len(file), 5_000)
}

func TestOptionsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct{ name, want string }{
		"too long":  {strings.Repeat("x", 129), "129 bytes"},
		"not UTF-8": {"a\xff", "not valid UTF-8"},
		"newline":   {"a\nb", `holds '\n'`},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, gguf.Encode(&bytes.Buffer{}, gguf.Options{Name: tc.name}), tc.want)
			path := filepath.Join(t.TempDir(), "m.gguf")
			require.ErrorContains(t, gguf.Write(path, gguf.Options{Name: tc.name}), tc.want)
			require.NoFileExists(t, path)
		})
	}
}

func TestWriteReplacesAtomically(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	require.NoError(t, gguf.Write(path, gguf.Options{Seed: 3}))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, encode(t, gguf.Options{Seed: 3}), got)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), st.Mode().Perm())
	requireOnly(t, dir, "m.gguf")
}

func TestWriteLeavesNothingBehindWhenItFails(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "m.gguf"), 0o755))
	require.ErrorContains(t, gguf.Write(filepath.Join(dir, "m.gguf"), gguf.Options{}), "m.gguf")
	requireOnly(t, dir, "m.gguf")
	require.ErrorIs(t, gguf.Write(filepath.Join(dir, "none", "m.gguf"), gguf.Options{}), os.ErrNotExist)
}

func requireOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, names, got)
}
