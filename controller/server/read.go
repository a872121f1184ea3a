package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// errStopping ends a blocking query of a server that stops.
var errStopping = errors.New("the server is stopping")

// indexedError is a read's error with the index that it was found at.
type indexedError struct {
	err   error
	index uint64
}

func (e *indexedError) Error() string { return e.err.Error() }
func (e *indexedError) Unwrap() error { return e.err }

// read answers a read from this server's state. One that is not stale is answered only
// while this server leads; a blocking one that is deposed meanwhile returns
// raft.ErrNotLeader and goes on elsewhere.
func (s *Server) read(w http.ResponseWriter, rq *request) error {
	var deposed <-chan struct{}
	if !rq.stale {
		if _, err := s.cfg.Raft.Read(rq.ctx, raft.Verified); err != nil {
			return err
		}
		var now raft.Leadership
		if now, deposed = s.cfg.Raft.Leadership(); !now.Leader {
			return fmt.Errorf("%w any more", raft.ErrNotLeader)
		}
		s.cfg.Loads.Begin(now.Term)
	}
	a, err := s.block(rq, deposed)
	if errors.Is(err, errStopping) {
		err = nil // What there is was found before it waited.
	}
	if err != nil {
		return err
	}
	s.freshness(w.Header())
	return a.write(w, rq.Request)
}

// block runs the route's query until its answer is another one than that of the
// request's index, or as Store.Block says.
func (s *Server) block(rq *request, deposed <-chan struct{}) (answer, error) {
	var a answer
	store := s.cfg.Raft.Store()
	run := func(v *state.View, ws memdb.WatchSet) (uint64, error) {
		select {
		case <-deposed:
			return 0, fmt.Errorf("%w any more", raft.ErrNotLeader)
		default:
		}
		var err error
		if rq.token, err = s.authorize(rq.route, rq.Header, v); err != nil {
			return 0, err
		}
		next, err := rq.route.read(s, rq, v, ws)
		if err != nil {
			if next.index > 0 {
				err = &indexedError{err: err, index: next.index}
			}
			return 0, err
		}
		a = next
		return a.index, nil
	}
	// Once without waiting. An index above the answer's is of a state that is no more,
	// because a snapshot was restored: that is told at once. A server that may be behind
	// cannot tell; it waits.
	if _, err := store.Block(rq.ctx, 0, run); err != nil {
		return a, err
	}
	if rq.index == 0 || a.index > rq.index || a.index < rq.index && !rq.stale {
		return a, nil
	}
	ctx, cancel := contextUntil(rq.ctx, rq.until)
	defer cancel()
	defer s.metrics.block()()
	_, err := store.Block(ctx, rq.index, func(v *state.View, ws memdb.WatchSet) (uint64, error) {
		select {
		case <-s.stopping:
			return 0, errStopping
		default:
		}
		ws.Add(s.stopping)
		if deposed != nil {
			ws.Add(deposed)
		}
		return run(v, ws)
	})
	return a, err
}

// freshness says how old an answer of this server's may be.
func (s *Server) freshness(h http.Header) {
	age, known := s.lastContact()
	h.Set(api.HeaderLastContact, strconv.FormatInt(age.Milliseconds(), 10))
	h.Set(api.HeaderKnownLeader, strconv.FormatBool(known))
}

// lastContact returns how long ago this server heard from the leader, since it was
// started where it never did, and whether it knows one.
func (s *Server) lastContact() (time.Duration, bool) {
	last := s.cfg.Raft.LastContact()
	if last.IsZero() {
		last = s.started
	}
	return max(time.Since(last), 0), s.cfg.Raft.Leader().ID != ""
}
