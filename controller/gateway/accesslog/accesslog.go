// Package accesslog writes one line of JSON for each request that has ended.
//
// What it guarantees:
//   - Log does no I/O and waits for none. It adds the line to a buffer in memory, which one
//     goroutine writes once a second, and sooner if there is much.
//   - The buffer is bounded. If the file is too slow, hangs or fails, lines are dropped,
//     counted (Dropped) and reported once in the program's own log until all lines are
//     written again.
//   - What is written is whole lines, in the order of Log. A write that failed half way
//     leaves one broken line, and the next line begins on its own.
//   - Close writes the rest. A process that is killed loses the lines of its last second.
package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxPending is how many bytes of lines wait at most: about 10,000 lines, a second at
	// the rate at which one gateway can answer requests. As many again may be in the write
	// that is under way.
	maxPending = 4 << 20
	// flushBytes are written at once, flushEvery bounds how long fewer wait: writes of this
	// size cost little more than copying.
	flushBytes = 64 << 10
	flushEvery = time.Second
)

// Stdout is the path that stands for the standard output.
const Stdout = "-"

// Config says where the log goes.
type Config struct {
	// Path is the file, which lines are appended to and which is created with mode
	// 0640 if it is missing; Stdout ("-") is the standard output. An empty path is
	// no log: New returns nil.
	Path string
	// Logger gets a warning when lines are dropped, and a message when all are written
	// again. nil is silent.
	Logger hclog.Logger
}

// Logger writes an access log. It is safe for concurrent use, and a nil Logger logs
// nothing.
type Logger struct {
	path string
	log  hclog.Logger
	// wake starts a flush before its time, closing ends the writer, and the writer closes
	// done.
	wake    chan struct{}
	closing chan struct{}
	done    chan struct{}
	dropped atomic.Uint64

	mu sync.Mutex
	// pending are the lines to write.
	pending []byte
	// next is the file to continue in, from Reopen; nil if it is the same.
	next   *os.File
	closed bool

	// What follows belongs to the writer.
	file *os.File
	// torn is set if the file ends in the middle of a line.
	torn bool
	// failing is set from the warning until all lines are written; reported is the value
	// of dropped after the flush before.
	failing  bool
	reported uint64
}

// New opens the log and starts the goroutine that writes it. The caller must Close
// it. With an empty path it returns nil, which is a Logger that does nothing.
func New(cfg Config) (*Logger, error) {
	if cfg.Path == "" {
		return nil, nil
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	file := os.Stdout
	if cfg.Path != Stdout {
		var err error
		if file, err = open(cfg.Path); err != nil {
			return nil, err
		}
	}
	l := &Logger{
		path: cfg.Path, log: cfg.Logger, file: file,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	return l, nil
}

// open opens a file for appending. A named pipe without a reader is an error: O_NONBLOCK
// keeps open from waiting for one.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return nil, fmt.Errorf("access log: open %s for appending: %w", path, err)
	}
	return f, nil
}

// Log adds a line. It never waits for I/O: if the buffer is full or the log closed, the
// line is dropped and counted.
func (l *Logger) Log(r Record) {
	if l == nil {
		return
	}
	line, err := r.MarshalJSON()
	l.mu.Lock()
	before := len(l.pending)
	fits := err == nil && !l.closed && before+len(line) < maxPending
	if fits {
		l.pending = append(append(l.pending, line...), '\n')
	}
	full := before < flushBytes && len(l.pending) >= flushBytes
	l.mu.Unlock()
	if !fits {
		l.dropped.Add(1)
	}
	if full {
		l.wakeUp()
	}
}

// Dropped returns how many lines did not get into the log since New: because the buffer
// was full, a write failed, or the log was closed.
func (l *Logger) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Reopen opens the path again and continues there, for rotation: rename the file, send
// SIGHUP, and from then on only the write that is under way goes to the old one. If the
// path cannot be opened the log continues in the old file. The standard output stays as it
// is.
func (l *Logger) Reopen() error {
	if l == nil || l.path == Stdout {
		return nil
	}
	next, err := open(l.path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		next, l.next = l.next, next
	}
	l.mu.Unlock()
	next.Close() // the one of a Reopen before, or nil
	if closed {
		return fmt.Errorf("access log: reopen %s: the log is closed", l.path)
	}
	l.wakeUp()
	return nil
}

// Close writes the rest and closes the file. If a write hangs, it returns an error when ctx
// ends; the process may end then. A second call only waits.
func (l *Logger) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("access log: close %s: a write hangs, its lines may be lost: %w", l.path, context.Cause(ctx))
	}
}

func (l *Logger) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run writes until Close.
func (l *Logger) run() {
	defer close(l.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.wake:
			l.flush()
		case <-tick.C:
			l.flush()
		case <-l.closing:
			l.flush()
			l.closeFile()
			return
		}
	}
}

// flush writes the lines that wait, in the file of the last Reopen.
func (l *Logger) flush() {
	l.mu.Lock()
	lines, next := l.pending, l.next
	l.pending, l.next = nil, nil
	l.mu.Unlock()
	if next != nil {
		l.closeFile()
		l.file, l.torn = next, false
	}
	l.report(l.write(lines), len(lines) > 0)
}

// write writes lines and counts those that it cannot.
func (l *Logger) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	var n int
	var err error
	if l.torn {
		_, err = l.file.Write([]byte{'\n'})
		l.torn = err != nil
	}
	if err == nil {
		n, err = l.file.Write(lines)
		l.torn = n > 0 && lines[n-1] != '\n'
	}
	l.dropped.Add(uint64(bytes.Count(lines[n:], []byte{'\n'})))
	return err
}

// report logs the beginning and the end of a time in which lines are dropped.
func (l *Logger) report(err error, wrote bool) {
	dropped := l.dropped.Load()
	lost := dropped - l.reported
	l.reported = dropped
	switch {
	case lost > 0 && !l.failing:
		reason := "the buffer is full"
		if err != nil {
			reason = err.Error()
		}
		l.failing = true
		l.log.Warn("cannot write all lines of the access log; check its disk or its reader", "path", l.path,
			"dropped", lost, "buffer_bytes", maxPending, "reason", reason)
	case lost == 0 && wrote && l.failing:
		l.failing = false
		l.log.Info("writing all lines of the access log again", "path", l.path, "dropped_total", dropped)
	}
}

// closeFile closes the file, unless it is the standard output. All lines have reached the
// kernel before.
func (l *Logger) closeFile() {
	if l.path != Stdout {
		l.file.Close()
	}
}
