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

func TestOptionsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct{ name, want string }{
		"too long":  {strings.Repeat("x", 129), "129 bytes"},
		"not UTF-8": {"a\xff", "not valid UTF-8"},
		"newline":   {"a\nb", `has the character '\n'`},
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

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.gguf")
	require.NoError(t, gguf.Write(good, gguf.Options{}))
	require.NoError(t, gguf.Check(good))
	for name, tc := range map[string]struct{ content, want string }{
		"empty":       {"", "too short"},
		"cut off":     {"GGUF\x03\x00\x00", "too short"},
		"other":       {"PK\x03\x04 and so on", `not a GGUF file: it begins with "PK\x03\x04"`},
		"version 1":   {"GGUF\x01\x00\x00\x00", "GGUF version 1: must be 2 or 3"},
		"big endian":  {"GGUF\x00\x00\x00\x03", "GGUF version 50331648"},
		"safetensors": {"\x10\x00\x00\x00\x00\x00\x00\x00{", "not a GGUF file"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "m.gguf")
			require.NoError(t, os.WriteFile(path, []byte(tc.content), 0o600))
			err := gguf.Check(path)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, path)
		})
	}
	require.ErrorContains(t, gguf.Check(dir), "not a regular file")
	require.ErrorIs(t, gguf.Check(filepath.Join(dir, "none")), os.ErrNotExist)
}
