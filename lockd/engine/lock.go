package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

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

// EnvGeneration is the first part of the engine's fencing tokens, which the controller gives
// to the replica's job: see replica.Token.
const EnvGeneration = "REMUDA_GENERATION"

// TaskGeneration reads EnvGeneration. It is 0 for a job that was run by hand.
func TaskGeneration() (uint64, error) {
	raw := os.Getenv(EnvGeneration)
	if raw == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(raw, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("$%s is %q: must be a whole number", EnvGeneration, raw)
	}
	return n, nil
}

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

func (s *Shim) lockConfig(group string) client.Config {
	cfg := client.DefaultConfig()
	cfg.Addr, cfg.TLS = s.cfg.Lock, s.cfg.LockTLS
	cfg.Group, cfg.Holder = group, s.cfg.Role
	cfg.SessionTTL, cfg.Heartbeat = s.cfg.LockSessionTTL, s.cfg.LockHeartbeat
	cfg.Logger = s.logger.Named("lock")
	cfg.OnWaiting = func(position int) {
		s.mu.Lock()
		s.waiting = position
		s.mu.Unlock()
	}
	return cfg
}

// acquireLife takes the lock that is named as the engine's service in Consul. It is held
// for the whole life of this process: should the process die, lockd kills what is left of
// the engine, and only then can the next life have the lock. It also removes the registration.
// The grant is nil without lockd.
func (s *Shim) acquireLife(ctx context.Context) (*client.Grant, error) {
	if s.life == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	grant, err := s.life.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire the engine's lock: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone, s.waiting = grant, 0
	if s.locker == nil {
		s.setToken(grant)
		s.lockedAt = time.Now()
	}
	return grant, nil
}

// setToken makes a grant's token the engine's. mu is held.
func (s *Shim) setToken(grant *client.Grant) {
	s.engine.Token = replica.Token{Generation: s.cfg.Generation, Counter: grant.Token()}
	s.metrics.token.Set(float64(grant.Token()))
}

// acquire waits for the lock: its grant is what wakes the engine.
func (s *Shim) acquire(ctx context.Context) error {
	grant, err := s.locker.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire the lock: %w", err)
	}
	s.mu.Lock()
	s.grant, s.waiting, s.lockedAt = grant, 0, time.Now()
	s.setToken(grant)
	s.mu.Unlock()
	s.noteEnd()
	// The grant is never closed: a holder that lives without its connection is
	// about to be ended. The lock goes with this process.
	return nil
}

// endWith ends the engine at once when a lock is lost: another engine may have it.
func (s *Shim) endWith(ctx context.Context, grant *client.Grant) {
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

func withoutEnv(env []string, name string) []string {
	kept := make([]string, 0, len(env))
	for _, kv := range env {
		if !strings.HasPrefix(kv, name+"=") {
			kept = append(kept, kv)
		}
	}
	return kept
}
