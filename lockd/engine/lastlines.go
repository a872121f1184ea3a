package engine

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// What is kept of the log of an engine that has ended, so that a state stays small.
const (
	maxLastLines = 20
	maxLastLine  = 200     // bytes of one line
	maxLogTail   = 1 << 14 // bytes read of one file
)

// logSettle is how long Nomad may take to write what a task has printed. A task is started again no
// sooner than a second after it has ended.
const logSettle = 300 * time.Millisecond

// lastLines returns the last lines that a task of the allocation has printed, by Nomad's logs in dir:
// of standard output, then of standard error, as many of each if both have enough. It returns an empty string
// if there are none.
func lastLines(dir, task string) string {
	if dir == "" || task == "" {
		return ""
	}
	out, err := tail(dir, task, "stdout"), tail(dir, task, "stderr")
	half := maxLastLines / 2
	out = out[max(len(out)-max(half, maxLastLines-len(err)), 0):]
	err = err[max(len(err)-max(half, maxLastLines-len(out)), 0):]
	return strings.Join(slices.Concat(out, err), "\n")
}

// tail returns the last lines of the newest log file of a task and stream: TASK.STREAM.NUMBER.
func tail(dir, task, stream string) []string {
	prefix := fmt.Sprintf("%s.%s.", task, stream)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	newest := -1
	for _, e := range entries {
		if number, err := strconv.Atoi(strings.TrimPrefix(e.Name(), prefix)); err == nil && strings.HasPrefix(e.Name(), prefix) {
			newest = max(newest, number)
		}
	}
	if newest < 0 {
		return nil
	}
	// Every task of the allocation can write to the directory: neither a pipe nor a link is followed.
	f, err := os.OpenFile(filepath.Join(dir, prefix+strconv.Itoa(newest)), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	skipped := max(info.Size()-maxLogTail, 0)
	raw, err := io.ReadAll(io.NewSectionReader(f, skipped, maxLogTail))
	if err != nil {
		return nil
	}
	if skipped > 0 { // the first line is not whole
		_, raw, _ = bytes.Cut(raw, []byte("\n"))
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			continue
		}
		if len(line) > maxLastLine {
			line = line[:maxLastLine] + "…"
		}
		lines = append(lines, strings.Map(printable, strings.ToValidUTF8(line, "?")))
	}
	return lines[max(len(lines)-maxLastLines, 0):]
}

// printable replaces what would change the terminal that shows it.
func printable(r rune) rune {
	if r != '\t' && unicode.IsControl(r) {
		return '?'
	}
	return r
}

// noteOwnEnd keeps the last lines of this task's earlier life, if that was the last one to serve. It is called
// before this life has printed anything of its own.
func (s *Shim) noteOwnEnd() {
	if rec, err := s.records.read(); err == nil && rec.Leader.Task != "" && rec.Leader.Task == s.cfg.Task {
		s.lastLines = lastLines(s.cfg.Logs, s.cfg.Task)
	}
}

// noteEnd keeps the last lines of the engine that served before this one, which has just got the lock. Nomad
// writes a task's log a moment after the task has printed it, so this is done a moment later.
func (s *Shim) noteEnd() {
	rec, err := s.records.read()
	if err != nil || s.cfg.Task == "" || rec.Leader.Task == s.cfg.Task {
		return
	}
	time.AfterFunc(logSettle, func() {
		lines := lastLines(s.cfg.Logs, rec.Leader.Task)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lastLines = lines
	})
}
