// Package cohort knows the processes that belong to one life of an engine: the
// child that the shim started and everything that descends from it, also
// across double fork and setsid. It reads /proc and signals through pidfds, so
// that a reused process ID is never hit.
package cohort

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// EnvVar marks the members of a cohort in their environment. Children inherit it.
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
	// kernel: it is a thread of the kernel, which has no memory of its own.
	kernel bool
}

// gone tells whether the process holds nothing any more: a zombie whose
// threads have all ended. A zombie leader with living threads still holds its
// memory.
func (s stat) gone() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// ErrGone is wrapped where a process has ended, also while it was looked at.
var ErrGone = errors.New("process has exited")

// read reads a file of /proc. A scan reads hundreds, and a takeover waits for it:
// this takes two thirds of the time of os.ReadFile, which prepares for files that
// block.
func read(path string) ([]byte, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	buf := make([]byte, 0, 1024)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, cap(buf))
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[len(buf):cap(buf)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return buf, nil
		}
		buf = buf[:len(buf)+n]
	}
}

// retry repeats a call that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func readStat(pid int) (stat, error) {
	raw, err := read(fmt.Sprintf("/proc/%d/stat", pid))
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
		return stat{}, fmt.Errorf("/proc/%d/stat: %d fields after the name: must be at least 20", pid, len(f))
	}
	s := stat{Process: Process{PID: pid}, state: f[0][0]}
	var err error
	if s.parent, err = strconv.Atoi(f[1]); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: parent: %w", pid, err)
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: flags: %w", pid, err)
	}
	s.kernel = flags&kernelThread != 0
	if s.threads, err = strconv.Atoi(f[17]); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: threads: %w", pid, err)
	}
	if s.Start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	return s, nil
}

// kernelThread is PF_KTHREAD of the kernel's sched.h.
const kernelThread = 0x00200000

// startedWithout tells whether a process was started with an empty environment:
// its beginning (field 50) is its end (field 51) then. So it is for a moment in the
// middle of execve, too, but not any more once the end of the code (field 27) is
// known, which the kernel sets last (load_elf_binary). All are 0 before, and of a
// process that has given back its memory. That the environment was found empty a
// moment ago tells nothing: an execve may have ended since.
func startedWithout(pid int) bool {
	raw, err := read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	return len(f) > 48 && f[24] != "0" && f[48] != "0" && f[47] == f[48]
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

// AwaitEnd blocks until the process has ended or ctx ends, whose error it returns then. It keeps
// no thread busy.
func (h *Handle) AwaitEnd(ctx context.Context) error {
	failed := func(err error) error { return fmt.Errorf("wait for process %d: %w", h.PID, err) }
	fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that Go's poller takes it
		return errors.Join(failed(err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close() //nolint:errcheck // nothing was written
	conn, err := file.SyscallConn()
	if err != nil {
		return failed(err)
	}
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	var ended bool
	var polled error
	err = conn.Read(func(uintptr) bool {
		ended, polled = h.Wait(0)
		return ended || polled != nil
	})
	switch {
	case ended:
		return nil
	case polled != nil:
		return polled
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return failed(err)
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
