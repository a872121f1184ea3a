package engine

import (
	"errors"
	"time"
)

// Cause is why an engine ended.
type Cause string

// The causes.
const (
	// CauseExited: the engine's process ended by itself, or was killed. The reason has its exit status or signal.
	CauseExited Cause = "exited"
	// CauseHung: the engine failed its health checks, or made no progress, for too long.
	CauseHung Cause = "hung"
	// CauseLock: the shim lost a lock.
	CauseLock Cause = "lock"
	// CauseStopped: the shim was told to stop, as by Nomad.
	CauseStopped Cause = "stopped"
	// CauseHandOver: a client ordered a hand-over.
	CauseHandOver Cause = "handover"
	// CauseDrill: a client ordered a drill.
	CauseDrill Cause = "drill"
	// CauseFailed: the shim met another error, which the reason gives.
	CauseFailed Cause = "failed"
	// CauseKilled: the shim died as well and recorded nothing.
	CauseKilled Cause = "killed"
)

// errHangs is the reason for the end of an engine that is alive and does no work.
var errHangs = errors.New("the engine hangs")

// causeOf returns the cause for the reason of a stop; nil means that the shim was told to stop.
func causeOf(reason error) Cause {
	if reason == nil {
		return CauseStopped
	}
	for cause, is := range map[Cause]error{
		CauseExited: ErrEngineExited, CauseHung: errHangs, CauseLock: ErrLockLost, CauseHandOver: ErrHandedOver, CauseDrill: ErrDrill,
	} {
		if errors.Is(reason, is) {
			return cause
		}
	}
	return CauseFailed
}

// Leader is the engine that serves for its replica, or was the last one to do so.
type Leader struct {
	Role string `json:"role"`
	// Task is the Nomad task that it ran in, empty outside Nomad.
	Task string `json:"task,omitempty"`
	// Cohort tells the lives of an engine apart.
	Cohort string    `json:"cohort"`
	Since  time.Time `json:"since"`
}

// End is the end of an engine that served for its replica.
type End struct {
	// Role and Cohort are those of the Leader that ended.
	Role   string    `json:"role"`
	Cohort string    `json:"cohort"`
	At     time.Time `json:"at"`
	Cause  Cause     `json:"cause"`
	Reason string    `json:"reason"`
}

// Takeover says how an engine came to serve after another one, or after its own earlier life.
type Takeover struct {
	// From is the role of the engine that served before.
	From string `json:"from"`
	// Cause is why that one ended, one of the causes below. Reason says more, and may be empty.
	Cause  Cause  `json:"cause"`
	Reason string `json:"reason"`
	// Ended is when it ended. If its shim was killed too, that is when this engine got the lock:
	// lockd grants it once it has proven that nothing is left of the other one.
	Ended time.Time `json:"ended"`
	// At is when this engine began to serve. Seconds is the time from Ended to At.
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	// Log is the end of what the task of that engine had printed, at most 20 lines of 200 bytes: of standard output,
	// then of standard error, where the shim's own are. Only GET /v1/takeover has it. It is empty for a moment after
	// a take-over, and outside Nomad.
	Log string `json:"log,omitempty"`
}

// recordLeader records that this engine serves since at. If another engine served before, and the
// replica was not put to sleep since, this is a take-over. An error is logged: an engine that
// cannot write the record serves all the same.
func (s *Shim) recordLeader(at time.Time) {
	s.mu.Lock()
	lockedAt := s.lockedAt
	s.mu.Unlock()
	var t *Takeover
	err := s.records.update(func(rec *Record) {
		before := rec.Leader
		if before.Cohort == s.cohortID {
			return
		}
		rec.Leader = Leader{Role: s.cfg.Role, Task: s.cfg.Task, Cohort: s.cohortID, Since: at.UTC()}
		if before.Cohort == "" || rec.Wanted == Warm {
			return
		}
		if rec.LastEnd.Cohort != before.Cohort {
			rec.LastEnd = End{Role: before.Role, Cohort: before.Cohort, At: lockedAt.UTC(), Cause: CauseKilled,
				Reason: "the shim was killed, and recorded no reason"}
		}
		end := rec.LastEnd
		t = &Takeover{From: end.Role, Cause: end.Cause, Reason: end.Reason, Ended: end.At, At: at.UTC(), Seconds: max(at.Sub(end.At).Seconds(), 0)}
	})
	if err != nil {
		s.logger.Warn("cannot record which engine serves: the next take-over has no cause", "error", err)
	}
	if t == nil {
		return
	}
	s.metrics.tookOver(t)
	s.mu.Lock()
	s.takeover = t
	s.mu.Unlock()
	select {
	case s.tookOver <- t:
	default: // it has taken over before
	}
	s.logger.Info("the engine has taken over", "from", t.From, "cause", t.Cause, "reason", t.Reason, "seconds", t.Seconds)
}

// recordEnd records the end of an engine that served, so that the next one knows why it serves.
func (s *Shim) recordEnd(reason error, unhealthy string, at time.Time) {
	if rec, err := s.records.read(); err != nil || rec.Leader.Cohort != s.cohortID {
		return // it did not serve
	}
	text := unhealthy
	if reason != nil {
		text = reason.Error()
	}
	end := End{Role: s.cfg.Role, Cohort: s.cohortID, At: at.UTC(), Cause: causeOf(reason), Reason: text}
	if err := s.records.update(func(rec *Record) { rec.LastEnd = end }); err != nil {
		s.logger.Warn("cannot record why the engine ends", "cause", end.Cause, "error", err)
	}
}
