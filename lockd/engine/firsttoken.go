package engine

import (
	"context"
	"errors"
	"time"

	"remuda/lockd/engine/dialect"
)

// firstRequestWithin is how soon after a take-over a request must reach the engine to count as one that
// waited for it. Gateways send what they hold as soon as Consul lists the engine.
const firstRequestWithin = time.Second

// noteGenerated notes what the engine has generated before it serves.
func (s *Shim) noteGenerated(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	usage, err := s.dialect.Usage(ctx)
	if err != nil {
		s.logger.Debug("the time from a take-over to the first token is not measured: the engine does not report its tokens", "error", err)
	}
	s.mu.Lock()
	s.generated = usage.Generated
	s.mu.Unlock()
}

// observeFirstToken waits for a take-over, and then observes the time from the end of the engine before
// to this one's first token. It observes nothing if no request comes within firstRequestWithin, as the
// time would be that until a client came, or if the engine does not report its tokens. A process takes over once.
func (s *Shim) observeFirstToken(ctx context.Context) {
	var t *Takeover
	select {
	case <-ctx.Done():
		return
	case t = <-s.tookOver:
	}
	s.mu.Lock()
	before := s.generated
	s.mu.Unlock()
	for before != "" && s.State() == Active {
		askCtx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
		usage, err := s.dialect.Usage(askCtx)
		cancel()
		now := time.Now()
		served := now.Sub(t.At)
		switch {
		case errors.Is(err, dialect.ErrUnknown):
			return
		case err != nil: // the health checks find out whether it hangs
		case usage.Generated != before:
			took := now.Sub(t.Ended)
			s.metrics.madeFirstToken(t.Cause, took)
			s.logger.Info("first token after the take-over", "cause", t.Cause, "seconds", took.Seconds())
			return
		case usage.InFlight() == 0 && served > firstRequestWithin:
			s.logger.Info("no request waited for the take-over", "cause", t.Cause)
			return
		}
		if pause(ctx, max(pollFast, served/10)) != nil { // exact to a tenth, and little work for a busy engine
			return
		}
	}
}
