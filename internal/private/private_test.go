package private_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/private"
)

// Another user cannot put another directory in the place of one that is private, nor of one above it, although all
// of them are open to everybody.
func TestDirStaysWhereItIs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	top, err := os.MkdirTemp("", "private") // a test's own is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	require.NoError(t, os.Chmod(top, 0o755))
	alloc := filepath.Join(top, "alloc")
	t.Setenv("NOMAD_ALLOC_DIR", alloc)
	for _, dir := range []string{alloc, filepath.Join(alloc, "data")} { // as Nomad makes them
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Chmod(dir, 0o777))
		require.NoError(t, os.Chown(dir, 65534, 65534))
	}
	asNobody := func(script string) error {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir = alloc
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	path := filepath.Join(alloc, "data", "remuda")

	// A link that is there before is not followed.
	target := filepath.Join(top, "target")
	require.NoError(t, os.Mkdir(target, 0o700))
	require.NoError(t, os.Chmod(target, 0o777))
	require.NoError(t, asNobody("mv data away && ln -s "+target+" data"))
	_, err = private.Dir(path)
	require.ErrorContains(t, err, "must be a directory, and not a link to one")
	info, err := os.Stat(target)
	require.NoError(t, err)
	require.Zero(t, info.Mode()&fs.ModeSticky)
	require.NoDirExists(t, filepath.Join(target, "remuda"))
	require.NoError(t, asNobody("rm data && mv away data"))

	dir, err := private.Dir(path)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, asNobody("mkdir data/theirs && mv data/theirs data/other && mkdir mine"), "others work in them as before")
	require.Error(t, asNobody("mv data/remuda data/away"))
	require.Error(t, asNobody("ls data/remuda"))
	require.Error(t, asNobody("mv data away"))
	info, err = os.Stat(top)
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o755, info.Mode(), "what is above the allocation stays as it is")

	require.NoError(t, os.Remove(path))
	require.NoError(t, asNobody("mkdir -m 700 data/remuda"))
	_, err = private.Dir(path)
	require.ErrorContains(t, err, "belongs to user 65534: must belong to user 0")
}

// Outside an allocation the directory above stays as it is.
func TestDirOutsideAnAllocation(t *testing.T) {
	t.Setenv("NOMAD_ALLOC_DIR", filepath.Join(t.TempDir(), "alloc"))
	above := t.TempDir()
	require.NoError(t, os.Chmod(above, 0o777))
	dir, err := private.Dir(filepath.Join(above, "remuda"))
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	info, err := os.Stat(above)
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|0o777, info.Mode())
}
