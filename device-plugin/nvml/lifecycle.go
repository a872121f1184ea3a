package nvml

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
)

// Close ends the worker. The next GPUs starts another.
func (s *Source) Close() error {
	<-s.turn
	st := s.starting
	s.giveTurn()
	if st != nil {
		st.cancel()
		<-st.done
	}
	<-s.turn
	defer s.giveTurn()
	if s.proc != nil {
		s.proc.kill()
		s.usable = false
	}
	return nil
}

func (s *Source) giveTurn() { s.turn <- struct{}{} }

// ask sends one request to a worker, and starts one if start is set and none
// is there. A worker that fails for another reason than time is replaced once:
// its driver may just have been exchanged.
func (s *Source) ask(ctx context.Context, op string, start bool) (Message, error) {
	for try := 1; ; try++ {
		p, fresh, err := s.worker(ctx, start)
		if err != nil {
			return Message{}, err
		}
		asking, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		m, unusable, err := p.ask(asking, op)
		cancel()
		if err == nil {
			return m, nil
		}
		if unusable {
			s.discard(p, err)
		}
		if !unusable || fresh || !start || try > 1 || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return Message{}, err
		}
		s.log.Info("NVML is initialised anew", "reason", err)
	}
}

// discard kills a worker that can no longer be asked.
func (s *Source) discard(p *process, reason error) {
	<-s.turn
	defer s.giveTurn()
	s.reload = s.reload || errors.Is(reason, ErrNoDriver)
	if s.proc == p {
		s.usable, s.announced = false, false
	}
	p.kill()
}

// errNotStarted is what a sample gets while there is no worker.
var errNotStarted = errors.New("NVML is not initialised")

// worker returns a worker that can be asked, and whether it was just started. A
// start goes on after the caller's patience has ended, and the next caller
// waits for the same one.
func (s *Source) worker(ctx context.Context, start bool) (*process, bool, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return nil, false, fmt.Errorf("wait for NVML: %w", ctx.Err())
	}
	p, st, err := s.pick(start)
	s.giveTurn()
	if st == nil {
		return p, false, err
	}
	select {
	case <-st.done:
		return st.proc, true, st.err
	case <-ctx.Done():
		return nil, false, fmt.Errorf("NVML is still being initialised, and %s: %w", st.proc.doing(), ctx.Err())
	}
}

// starting is a start of a worker. proc is set from the beginning, err is once
// done is closed.
type starting struct {
	proc   *process
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// pick returns a worker that can be asked or a start that is under way. The
// caller has the turn.
func (s *Source) pick(start bool) (*process, *starting, error) {
	if s.usable && start && s.outdated() {
		s.usable = false
		s.proc.kill()
	}
	switch {
	case s.usable:
		return s.proc, nil, nil
	case !start:
		return nil, nil, errNotStarted
	case s.starting != nil:
		return nil, s.starting, nil
	case s.proc != nil && s.proc.alive():
		// One at a time: a driver that hangs must not collect processes.
		return nil, nil, fmt.Errorf("NVML hangs inside the driver: its process %d cannot be killed", s.proc.cmd.Process.Pid)
	}
	s.starts.Inc()
	s.started, s.listed = s.cfg.Clock(), s.host.drivers()
	p, err := spawn(s.cfg.Command, s.event)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StartTimeout)
	st := &starting{proc: p, cancel: cancel, done: make(chan struct{})}
	s.proc, s.starting = p, st
	go s.finish(ctx, st)
	return nil, st, nil
}

// finish waits until a worker has initialised NVML and found the GPUs.
func (s *Source) finish(ctx context.Context, st *starting) {
	defer st.cancel()
	err := st.proc.ready(ctx)
	if err == nil {
		_, _, err = st.proc.ask(ctx, OpLook)
	}
	if err != nil {
		st.proc.kill()
	}
	<-s.turn
	defer s.giveTurn()
	s.usable, s.starting = err == nil, nil
	s.announced = s.announced && err == nil
	switch {
	case err == nil:
		level := hclog.Info
		if s.announced {
			level = hclog.Debug // only a look for a GPU that is lost
		}
		s.announced = true
		s.log.Log(level, "NVML is initialised", "pid", st.proc.cmd.Process.Pid)
		if s.reload {
			s.reload = false
			s.mu.Lock()
			s.machine.Reloaded()
			s.mu.Unlock()
		}
	case errors.Is(err, ErrNoDriver):
		s.reload = true
	}
	st.err = err
	close(st.done)
}

// outdated says whether the worker has to be replaced to see what is there.
func (s *Source) outdated() bool {
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	return lost && s.cfg.Clock().Sub(s.started) >= s.cfg.Rediscover || s.host.drivers() != s.listed
}
