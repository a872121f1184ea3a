// Package private makes directories of one user in the directories of a Nomad allocation, where others may write.
package private

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir opens the directory at path, and makes it with mode 0700 unless it exists; the one above must exist. It
// refuses one that belongs to another user or gives others rights, and a link.
//
// Nomad gives an allocation's directories to everybody, so another user could put others in their place. In
// $NOMAD_ALLOC_DIR those above path therefore get the sticky bit, and root takes them over: others can work in
// them as before, and neither rename nor remove what is not theirs. Where this process may not do that, it is
// left out.
func Dir(path string) (*os.File, error) {
	path = filepath.Clean(path)
	if alloc := filepath.Clean(os.Getenv("NOMAD_ALLOC_DIR")); filepath.IsAbs(alloc) && strings.HasPrefix(path, alloc+"/") {
		if err := stick(filepath.Dir(path), alloc); err != nil {
			return nil, err
		}
	}
	// From here on, what is checked stays where it is.
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w: must be a directory, and not a link to one", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	if err := CheckOwner(dir, 0o077); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// stick sets the sticky bit of a directory and of those above it up to top, if they are open to everybody. It
// follows no link, as another user may have put it there.
func stick(path, top string) error {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w: must be a directory, and not a link to one", path, err)
	}
	for {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", path, err), unix.Close(fd))
		}
		if st.Mode&0o002 != 0 {
			if int(st.Uid) != os.Geteuid() {
				_ = unix.Fchown(fd, os.Geteuid(), -1)
			}
			_ = unix.Fchmod(fd, st.Mode&0o2777|unix.S_ISVTX)
		}
		if path == top {
			return unix.Close(fd)
		}
		up, err := unix.Openat(fd, "..", flags, 0)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("the directory above %s: %w", path, err)
		}
		fd, path = up, filepath.Dir(path)
	}
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
