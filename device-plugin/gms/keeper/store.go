package keeper

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"remuda/internal/unixsock"
)

// spare are descriptors that no record may take: those of the process itself, and what
// it needs to start a service.
const spare = 64

// store has the records: descriptors by name, the blob's first. It outlives services.
type store struct {
	records map[string][]int
	// limit is how many descriptors all of them may have.
	limit int
}

func newStore() *store {
	return &store{records: map[string][]int{}, limit: openFiles() - spare}
}

// held is how many descriptors there are.
func (s *store) held() (n int) {
	for _, fds := range s.records {
		n += len(fds)
	}
	return n
}

func (s *store) put(name string, fds []int) {
	s.drop(name)
	s.records[name] = fds
}

func (s *store) drop(name string) {
	unixsock.CloseAll(s.records[name])
	delete(s.records, name)
}

func (s *store) close() {
	for name := range s.records {
		s.drop(name)
	}
}

// give sends all records to a service that has just started.
func (s *store) give(l *link, starts uint64) error {
	for _, name := range slices.Sorted(maps.Keys(s.records)) {
		fds := s.records[name]
		if err := l.send(opBegin, beginBody(name, len(fds))); err != nil {
			return err
		}
		for batch := range slices.Chunk(fds, maxBatch) {
			if err := l.ask(opFDs, batch...); err != nil {
				return err
			}
		}
		if err := l.ask(opEnd); err != nil {
			return err
		}
	}
	return l.send(opDone, binary.BigEndian.AppendUint64(nil, starts))
}

// ask sends a packet of a record and waits for the service's answer.
func (l *link) ask(o op, fds ...int) error {
	if err := l.send(o, nil, fds...); err != nil {
		return err
	}
	p, err := l.receive()
	if err == nil && p.op != opOK {
		unixsock.CloseAll(p.fds)
		err = fmt.Errorf("%w: answer %q", errProtocol, p.op)
	}
	return err
}

// saving is a record that is on its way.
type saving struct {
	name string
	want int
	fds  []int
}

func (s *saving) abandon() {
	unixsock.CloseAll(s.fds)
	*s = saving{}
}

// serve answers a service until it ends. What it sent before its end counts.
func (s *store) serve(l *link, other func(op)) error {
	var next saving
	defer next.abandon()
	for {
		p, err := l.receive()
		if err != nil {
			return err
		}
		var refusal error
		switch p.op {
		case opBegin:
			next.abandon()
			next.name, next.want, err = parseBegin(p.body)
			if err != nil {
				unixsock.CloseAll(p.fds)
				return err
			}
			// The record that it replaces stays until the end.
			if has := s.held(); has+next.want > s.limit {
				refusal = fmt.Errorf("it has %d descriptors, %d are kept already, and %d fit: raise the limit of open files of remuda gms", next.want, has, s.limit)
				next = saving{}
			}
		case opFDs:
			next.fds = append(next.fds, p.fds...)
			if len(p.fds) == 0 || len(next.fds) > next.want {
				refusal = fmt.Errorf("%d of %d descriptors came: the limit of open files of remuda gms may be too low", len(next.fds), next.want)
				next.abandon()
			}
		case opEnd:
			if next.want == 0 || len(next.fds) != next.want {
				refusal = fmt.Errorf("%d of %d descriptors came", len(next.fds), next.want)
				next.abandon()
				break
			}
			s.put(next.name, next.fds)
			next = saving{}
		case opDrop:
			s.drop(string(p.body))
		case opReady, opPong:
			unixsock.CloseAll(p.fds)
			other(p.op)
			continue
		default:
			unixsock.CloseAll(p.fds)
			return fmt.Errorf("%w: packet %q", errProtocol, p.op)
		}
		if p.op != opFDs {
			unixsock.CloseAll(p.fds)
		}
		answer, text := opOK, ""
		if refusal != nil {
			answer, text = opNo, refusal.Error()
		}
		if err := l.send(answer, []byte(text)); err != nil && p.op == opFDs {
			return err // else the service is gone, and what it sent last may still be to read
		}
	}
}
