// Package cohort knows the processes that belong to one life of an engine: the
// child that the shim started and everything that descends from it, also
// across double fork and setsid. It reads /proc and signals through pidfds, so
// that a reused process ID is never hit (DESIGN section 5, proof of death).
package cohort

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// EnvVar names the environment variable that marks a cohort's members.
// Children inherit it.
const EnvVar = "REMUDA_COHORT"

// Process identifies a process for as long as the machine is up: its ID may be
// reused, but not with the same start time.
type Process struct {
	PID int
	// Start is the start time in clock ticks since boot (field 22 of
	// /proc/PID/stat).
	Start uint64
}

// stat is what is needed of /proc/PID/stat.
type stat struct {
	Process
	parent  int
	state   byte
	threads int
}

// gone tells whether the process holds nothing any more: a zombie whose
// threads have all ended. A zombie leader with living threads still holds its
// memory.
func (s stat) gone() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// ErrGone is wrapped where a process has ended, also while it was looked at.
var ErrGone = errors.New("process is gone")

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return stat{}, ErrGone
		}
		return stat{}, err
	}
	return parseStat(pid, raw)
}

// parseStat reads "PID (comm) state ppid …"; comm may hold spaces and
// brackets, so the last bracket counts.
func parseStat(pid int, raw []byte) (stat, error) {
	i := bytes.LastIndexByte(raw, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("/proc/%d/stat: no closing bracket in %q", pid, raw)
	}
	f := strings.Fields(string(raw[i+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, fmt.Errorf("/proc/%d/stat: %d fields after the name: want at least 20", pid, len(f))
	}
	s := stat{Process: Process{PID: pid}, state: f[0][0]}
	var err error
	if s.parent, err = strconv.Atoi(f[1]); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: parent: %w", pid, err)
	}
	if s.threads, err = strconv.Atoi(f[17]); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: threads: %w", pid, err)
	}
	if s.Start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	return s, nil
}

// Lookup finds the process that has pid now.
func Lookup(pid int) (Process, error) {
	s, err := readStat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("look up process %d: %w", pid, err)
	}
	if s.gone() {
		return Process{}, fmt.Errorf("look up process %d: %w", pid, ErrGone)
	}
	return s.Process, nil
}

// Handle holds a process by its pidfd.
type Handle struct {
	Process
	fd int
}

// Open takes hold of p. It fails where p is gone, also if its ID is in use
// again.
func Open(p Process) (*Handle, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("open process %d: %w", p.PID, ErrGone)
		}
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	// The pidfd names whoever has the ID now; the start time tells who that is.
	s, err := readStat(p.PID)
	if err != nil || s.Start != p.Start {
		_ = unix.Close(fd)
		if err == nil {
			err = ErrGone
		}
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	return &Handle{Process: p, fd: fd}, nil
}

// Close lets go of the process.
func (h *Handle) Close() error { return unix.Close(h.fd) }

// Signal sends sig; a process that is gone is no error.
func (h *Handle) Signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(h.fd, sig, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", h.PID, err)
	}
	return nil
}

// Wait blocks up to timeoutMS milliseconds (-1: for ever) and tells whether
// the process has ended.
func (h *Handle) Wait(timeoutMS int) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, timeoutMS)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("wait for process %d: %w", h.PID, err)
		}
		return n > 0, nil
	}
}
