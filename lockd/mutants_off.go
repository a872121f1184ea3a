//go:build !lockd_mutants

package lockd

import (
	"time"

	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// The places where mutants_on.go breaks a promise, for the controls of
// lockd/torture. In every other build they do nothing.

func (s *Server) mutate(effects []lock.Effect) []lock.Effect { return effects }

func (s *Server) mutateClosed(_ time.Time, _ *conn, effects []lock.Effect) []lock.Effect {
	return effects
}

func (s *Server) mutateAcquire(r wire.Request, p lock.Peer) (wire.Request, lock.Peer) { return r, p }

func mutateWrite() {}
