package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze sends SIGSTOP to a process and waits until all of its threads have stopped, which
// takes a moment. SIGCONT resumes the process.
func Freeze(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for end := time.Now().Add(time.Minute); !frozen(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("process %d has not stopped a minute after SIGSTOP", pid)
		}
	}
	return nil
}

// frozen reports whether all threads of a process have the state T in /proc/PID/task/*/stat.
func frozen(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T")) {
			return false
		}
	}
	return err == nil && len(tasks) > 0
}
