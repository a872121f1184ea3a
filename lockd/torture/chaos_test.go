package torture

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func (r *round) kills() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts.HolderKills + r.counts.LockdKills
}

// chaos does one thing after the other until the goal is reached or something
// is found.
func (r *round) chaos(ctx context.Context, goal int, limit time.Duration, dir, id string) {
	var over <-chan time.Time
	if limit > 0 {
		over = time.After(limit)
	}
	for r.kills() < goal && !r.violated() {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-time.After(r.random.pause(50 * time.Millisecond)):
		}
		r.strike(r.random.n(r.cfg.Groups), dir, id)
	}
}

// strike does one thing to a group.
func (r *round) strike(g int, dir, id string) {
	h := r.holder(g)
	if h == nil && r.random.n(3) > 0 {
		return // leave it the time to get one
	}
	switch p := r.random.n(100); {
	case p < 30:
		if h != nil {
			r.kill(h, "which holds")
		}
	case p < 48:
		if l := r.anyone(); l != nil {
			r.kill(l, "at random")
		}
	case p < 62:
		r.strikeAtGrant(g)
		if h != nil {
			r.kill(h, "for the next grant")
		}
	case p < 70:
		r.killLockd("at random")
	case p < 76: // lockd and a holder, in any order
		if r.random.n(2) == 0 {
			r.killLockd("and a holder")
		}
		if h != nil {
			r.kill(h, "and lockd")
		}
		r.killLockd("and a holder")
	case p < 84:
		r.stop(h)
	case p < 89:
		r.order(h, []string{"drop", "again"}[r.random.n(2)])
		r.spare()
	case p < 97:
		r.claim(g, dir, id)
	case p < 99: // everybody of a group
		r.mu.Lock()
		recent := slices.Clone(r.all[max(0, len(r.all)-3*r.cfg.Groups*r.cfg.Seats):])
		r.mu.Unlock()
		for _, l := range recent {
			if l.spec.Group == g {
				r.kill(l, "with its group")
			}
		}
	default: // everything
		r.killLockd("and all holders")
		for g := range r.cfg.Groups {
			if h := r.holder(g); h != nil {
				r.kill(h, "with everything")
			}
		}
	}
}

// strikeAtGrant strikes at the very moment of a group's next grant.
func (r *round) strikeAtGrant(g int) {
	what, after := r.random.n(3), time.Duration(r.random.n(4))*300*time.Microsecond
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atGrant[g] = func(l *life) {
		if after > 0 {
			time.Sleep(after)
		}
		if what != 0 {
			r.killLockd("at a grant")
		}
		if what != 1 {
			r.kill(l, "at its grant")
		}
	}
}

// stop stops a holder for a while, and mostly takes its connection away by a
// restart of lockd, so that it is fenced while it hangs.
func (r *round) stop(h *life) {
	if h == nil {
		return
	}
	r.mu.Lock()
	if h.stopped || h.killed || h.reaped != 0 {
		r.mu.Unlock()
		return
	}
	h.stopped, h.left = true, true
	r.counts.Stops++
	r.mu.Unlock()
	r.signal(h, syscall.SIGSTOP)
	if r.random.n(4) > 0 {
		r.killLockd("with a holder stopped")
	}
	r.spare()
	// Before or after it is fenced.
	wake := time.Duration(r.random.n(int(4 * reconnect)))
	r.running.Go(func() {
		select {
		case <-h.done:
			return
		case <-r.ends.Done():
		case <-time.After(wake):
		}
		r.mu.Lock()
		h.stopped, h.left = false, false
		r.mu.Unlock()
		r.signal(h, syscall.SIGCONT)
	})
}

func (r *round) order(h *life, what string) {
	if h == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.stopped || h.cut || h.reaped != 0 {
		return
	}
	h.cut, h.left = true, true
	r.counts.Cuts++
	r.trace = append(r.trace, fmt.Sprintf("%.6f group %d life %d is told to %s", float64(now())/1e9, h.spec.Group, h.id, what))
	_, _ = io.WriteString(h.in, what+"\n")
}

// spare lets lockd live for long enough to fence, every other time.
func (r *round) spare() {
	if r.random.n(2) == 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.spared = time.Now().Add(2*reconnect + 50*time.Millisecond)
	}
}

// claim starts a process that asks with a token of another, of now or of before.
func (r *round) claim(g int, dir, id string) {
	r.mu.Lock()
	var of *life
	for i := len(r.all) - 1; i >= 0 && of == nil; i-- {
		l := r.all[i]
		if l.spec.Group == g && l.token != 0 && r.random.n(2) == 0 {
			of = l
		}
	}
	if of != nil {
		r.counts.Claims++
	}
	r.mu.Unlock()
	if of == nil {
		return
	}
	spec := holderSpec{Dir: r.dir, Socket: filepath.Join(dir, "sock"), Groups: r.cfg.Groups, Group: g, Name: of.spec.Name, MiB: 1, Claim: of.token}
	if _, err := r.start(spec, id); err != nil {
		r.fault("start a claimant: %v", err)
	}
}

// settle lets everything run without harm: every group must be granted again.
func (r *round) settle(ctx context.Context) {
	r.mu.Lock()
	before := slices.Clone(r.granted)
	clear(r.atGrant)
	r.mu.Unlock()
	r.note("nothing is killed any more but what holds")
	for g := range r.cfg.Groups {
		if h := r.holder(g); h != nil {
			r.mu.Lock()
			h.left = false
			r.mu.Unlock()
			r.kill(h, "for a last grant")
		}
	}
	deadline := time.Now().Add(patience)
	for ctx.Err() == nil && !r.violated() {
		r.mu.Lock()
		missing := -1
		for g := range r.granted {
			if r.granted[g] == before[g] {
				missing = g
			}
		}
		r.mu.Unlock()
		if missing < 0 {
			r.note("every group was granted again after %s", time.Until(deadline.Add(-patience)).Abs())
			return
		}
		if time.Now().After(deadline) {
			r.fault("group %d is not granted within %s", missing, patience)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
