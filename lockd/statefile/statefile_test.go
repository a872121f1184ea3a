package statefile_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/lockd/statefile"
)

func open(t *testing.T, path string) (*statefile.File, string) {
	t.Helper()
	f, doc, err := statefile.Open(path)
	require.NoError(t, err)
	return f, string(doc)
}

// save writes documents and closes the file; settle tells whether the last one
// is witnessed.
func save(t *testing.T, path string, settle bool, docs ...string) {
	t.Helper()
	f, _ := open(t, path)
	for _, d := range docs {
		require.NoError(t, f.Save([]byte(d)))
	}
	if settle {
		require.NoError(t, f.Settle())
	}
	require.NoError(t, f.Close())
}

func read(t *testing.T, path string) string {
	t.Helper()
	f, doc := open(t, path)
	require.NoError(t, f.Close())
	return doc
}

func TestDocumentsComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, doc, err := statefile.Open(path)
	require.NoError(t, err)
	require.Nil(t, doc, "a new file has none")
	require.NoError(t, f.Close())
	require.Empty(t, read(t, path), "nor has one that was never written")
	for i := range 5 {
		for _, settle := range []bool{true, false} {
			want := fmt.Sprintf("document %d, settled %t, %s", i, settle, strings.Repeat("x", i*1000))
			save(t, path, settle, "before", want)
			require.Equal(t, want, read(t, path))
		}
	}
	save(t, path, true, "")
	require.Empty(t, read(t, path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestTwoWritersAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, _ := open(t, path)
	_, _, err := statefile.Open(path)
	require.ErrorIs(t, err, statefile.ErrInUse)
	require.ErrorContains(t, err, path)
	require.NoError(t, f.Save([]byte("mine")), "the first one goes on")
	require.NoError(t, f.Close())
	require.Equal(t, "mine", read(t, path))
}

// slot is where a generation's document stands.
func slot(generation int64) int64 { return generation % 2 * (4 << 20) }

func patch(t *testing.T, path string, at int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(text), at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestTornWriteLeavesTheDocumentBefore, whatever is left of it.
func TestTornWriteLeavesTheDocumentBefore(t *testing.T) {
	for name, tear := range map[string]string{"the header": "remuda-lockd-state/1 3 9", "all": strings.Repeat("\x00", 100), "garbage": "\xff\xfe"} {
		path := filepath.Join(t.TempDir(), "state")
		save(t, path, true, "one", "two") // generations 2 and 3
		patch(t, path, slot(4), tear)     // generation 4 was being written
		require.Equal(t, "two", read(t, path), name)
		save(t, path, true, "three")
		require.Equal(t, "three", read(t, path), name)
	}
}

// TestTornCreation: nothing was ever saved, so nothing is lost.
func TestTornCreation(t *testing.T) {
	for name, content := range map[string][2]string{
		"empty": {"", ""}, "state torn": {"remuda-lockd-st", ""}, "witness torn": {"whole", "remuda-lockd-st"},
	} {
		path := filepath.Join(t.TempDir(), "state")
		if content[0] == "whole" {
			save(t, path, false)
		} else {
			require.NoError(t, os.WriteFile(path, []byte(content[0]), 0o600))
		}
		require.NoError(t, os.WriteFile(path+".gen", []byte(content[1]), 0o600))
		require.Empty(t, read(t, path), name)
		save(t, path, true, "one")
		require.Equal(t, "one", read(t, path), name)
	}
}

func TestDamageIsNotBelieved(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(t *testing.T, path string)
		want   error
	}{
		"the newest document is changed": {func(t *testing.T, path string) { patch(t, path, slot(3)+40, "X") }, statefile.ErrRolledBack},
		"both documents are changed": {func(t *testing.T, path string) {
			patch(t, path, slot(2)+40, "X")
			patch(t, path, slot(3)+40, "X")
		}, statefile.ErrCorrupt},
		"it is cut off":       {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 30)) }, statefile.ErrCorrupt},
		"it is empty":         {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) }, statefile.ErrRolledBack},
		"it is missing":       {func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, statefile.ErrRolledBack},
		"the witness is gone": {func(t *testing.T, path string) { require.NoError(t, os.Remove(path+".gen")) }, statefile.ErrCorrupt},
		"the witness is damaged": {func(t *testing.T, path string) {
			patch(t, path+".gen", 0, "XXXX")
			patch(t, path+".gen", 4<<20, "XXXX")
		}, statefile.ErrCorrupt},
		"it is a directory": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}, unix.EISDIR},
		"it is a link": {func(t *testing.T, path string) {
			require.NoError(t, os.Rename(path, path+".real"))
			require.NoError(t, os.Symlink(path+".real", path))
		}, unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			save(t, path, true, "document one, long enough to be damaged", "document two, long enough to be damaged")
			tc.damage(t, path)
			_, _, err := statefile.Open(path)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestOlderCopyIsNotBelieved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	save(t, path, true, "one", "two")
	copied, err := os.ReadFile(path)
	require.NoError(t, err)
	save(t, path, true, "three")
	require.NoError(t, os.WriteFile(path, copied, 0o600))
	_, _, err = statefile.Open(path)
	require.ErrorIs(t, err, statefile.ErrRolledBack)
	require.ErrorContains(t, err, "it has generation 3 and had generation 4")
	require.ErrorContains(t, err, "delete "+path)
}

func TestReplacedFileIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, _ := open(t, path)
	require.NoError(t, f.Save([]byte("one")))
	require.NoError(t, os.Rename(path, path+".away"))
	require.ErrorIs(t, f.Save([]byte("two")), statefile.ErrReplaced)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorIs(t, f.Save([]byte("two")), statefile.ErrReplaced)
	require.NoError(t, os.Rename(path+".away", path))
	require.NoError(t, f.Save([]byte("three")))
	require.NoError(t, f.Close())
	require.Equal(t, "three", read(t, path))
}

// TestFullDisk writes nothing and loses nothing. It needs a file system of its
// own, which only root can mount.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	path := filepath.Join(dir, "state")
	f, _ := open(t, path)
	require.NoError(t, f.Save([]byte("one")))
	require.ErrorIs(t, f.Save(bytes.Repeat([]byte{7}, 128<<10)), unix.ENOSPC)
	require.NoError(t, f.Close())
	require.Equal(t, "one", read(t, path), "the torn write left the document before it")
	f, _ = open(t, path)
	require.NoError(t, f.Save([]byte("two")), "what fits is written again")
	require.NoError(t, f.Close())
	require.Equal(t, "two", read(t, path))
}

func TestTooLargeADocument(t *testing.T) {
	f, _ := open(t, filepath.Join(t.TempDir(), "state"))
	defer f.Close()
	require.ErrorContains(t, f.Save(make([]byte, 4<<20)), "must be at most")
	require.NoError(t, f.Save([]byte("one")))
}

// FuzzDamage changes any byte of either file: what is believed was written.
func FuzzDamage(f *testing.F) {
	f.Add(uint32(40), byte(1), false)
	f.Add(uint32(4<<20+3), byte(0xff), true)
	f.Fuzz(func(t *testing.T, at uint32, flip byte, witness bool) {
		path := filepath.Join(t.TempDir(), "state")
		save(t, path, true, "one", "two")
		target := path
		if witness {
			target += ".gen"
		}
		file, err := os.OpenFile(target, os.O_RDWR, 0)
		require.NoError(t, err)
		b := make([]byte, 1)
		if _, err := file.ReadAt(b, int64(at%(4<<20+100))); err == nil {
			b[0] ^= flip
			_, err = file.WriteAt(b, int64(at%(4<<20+100)))
			require.NoError(t, err)
		}
		require.NoError(t, file.Close())
		got, doc, err := statefile.Open(path)
		if err == nil {
			require.Equal(t, "two", string(doc))
			require.NoError(t, got.Close())
		}
	})
}
