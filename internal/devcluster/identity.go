package devcluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listensAt returns nil if the process itself listens on a TCP port of this machine's IPv4
// loopback. A port that was free when it was chosen may have been taken since by another
// program, and what answers there would be that program.
func listensAt(pid, port int) error {
	inodes, err := listeners(port)
	if err != nil {
		return err
	}
	if len(inodes) == 0 {
		return fmt.Errorf("nothing listens on port %d yet", port)
	}
	owned, err := sockets(pid)
	if err != nil {
		return err
	}
	for inode := range inodes {
		if owned[inode] {
			return nil
		}
	}
	return errTaken{port: port, by: ownerOf(inodes)}
}

// errTaken means that another program listens on a port of ours.
type errTaken struct {
	port int
	by   string
}

func (e errTaken) Error() string {
	return fmt.Sprintf("port %d was taken meanwhile by %s: end that program, or start again to get other ports", e.port, e.by)
}

// listeners returns the inodes of the TCP sockets that listen on a port.
func listeners(port int) (map[string]bool, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		suffix := fmt.Sprintf(":%04X", port)
		for line := range strings.Lines(string(raw)) {
			const localAddress, state, inode, listening = 1, 3, 9, "0A"
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listening && strings.HasSuffix(f[localAddress], suffix) {
				inodes[f[inode]] = true
			}
		}
	}
	return inodes, nil
}

// sockets returns the inodes of a process's sockets.
func sockets(pid int) (map[string]bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list descriptors: %w", err)
	}
	inodes := map[string]bool{}
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes, nil
}

// ownerOf describes the process that has one of these sockets.
func ownerOf(inodes map[string]bool) string {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		owned, _ := sockets(pid)
		for inode := range inodes {
			if owned[inode] {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
			}
		}
	}
	return "a program of another user"
}
