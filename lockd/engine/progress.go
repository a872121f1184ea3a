package engine

import (
	"errors"
	"time"

	"remuda/lockd/engine/dialect"
)

// progress finds an engine that has requests and does no work on them. The zero value has seen
// nothing yet.
type progress struct {
	// mark is the Progress of the last usage; workedAt is when it changed last, or when the
	// engine had nothing to do.
	mark     string
	workedAt time.Time
}

// observe takes what Usage returned and returns for how long the engine has had requests and
// done no work. An engine that does not report its requests or its progress is taken to work.
// One that does not answer is not.
func (p *progress) observe(now time.Time, u dialect.Usage, err error) time.Duration {
	switch {
	case p.workedAt.IsZero(), errors.Is(err, dialect.ErrUnknown):
	case err != nil:
		return now.Sub(p.workedAt)
	case u.InFlight() == 0, u.Progress == "", u.Progress != p.mark:
	default:
		return now.Sub(p.workedAt)
	}
	p.mark, p.workedAt = u.Progress, now
	return 0
}
