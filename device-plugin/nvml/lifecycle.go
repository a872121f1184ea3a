package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
		s.end(s.proc)
		s.usable = false
	}
	return nil
}

func (s *Source) giveTurn() { s.turn <- struct{}{} }

// ask sends one request to a worker, and starts one if start is set and none
// is there. A worker that fails for another reason than time is replaced once:
// its driver may just have been exchanged, or its successor has taken over.
func (s *Source) ask(ctx context.Context, op string, start bool) (Message, error) {
	for try := 1; ; try++ {
		p, fresh, err := s.worker(ctx, start)
		if err != nil {
			return Message{}, err
		}
		m, unusable, err := s.request(ctx, p, op)
		if err == nil {
			return m, nil
		}
		if !unusable || fresh || try > 1 || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return Message{}, err
		}
		s.log.Debug("NVML responds again", "reason", err)
	}
}

// request sends one request to a worker. A caller who loses patience does not
// cost the worker its life, and the node the XIDs of the time until there is
// another: the request goes on until Config.Timeout.
func (s *Source) request(ctx context.Context, p *process, op string) (Message, bool, error) {
	type answer struct {
		m        Message
		unusable bool
		err      error
	}
	done := make(chan answer, 1)
	go func() {
		asking, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
		defer cancel()
		m, unusable, err := p.ask(asking, op)
		if unusable {
			s.discard(p, err)
		}
		done <- answer{m, unusable, err}
	}()
	select {
	case a := <-done:
		return a.m, a.unusable, a.err
	case <-ctx.Done():
		return Message{}, false, fmt.Errorf("NVML %s: %w", p.doing(), ctx.Err())
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
	s.end(p)
}

// end kills a worker and remembers one that will not die. The caller has the
// turn.
func (s *Source) end(p *process) {
	p.kill()
	if p.alive() && !slices.Contains(s.undead, p) {
		s.undead = append(s.undead, p)
	}
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

// starting is a start of a worker. proc and listed are set from the beginning,
// err is once done is closed.
type starting struct {
	proc   *process
	listed string // which GPUs the driver had then
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// pick returns a worker that can be asked or a start that is under way. The
// caller has the turn.
//
// A worker that is outdated goes on until its successor is ready: the GPUs that
// are well must not suffer from the search for one that is not, which may take
// long, and the driver stays awake meanwhile.
func (s *Source) pick(start bool) (*process, *starting, error) {
	if start && s.starting == nil && (!s.usable || s.outdated()) {
		if err := s.begin(); err != nil && !s.usable {
			return nil, nil, err
		}
	}
	switch {
	case s.usable:
		return s.proc, nil, nil
	case !start:
		return nil, nil, errNotStarted
	}
	return nil, s.starting, nil
}

// begin starts a worker. The caller has the turn.
func (s *Source) begin() error {
	s.undead = slices.DeleteFunc(s.undead, func(p *process) bool { return !p.alive() })
	if len(s.undead) > 0 {
		// A driver that hangs must not collect processes.
		return fmt.Errorf("NVML hangs inside the driver: its process %d cannot be killed", s.undead[0].cmd.Process.Pid)
	}
	s.starts.Inc()
	s.started = s.cfg.Clock()
	listed := s.host.drivers()
	p, err := spawn(s.cfg.Command, s.event)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StartTimeout)
	s.starting = &starting{proc: p, listed: listed, cancel: cancel, done: make(chan struct{})}
	go s.finish(ctx, s.starting)
	return nil
}

// finish waits until a worker has initialised NVML and found the GPUs.
func (s *Source) finish(ctx context.Context, st *starting) {
	defer st.cancel()
	err := st.proc.ready(ctx)
	if err == nil {
		_, _, err = st.proc.ask(ctx, OpLook)
	}
	<-s.turn
	defer s.giveTurn()
	s.starting = nil
	before := s.proc
	if err == nil {
		s.proc, s.usable, s.listed = st.proc, true, st.listed
	} else {
		before = st.proc
	}
	if before != nil {
		s.end(before)
	}
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
	return s.cfg.Clock().Sub(s.started) >= s.cfg.Rediscover && (lost || s.host.drivers() != s.listed)
}
