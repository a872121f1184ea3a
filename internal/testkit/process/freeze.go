package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops a process with SIGSTOP, and returns once each of its threads has stopped: the
// signal is on its way for a while. SIGCONT lets it go on.
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

// frozen tells whether all threads of a process have stopped (proc_pid_stat(5)).
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
