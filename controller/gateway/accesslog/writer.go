package accesslog

import (
	"bytes"
	"time"
)

// sayEvery is how often the program's log is told of dropped lines.
const sayEvery = time.Minute

// run writes until Close.
func (l *Logger) run() {
	defer close(l.done)
	tick := time.NewTicker(l.cfg.Flush)
	defer tick.Stop()
	for {
		select {
		case <-l.wake:
		case <-tick.C:
		case <-l.closing:
			l.flush()
			l.say(true)
			l.out.Load().close()
			return
		}
		l.flush()
		l.say(false)
	}
}

// flush writes the buffer as it is now.
func (l *Logger) flush() {
	l.mu.Lock()
	lines, missing, next := l.buffer, l.missing, l.next
	l.buffer, l.missing, l.next = l.spare[:0], 0, nil
	l.mu.Unlock()
	if next != nil {
		l.out.Swap(next).close()
	}
	// What earlier writes lost is missing before these lines, what had no room
	// after them.
	if l.mark() {
		n, err := l.put(lines)
		if err != nil {
			l.lose(lines[n:])
		}
	} else {
		l.lose(lines)
	}
	l.lost += missing
	l.unsaid += missing
	l.mark()
	if cap(lines) > keptBuffer {
		lines = make([]byte, 0, flushBytes)
	}
	l.spare = lines
}

// lose counts lines that could not be written.
func (l *Logger) lose(lines []byte) {
	n := uint64(bytes.Count(lines, []byte{'\n'}))
	l.lost += n
	l.dropped.Add(n)
}

// mark writes the line that stands for lost ones, if there are any, and reports
// whether none are left to tell of.
func (l *Logger) mark() bool {
	if l.lost == 0 {
		return true
	}
	if _, err := l.put(appendDropped(nil, time.Now(), l.lost)); err != nil {
		return false
	}
	l.lost = 0
	return true
}

// put writes whole lines. It tells the program's log when that begins to fail and
// when it works again.
func (l *Logger) put(lines []byte) (int, error) {
	if len(lines) == 0 {
		return 0, nil
	}
	n, err := l.out.Load().write(lines)
	switch {
	case err != nil && !l.failing:
		l.failing = true
		l.log.Warn("cannot write the access log; lines are dropped until it works again", "path", l.cfg.Path, "error", err)
	case err == nil && l.failing:
		l.failing = false
		l.log.Info("writing the access log again", "path", l.cfg.Path, "dropped_in_all", l.dropped.Load())
	}
	return n, err
}

// say tells the program's log of lines that had no room, now and then.
func (l *Logger) say(last bool) {
	if l.unsaid == 0 || (!last && !l.said.IsZero() && time.Since(l.said) < sayEvery) {
		return
	}
	l.log.Warn("the access log's buffer was full; lines were dropped", "path", l.cfg.Path, "dropped", l.unsaid,
		"dropped_in_all", l.dropped.Load(), "buffer_bytes", l.cfg.Buffer)
	l.unsaid, l.said = 0, time.Now()
}
