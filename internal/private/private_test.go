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

// Another user cannot put another directory in the place of one that is private, although the one above is open
// to everybody.
func TestDirStaysWhereItIs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	above, err := os.MkdirTemp("", "private") // a test's own is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(above) })
	require.NoError(t, os.Chmod(above, 0o777))
	require.NoError(t, os.Chown(above, 65534, 65534)) // as Nomad does
	path := filepath.Join(above, "remuda")
	dir, err := private.Dir(path)
	require.NoError(t, err)
	defer dir.Close()
	asNobody := func(script string) error {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir = above
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	require.NoError(t, asNobody("mkdir theirs && mv theirs other"), "others work in it as before")
	require.Error(t, asNobody("mv remuda away"))
	require.Error(t, asNobody("ls remuda"))
	require.NoError(t, os.Remove(path))
	require.NoError(t, asNobody("mkdir -m 700 remuda"))
	_, err = private.Dir(path)
	require.ErrorContains(t, err, "belongs to user 65534: must belong to user 0")
}

// A directory above that nobody else can write to stays as it is.
func TestClosedDirIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	require.NoError(t, os.Chmod(above, 0o755))
	dir, err := private.Dir(filepath.Join(above, "remuda"))
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	info, err := os.Stat(above)
	require.NoError(t, err)
	require.Zero(t, info.Mode()&fs.ModeSticky)
}
