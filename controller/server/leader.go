package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// leaderPoll is how often a server looks who leads while a request waits for that.
const leaderPoll = 25 * time.Millisecond

// headerNotLeader marks an answer to a server that has passed a request on: this one
// does not lead, and nothing happened.
const headerNotLeader = "X-Remuda-Not-Leader"

func contextUntil(ctx context.Context, t time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, t)
}

// onLeader has the leader answer: this server if it is it, or else the one that is. It
// tries again for as long as there is none and nothing has happened.
func (s *Server) onLeader(w http.ResponseWriter, rq *request) error {
	passedOn := rq.Header.Get(api.HeaderForwarded) != ""
	deadline := time.Now().Add(s.cfg.LeaderWait)
	for {
		begun := time.Now()
		leader := s.cfg.Raft.Leader()
		_, changed := s.cfg.Raft.Leadership()
		var err error
		switch {
		case leader.ID == s.cfg.Raft.ID():
			err = s.lead(w, rq)
		case leader.ID == "":
			err = &raft.NotLeaderError{}
		case passedOn:
			err = &raft.NotLeaderError{ID: leader.ID, Address: leader.Address}
		default:
			err = s.forward(w, rq, leader)
		}
		if !errors.Is(err, raft.ErrNotLeader) {
			return err
		}
		if passedOn {
			// The server that passed it on knows as much as this one, and tries again.
			w.Header().Set(headerNotLeader, "true")
			return err
		}
		if time.Since(begun) > s.cfg.LeaderWait {
			deadline = time.Now().Add(s.cfg.LeaderWait) // It was with a leader until now.
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("no leader responded within %s: %w", s.cfg.LeaderWait, err)
		}
		if rq.stream != nil {
			return err // What was read of it is gone.
		}
		select {
		case <-changed:
		case <-time.After(leaderPoll):
		case <-s.stopping:
			return fmt.Errorf("%w: %w", raft.ErrClosed, errStopping)
		case <-rq.ctx.Done():
			return fmt.Errorf("no leader: %w", rq.ctx.Err())
		}
	}
}

// lead answers on the leader. A request takes one round trip to a majority: a committed
// command proves that this server led, and VerifyTerm proves it for everything else, before
// an act and after what a write refused or left unchanged.
//
// A write may begin on the state of a leader that was deposed and does not know. Nothing
// comes of that. If another server was elected, no command of an earlier term is committed
// any more, so that a token, or anything else, that the new leader has deleted cannot
// change the state here. And a refusal is not answered but repeated on the new leader.
func (s *Server) lead(w http.ResponseWriter, rq *request) error {
	if rq.route.read != nil {
		return s.read(w, rq)
	}
	err := s.admit(rq, func() error {
		v, err := s.cfg.Raft.Read(rq.ctx, raft.Verified)
		if err == nil {
			_, err = s.authorize(rq.route, rq.Header, v)
		}
		return err
	})
	if err != nil {
		return err
	}
	// After the body, which may have taken its time.
	term, err := s.cfg.Raft.Established(rq.ctx)
	if err != nil {
		return err
	}
	if rq.route.act != nil {
		if err := s.cfg.Raft.VerifyTerm(rq.ctx, term); err != nil {
			return err
		}
		s.cfg.Loads.Begin(term)
		s.cfg.Usage.Begin(term)
	}
	a, err := s.change(rq, s.cfg.Raft.Store().View())
	if rq.route.write != nil && !rq.settled {
		if err := s.cfg.Raft.VerifyTerm(rq.ctx, term); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	a.status = rq.route.status
	return a.write(w, rq.Request)
}

// change runs the route's write or act for a caller that may.
func (s *Server) change(rq *request, v *state.View) (answer, error) {
	var err error
	if rq.token, err = s.authorize(rq.route, rq.Header, v); err != nil {
		return answer{}, err
	}
	if rq.route.write != nil {
		return rq.route.write(s, rq, v)
	}
	return rq.route.act(s, rq, v)
}
