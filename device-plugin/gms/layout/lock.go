package layout

import "fmt"

// lock is who may read and write. A session waits, is offered the lock, has it,
// and is gone.
type lock struct {
	waiters []waiter // in the order in which they came
	// writer has the lock or is offered it; 0 for nobody.
	writer SessionID
	// readers have the lock or are offered it.
	readers map[SessionID]bool
	// open are the sessions that have accepted.
	open      map[SessionID]bool
	committed bool
}

type waiter struct {
	id   SessionID
	mode Mode
}

func newLock() lock {
	return lock{readers: map[SessionID]bool{}, open: map[SessionID]bool{}}
}

func (l *lock) wait(id SessionID, mode Mode) { l.waiters = append(l.waiters, waiter{id, mode}) }

func (l *lock) giveUp(id SessionID) bool {
	for i, w := range l.waiters {
		if w.id == id {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// waitingWriters counts those that asked to write. Who asked for Auto does not
// hold readers up: it reads what is committed.
func (l *lock) waitingWriters() int {
	n := 0
	for _, w := range l.waiters {
		if w.mode == Writer {
			n++
		}
	}
	return n
}

// offer reserves the lock for whoever may have it.
func (l *lock) offer() []Offer {
	var out []Offer
	if l.writer == 0 && len(l.readers) == 0 {
		for _, w := range l.waiters {
			if w.mode == Writer || (w.mode == Auto && !l.committed) {
				l.giveUp(w.id)
				l.writer = w.id
				return []Offer{{w.id, Writer}}
			}
		}
	}
	if l.writer != 0 || !l.committed || l.waitingWriters() > 0 {
		return nil
	}
	for _, w := range l.waiters { // all of them want to read
		l.readers[w.id] = true
		out = append(out, Offer{w.id, Reader})
	}
	l.waiters = nil
	return out
}

func (l *lock) accept(id SessionID) (Mode, error) {
	if l.open[id] {
		return "", fmt.Errorf("session %d has the lock already", id)
	}
	switch {
	case l.writer == id:
		l.open[id] = true
		return Writer, nil
	case l.readers[id]:
		l.open[id] = true
		return Reader, nil
	default:
		return "", ErrNoSession
	}
}

// mode is what an open session has; "" for any other.
func (l *lock) mode(id SessionID) Mode {
	switch {
	case !l.open[id]:
		return ""
	case l.writer == id:
		return Writer
	default:
		return Reader
	}
}

// leave forgets a session, and tells whether it was an open writer.
func (l *lock) leave(id SessionID) (aborted bool) {
	l.giveUp(id)
	delete(l.readers, id)
	if l.writer == id {
		l.writer = 0
		aborted = l.open[id]
	}
	delete(l.open, id)
	return aborted
}

// commit ends the writer's session and publishes its layout.
func (l *lock) commit() {
	delete(l.open, l.writer)
	l.writer, l.committed = 0, true
}

func (l *lock) status() Status {
	s := Status{Committed: l.committed, Waiting: l.waitingWriters(), HasWriter: l.writer != 0 && l.open[l.writer]}
	for id := range l.readers {
		if l.open[id] {
			s.Readers++
		}
	}
	switch {
	case s.HasWriter:
		s.State = Writing
	case s.Readers > 0:
		s.State = Reading
	case s.Committed:
		s.State = Committed
	default:
		s.State = Empty
	}
	return s
}
