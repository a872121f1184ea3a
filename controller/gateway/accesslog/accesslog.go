// Package accesslog writes one line of JSON for each request that has ended.
//
// What it guarantees:
//   - Log does no I/O and waits for none. It puts the line into a buffer in memory;
//     one goroutine writes the buffer, once a second or when 64 KiB are there.
//   - The buffer is bounded. When whatever takes the lines is too slow, or fails,
//     lines are dropped, counted (Dropped), told to the program's own log, and a line
//     {"time":…,"dropped":n} stands in the access log where they would have been.
//   - What is written is whole lines, in the order of Log. Also after a write that
//     failed half way, in this process or the one before, the next line begins a line.
//   - Close writes what is left. A process that is killed loses what it logged within
//     the last second.
package accesslog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// defaultBuffer holds about 10,000 lines: a second at the rate at which one
	// gateway can answer requests.
	defaultBuffer = 4 << 20
	// leastBuffer holds one line, however long its texts and however they are escaped.
	leastBuffer = 64 << 10
	// defaultFlush is how old a line gets before a reader sees it.
	defaultFlush = time.Second
	// flushBytes wakes the writer before the time is up: writes of this size cost
	// little more than copying.
	flushBytes = 64 << 10
	// keptBuffer is the largest buffer that is used again; a burst's is left to the
	// garbage collector.
	keptBuffer = 4 * flushBytes
)

// Stdout is the path that stands for the standard output.
const Stdout = "-"

// Config says where the log goes.
type Config struct {
	// Path is the file, which lines are appended to and which is created with mode
	// 0640 if it is missing; Stdout ("-") is the standard output. An empty path is
	// no log: New returns nil.
	Path string
	// Buffer is how many bytes of lines wait in memory at most; as many again may
	// be on their way into the file. At least 64 KiB; 0 means 4 MiB.
	Buffer int
	// Flush is the longest time for which a line waits in memory. 0 means 1 s.
	Flush time.Duration
	// Logger hears of lines that were lost. nil is silent.
	Logger hclog.Logger
}

// Logger writes an access log. It is safe for concurrent use, and a nil Logger logs
// nothing.
type Logger struct {
	cfg Config
	log hclog.Logger
	// wake tells the writer not to wait until its time is up, closing that it is to
	// end, and done that it has.
	wake    chan struct{}
	closing chan struct{}
	done    chan struct{}
	dropped atomic.Uint64

	mu sync.Mutex
	// buffer are the lines to write and missing how many were dropped after them.
	buffer  []byte
	missing uint64
	closed  bool
	// next is the file to go on with, from Reopen; nil if it is the same.
	next *sink

	// out is where lines go. Only the writer puts another one there.
	out atomic.Pointer[sink]

	// What follows belongs to the writer. spare is the buffer that Log gets next.
	spare []byte
	// failing says that the last write failed, and lost how many lines are missing
	// at this point of the log.
	failing bool
	lost    uint64
	// unsaid is how many lines had no room since said.
	unsaid uint64
	said   time.Time
}

// New opens the log and starts the goroutine that writes it. The caller must Close
// it. With an empty path it returns nil, which is a Logger that does nothing.
func New(cfg Config) (*Logger, error) {
	if cfg.Path == "" {
		return nil, nil
	}
	var bad []error
	if cfg.Buffer == 0 {
		cfg.Buffer = defaultBuffer
	} else if cfg.Buffer < leastBuffer {
		bad = append(bad, fmt.Errorf("access log: buffer is %d bytes: must be at least %d, or 0 for the default of %d", cfg.Buffer, leastBuffer, defaultBuffer))
	}
	if cfg.Flush == 0 {
		cfg.Flush = defaultFlush
	} else if cfg.Flush < 0 {
		bad = append(bad, fmt.Errorf("access log: flush is %s: must be more than 0, or 0 for the default of %s", cfg.Flush, defaultFlush))
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	out, err := openSink(cfg.Path)
	if err != nil {
		return nil, err
	}
	l := &Logger{
		cfg: cfg, log: cfg.Logger,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		buffer: make([]byte, 0, flushBytes), spare: make([]byte, 0, flushBytes),
	}
	l.out.Store(out)
	go l.run()
	return l, nil
}

// Log adds a line. It never waits for I/O: where the buffer is full, or the log
// closed, the line is dropped and counted.
func (l *Logger) Log(r Record) {
	if l == nil {
		return
	}
	l.mu.Lock()
	before := len(l.buffer)
	if !l.closed && l.missing == 0 && before < l.cfg.Buffer {
		l.buffer = r.Append(l.buffer)
		if len(l.buffer) <= l.cfg.Buffer {
			full := before < flushBytes && len(l.buffer) >= flushBytes
			l.mu.Unlock()
			if full {
				l.wakeUp()
			}
			return
		}
		l.buffer = l.buffer[:before]
	}
	// Lines that come while some are missing are dropped as well, so that the line
	// that says so stands in the right place; the writer makes room soon.
	l.missing++
	first := l.missing == 1
	l.mu.Unlock()
	l.dropped.Add(1)
	if first {
		l.wakeUp()
	}
}

// Dropped returns how many lines did not get into the log, since New: for want of
// room, because a write failed, or because they came after Close.
func (l *Logger) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Reopen opens the path again and goes on there, for rotation: rename the file, send
// SIGHUP, and from then on at most the write that was under way goes to the old one.
// If the path cannot be opened the log goes on in the old file. The standard output
// stays as it is.
func (l *Logger) Reopen() error {
	if l == nil || l.cfg.Path == Stdout {
		return nil
	}
	next, err := openSink(l.cfg.Path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		next.close()
		return fmt.Errorf("access log: reopen %s: the log is closed", l.cfg.Path)
	}
	if l.next != nil {
		l.next.close()
	}
	l.next = next
	l.wakeUp()
	return nil
}

// Close writes what is left and closes the file. Where whatever takes the lines
// hangs, it gives up when ctx ends and says how many lines are lost; they count as
// dropped. A second call only waits.
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
	case <-l.done: // also when ctx has ended
		return nil
	default:
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	if l.next != nil {
		l.next.close()
		l.next = nil
	}
	l.mu.Unlock()
	before := l.dropped.Load()
	if !l.out.Load().abort() {
		return fmt.Errorf("access log: close %s: the last write did not end in time and its lines may be lost: %w", l.cfg.Path, context.Cause(ctx))
	}
	<-l.done
	return fmt.Errorf("access log: close %s: a write hung, %d lines are lost: %w", l.cfg.Path, l.dropped.Load()-before, context.Cause(ctx))
}

func (l *Logger) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
