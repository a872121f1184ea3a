package engine

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The token travels to the engine, which shows it wherever it asks for shared
// memory. An engine that waits for its lock has started long
// before, so its environment names a file, which says the token from the grant
// on: in decimal, empty before. The file is memory of this process, so that none
// is left behind.
const (
	fenceGroupEnv = "REMUDA_FENCE_GROUP"      // the failover group whose token fences the engine's writes to the GPU memory service
	fenceTokenEnv = "REMUDA_FENCE_TOKEN_FILE" // a file that has the newest fencing token
)

// openFence makes the file, for an engine with a lock.
func (s *Shim) openFence() error {
	if s.locker == nil {
		return nil
	}
	fd, err := unix.MemfdCreate("remuda-fence-token", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create the file of the fence token: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence = os.NewFile(uintptr(fd), "remuda-fence-token")
	return nil
}

func (s *Shim) closeFence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence != nil {
		_ = s.fence.Close()
	}
}

// tellFence writes the token, all of it at once.
func (s *Shim) tellFence(token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.fence.WriteAt([]byte(strconv.FormatUint(token, 10)+"\n"), 0); err != nil {
		return fmt.Errorf("write the fence token: %w", err)
	}
	return nil
}

func (s *Shim) fenceEnv() []string {
	if s.fence == nil {
		return nil
	}
	return []string{
		fenceGroupEnv + "=" + s.cfg.Name.String(),
		fmt.Sprintf("%s=/proc/%d/fd/%d", fenceTokenEnv, os.Getpid(), s.fence.Fd()),
	}
}
