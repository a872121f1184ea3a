package keeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/internal/unixsock"
)

// FD is the descriptor at which a service finds its keeper.
const FD = 3

// Record is what the keeper has under a name.
type Record struct {
	Name string
	Blob []byte
	// FDs are descriptors that the receiver owns.
	FDs []int
}

// RefusedError is the keeper's refusal of a record.
type RefusedError struct {
	// Reason is the keeper's text for people.
	Reason string
}

func (e *RefusedError) Error() string { return "the keeper rejected the record: " + e.Reason }

// Service is the service's end. Its methods are safe for concurrent use.
type Service struct {
	l *link
	// turn has the one request that is under way.
	turn    chan struct{}
	answers chan error
	over    chan struct{}
	reading sync.WaitGroup
	starts  uint64
}

// Connect takes over the service's end at a descriptor, which is FD in a process that
// the keeper has started, and returns the records that services before this one have
// saved.
func Connect(fd int) (_ *Service, _ []Record, err error) {
	unix.CloseOnExec(fd)
	l, err := newLink(fd)
	if err != nil {
		return nil, nil, err
	}
	var records []Record
	defer func() {
		if err != nil {
			l.close()
			for _, r := range records {
				unixsock.CloseAll(r.FDs)
			}
		}
	}()
	s := &Service{l: l, turn: make(chan struct{}, 1), answers: make(chan error, 1), over: make(chan struct{})}
	for {
		p, err := l.receive()
		if err != nil {
			return nil, records, fmt.Errorf("receive what the keeper has: %w", err)
		}
		switch {
		case p.op == opDone && len(p.body) == 8:
			s.starts = binary.BigEndian.Uint64(p.body)
			s.reading.Go(s.read)
			return s, records, nil
		case p.op == opBegin:
			r, err := s.load(p.body)
			if err != nil {
				return nil, records, fmt.Errorf("receive what the keeper has: %w", err)
			}
			records = append(records, r)
		default:
			unixsock.CloseAll(p.fds)
			return nil, records, fmt.Errorf("receive what the keeper has: %w: packet %q", errProtocol, p.op)
		}
	}
}

// load receives one record.
func (s *Service) load(begin []byte) (Record, error) {
	name, n, err := parseBegin(begin)
	var fds []int
	for err == nil {
		var p packet
		if p, err = s.l.receive(); err != nil {
			break
		}
		fds = append(fds, p.fds...)
		if p.op == opEnd && len(fds) == n && n > 0 {
			blob, err := readBlob(fds[0])
			if err != nil {
				unixsock.CloseAll(fds[1:])
				return Record{}, fmt.Errorf("record %q: %w", name, err)
			}
			return Record{name, blob, fds[1:]}, s.l.send(opOK, nil)
		}
		if p.op != opFDs || len(p.fds) == 0 || len(fds) > n {
			err = fmt.Errorf("%w: %d of %d descriptors of record %q came: does the limit of open files (%d) allow them?", errProtocol, len(fds), n, name, openFiles())
			break
		}
		err = s.l.send(opOK, nil)
	}
	unixsock.CloseAll(fds)
	return Record{}, err
}

// read takes what the keeper sends, and answers its pings.
func (s *Service) read() {
	defer close(s.over)
	for {
		p, err := s.l.receive()
		if err != nil {
			return
		}
		unixsock.CloseAll(p.fds)
		switch p.op {
		case opPing:
			err = s.l.send(opPong, nil)
		case opOK:
			s.answers <- nil
		case opNo:
			s.answers <- &RefusedError{Reason: string(p.body)}
		}
		if err != nil {
			return
		}
	}
}

// Done is closed when the keeper has ended: nothing is kept any more.
func (s *Service) Done() <-chan struct{} { return s.over }

// Starts is how often the keeper has started a service, this one included.
func (s *Service) Starts() uint64 { return s.starts }

// Close ends the connection.
func (s *Service) Close() {
	s.l.close()
	s.reading.Wait()
}

// Ready reports that the service serves.
func (s *Service) Ready() error { return s.l.send(opReady, nil) }

// begin takes the turn, for as long as ctx allows.
func (s *Service) begin(ctx context.Context) (done func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-s.over:
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask sends a request and waits for its answer: the keeper does nothing that takes
// long.
func (s *Service) ask(o op, body []byte, fds ...int) error {
	if err := s.l.send(o, body, fds...); err != nil {
		return err
	}
	select {
	case err := <-s.answers:
		return err
	case <-s.over:
		return errEnded
	}
}

// Save stores a blob and n descriptors under the name, in place of what was there.
// export makes a descriptor, which Save closes; few are open at a time. After an error
// the old record is there. ctx bounds the wait for other calls only.
func (s *Service) Save(ctx context.Context, name string, blob []byte, n int, export func(i int) (fd int, err error)) error {
	done, err := s.begin(ctx)
	if err == nil {
		defer done()
		if name == "" || len(name) > maxName {
			return fmt.Errorf("keep %q: the name must have 1 to %d bytes", name, maxName)
		}
		err = s.save(name, blob, n, export)
	}
	if err != nil {
		return fmt.Errorf("keep %q: %w", name, err)
	}
	return nil
}

func (s *Service) save(name string, blob []byte, n int, export func(i int) (fd int, err error)) error {
	if err := s.ask(opBegin, beginBody(name, n+1)); err != nil {
		return err
	}
	memory, err := writeBlob(blob)
	if err != nil {
		return err
	}
	batch := []int{memory}
	for i := 0; ; i++ {
		if len(batch) == maxBatch || i == n {
			err := s.ask(opFDs, nil, batch...)
			unixsock.CloseAll(batch)
			batch = batch[:0]
			if err != nil {
				return err
			}
		}
		if i == n {
			return s.ask(opEnd, nil)
		}
		fd, err := export(i)
		if err != nil {
			unixsock.CloseAll(batch)
			return fmt.Errorf("export allocation %d: %w", i, err)
		}
		batch = append(batch, fd)
	}
}

// Drop forgets the name. An unknown name is not an error. ctx bounds the wait for
// other calls only.
func (s *Service) Drop(ctx context.Context, name string) error {
	done, err := s.begin(ctx)
	if err == nil {
		defer done()
		err = s.ask(opDrop, []byte(name))
	}
	if err != nil {
		return fmt.Errorf("drop %q from the keeper: %w", name, err)
	}
	return nil
}

// writeBlob makes memory with the blob in it.
func writeBlob(blob []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("remuda-gms-layout", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("take memory for a layout: %w", err)
	}
	for at := 0; at < len(blob); {
		n, err := unix.Pwrite(fd, blob[at:], int64(at))
		if err != nil {
			return -1, errors.Join(fmt.Errorf("write a layout of %d bytes: %w", len(blob), err), unix.Close(fd))
		}
		at += n
	}
	return fd, nil
}

// readBlob reads what writeBlob has made. It takes over the descriptor.
func readBlob(fd int) ([]byte, error) {
	f := os.NewFile(uintptr(fd), "layout")
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
}

// openFiles is how many descriptors this process may have.
func openFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // what Linux gives by default
	}
	return int(min(limit.Cur, 1<<30))
}
