package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"remuda/internal/replica"
	"remuda/lockd/client"
	"remuda/lockd/cohort"
)

// ErrLockLost is wrapped by Run's error when the engine had to go because its
// lock was lost.
var ErrLockLost = errors.New("lock lost")

// markOwner says which process the cohort's marker in the environment was made
// for; a shim that was started by another engine has that one's marker.
const markOwner = "REMUDA_COHORT_OWNER"

// Mark gives this process a cohort of its own, as lockd reads it from a holder's
// environment. The environment of a process is what it was
// started with, so Mark starts the program anew in place: it does not return
// then. It does nothing in a process that is marked.
func Mark() error {
	self, err := cohort.Lookup(os.Getpid())
	if err != nil {
		return err
	}
	owner := fmt.Sprintf("%d/%d", self.PID, self.Start)
	if os.Getenv(markOwner) == owner {
		return nil
	}
	const exe = "/proc/self/exe" // also if the file was replaced meanwhile
	env := append(withoutEnv(withoutEnv(os.Environ(), cohort.EnvVar), markOwner),
		cohort.EnvVar+"="+uuid.NewString(), markOwner+"="+owner)
	return fmt.Errorf("mark the cohort: start anew: %w", unix.Exec(exe, os.Args, env))
}

// cohortID is the marker of this process, if it is its own, else a fresh one.
func cohortID() string {
	if self, err := cohort.Lookup(os.Getpid()); err == nil && os.Getenv(markOwner) == fmt.Sprintf("%d/%d", self.PID, self.Start) {
		return os.Getenv(cohort.EnvVar)
	}
	return uuid.NewString()
}

// weightsLock is how an engine of the role asks for the lock of shared weights:
// only a primary may ever write them, so that no two engines can wait for each
// other.
func weightsLock(role string) string {
	if role == replica.RolePrimary {
		return "rw_or_ro"
	}
	return "ro"
}

func (s *Shim) lockConfig() client.Config {
	cfg := client.DefaultConfig()
	cfg.Addr, cfg.TLS = s.cfg.Lock, s.cfg.LockTLS
	cfg.Group, cfg.Holder = s.cfg.Name.String(), s.cfg.Role
	cfg.Reconnect, cfg.SessionTTL, cfg.Heartbeat = s.cfg.LockReconnect, s.cfg.LockSessionTTL, s.cfg.LockHeartbeat
	cfg.Logger = s.logger.Named("lock")
	cfg.OnWaiting = func(position int) {
		s.mu.Lock()
		s.waiting = position
		s.mu.Unlock()
	}
	return cfg
}

// acquire waits for the lock: its grant is what wakes the engine.
func (s *Shim) acquire(ctx context.Context) error {
	grant, err := s.locker.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire the lock: %w", err)
	}
	s.mu.Lock()
	s.grant, s.waiting = grant, 0
	s.engine.Token = grant.Token()
	s.mu.Unlock()
	s.metrics.token.Set(float64(grant.Token()))
	// The grant is never closed: a holder that lives without its connection is
	// about to be ended. The lock goes with this process.
	return nil
}

// guardLock ends the engine at once when its lock is lost: another may have it.
func (s *Shim) guardLock(ctx context.Context) {
	s.mu.Lock()
	grant := s.grant
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-grant.Lost():
		s.fail(fmt.Errorf("%w: %w", ErrLockLost, grant.Err()))
	}
}

func (s *Shim) holdsLock() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant != nil
}

// foreignMark is the marker of the guard, which must outlive the cohort.
func foreignMark(cohortID string) string {
	return cohort.EnvVar + "=guard-of-" + strings.TrimPrefix(cohortID, "guard-of-")
}
