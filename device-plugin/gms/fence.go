package gms

import (
	"fmt"
	"maps"
	"sync"
)

const (
	// maxGroup is the longest name of a fence group in bytes, and maxGroups how
	// many groups are remembered: a node has a handful.
	maxGroup  = 256
	maxGroups = 1 << 16
)

// fences know the highest token of each failover group, across GPUs and tags, and
// which sessions came with which token. A token that is lower than the highest is
// an engine that has been replaced.
type fences struct {
	mu      sync.Mutex
	highest map[string]uint64
	// kept is the highest of each group that the keeper is known to have.
	kept     map[string]uint64
	sessions map[string]map[*session]struct{}
}

func newFences() *fences {
	return &fences{highest: map[string]uint64{}, kept: map[string]uint64{}, sessions: map[string]map[*session]struct{}{}}
}

// staleError is a token that is lower than the group's highest.
type staleError struct {
	group          string
	token, highest uint64
}

func (e *staleError) Error() string {
	return fmt.Sprintf("token %d of fence group %q is stale: the newest is %d", e.token, e.group, e.highest)
}

// admit takes a session in, unless its token is stale. Where its token is the highest
// so far, stale are the sessions that must end, and are no longer known here. unkept
// tells that the keeper may not have the token yet, also where another session has
// brought it a moment ago: see settled.
func (f *fences) admit(s *session) (stale []*session, unkept bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	highest, known := f.highest[s.group]
	switch {
	case s.token < highest:
		return nil, false, &staleError{s.group, s.token, highest}
	case !known && len(f.highest) >= maxGroups:
		return nil, false, fmt.Errorf("the limit of %d fence groups is reached", len(f.highest))
	}
	members := f.sessions[s.group]
	if members == nil {
		members = map[*session]struct{}{}
		f.sessions[s.group] = members
	}
	if !known || s.token > highest {
		f.highest[s.group] = s.token
		for other := range members {
			if other.token < s.token {
				stale = append(stale, other)
				delete(members, other)
			}
		}
	}
	members[s] = struct{}{}
	kept, known := f.kept[s.group]
	return stale, !known || kept < s.token, nil
}

// settled notes that the tokens of s's group were kept after s was admitted.
func (f *fences) settled(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept[s.group] = max(f.kept[s.group], s.token)
}

// leave forgets a session.
func (f *fences) leave(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sessions[s.group], s)
	if len(f.sessions[s.group]) == 0 {
		delete(f.sessions, s.group)
	}
}

// tokens are the highest of all groups.
func (f *fences) tokens() map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.highest)
}

// restore takes over what was known before a crash.
func (f *fences) restore(tokens map[string]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for group, token := range tokens {
		f.highest[group] = max(f.highest[group], token)
		f.kept[group] = f.highest[group]
	}
}
