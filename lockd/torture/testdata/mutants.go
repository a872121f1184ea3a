package lockd

import (
	"os"
	"time"

	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// mutant is the one promise that this build breaks. The torture's tests compile
// this file into lockd and must notice each; no other build has it.
var mutant = os.Getenv("REMUDA_LOCKD_MUTANT")

const (
	// mutantEOF takes the end of a connection for the holder's death.
	mutantEOF = "eof"
	// mutantToken gives the lock to whoever comes back with any token.
	mutantToken = "token"
	// mutantFsync says of a record that it is on disk while it is in this
	// process's memory. With a missing fsync it would be in the kernel's, which
	// only the machine's crash loses, and the torture cannot crash the machine.
	mutantFsync = "fsync"
)

// mutate changes what the machine asks for. mu is held.
func (s *Server) mutate(effects []lock.Effect) []lock.Effect {
	var out []lock.Effect
	for _, e := range effects {
		switch e := e.(type) {
		case lock.Fence:
			if mutant == mutantEOF {
				out = append(out, s.mutate(s.machine.Gone(time.Now(), e.Group, e.Token))...)
				continue
			}
		case lock.Persist:
			if mutant == mutantFsync {
				out = append(append(out, e), s.mutate(s.machine.Persisted(time.Now(), e.Version, nil))...)
				continue
			}
		}
		out = append(out, e)
	}
	return out
}

// mutateClosed is called when the machine knows of the end of a connection. mu is held.
func (s *Server) mutateClosed(now time.Time, c *conn, effects []lock.Effect) []lock.Effect {
	if mutant != mutantEOF {
		return effects
	}
	for _, g := range s.machine.Status() {
		if g.Group == c.group && g.State == lock.Reconnecting {
			effects = append(effects, s.machine.Died(now, g.Group, g.Token)...)
		}
	}
	return effects
}

// mutateAcquire makes a client with a token look like the present holder. mu is held.
func (s *Server) mutateAcquire(r wire.Request, p lock.Peer) (wire.Request, lock.Peer) {
	if mutant != mutantToken || r.Token == 0 {
		return r, p
	}
	record := s.machine.Records().Groups[r.Group]
	if record.Holder == "" {
		return r, p
	}
	r.Token, r.Holder = record.Token, record.Holder
	return r, record.Peer
}

// mutateWrite is called before a record is written.
func mutateWrite() {
	if mutant == mutantFsync {
		time.Sleep(30 * time.Millisecond)
	}
}
