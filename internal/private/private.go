// Package private makes directories of one user in directories where others may write, as Nomad's
// alloc/data is.
package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir opens the directory at path, and makes it with mode 0700 unless it exists; the one above must exist. It
// refuses one that belongs to another user or gives others rights, and a link. Where the directory above is open
// to everybody and this process may change it, it gets the sticky bit, and root takes it over: nobody else can
// rename or remove what is in it then, not even its owner (Nomad gives alloc/data to nobody).
func Dir(path string) (*os.File, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w: must be a directory, and not a link to one", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	// The bit comes first: what is checked then stays where it is.
	if err := errors.Join(stick(filepath.Dir(path)), CheckOwner(dir, 0o077)); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// stick sets the sticky bit of a directory that is open to everybody, if it belongs to this process' user or
// that is root, who becomes its owner.
func stick(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	owner, me := info.Sys().(*syscall.Stat_t).Uid, os.Geteuid()
	if info.Mode()&0o002 == 0 || int(owner) != me && me != 0 {
		return nil
	}
	if int(owner) != me {
		if err := os.Chown(path, me, -1); err != nil {
			return err
		}
	}
	return os.Chmod(path, info.Mode()&(fs.ModePerm|fs.ModeSetgid)|fs.ModeSticky)
}

// CheckOwner refuses a file of another user, and one on which others have one of the rights.
func CheckOwner(f *os.File, rights fs.FileMode) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: must belong to user %d, whose process this is: remove it", f.Name(), st.Uid, os.Geteuid())
	}
	if mode := fs.FileMode(st.Mode & 0o777); mode&rights != 0 {
		return fmt.Errorf("%s has mode %#o: must give other users no rights: chmod go= %s", f.Name(), mode, f.Name())
	}
	return nil
}
