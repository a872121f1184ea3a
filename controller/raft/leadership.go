package raft

import (
	"context"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// Leadership is whether this server leads, and since when.
type Leadership struct {
	Leader bool
	// Term grows with each election. If it differs, the same server has been elected again.
	Term uint64
}

// establishPoll is the poll interval while waiting for leadership to be established. Raft does
// not always report that it was lost meanwhile.
const establishPoll = 20 * time.Millisecond

// leadership follows elections. It counts this server as leader only once everything that
// earlier leaders committed is applied here. What this server commits is applied here before the
// caller gets its result.
type leadership struct {
	node   *Node
	notify <-chan bool
	done   chan struct{}
	once   sync.Once

	mu      sync.Mutex
	current Leadership
	// changed is closed and replaced at each change of current.
	changed chan struct{}
}

func newLeadership(n *Node, notify <-chan bool) *leadership {
	return &leadership{node: n, notify: notify, done: make(chan struct{}), changed: make(chan struct{})}
}

func (l *leadership) stop() { l.once.Do(func() { close(l.done) }) }

// run follows Raft's notifications, which must always be taken, until stop.
func (l *leadership) run() {
	var wg sync.WaitGroup
	cancel := func() {}
	defer func() {
		cancel()
		wg.Wait()
		l.set(Leadership{})
	}()
	for {
		select {
		case <-l.done:
			return
		case leads := <-l.notify:
			cancel()
			wg.Wait()
			l.set(Leadership{})
			if leads {
				ctx, stop := context.WithCancel(context.Background())
				cancel = stop
				wg.Go(func() { l.establish(ctx) })
			}
		}
	}
}

// establish waits until everything that was committed before is applied, as long as
// this server leads.
func (l *leadership) establish(ctx context.Context) {
	term := l.node.raft.CurrentTerm()
	for {
		err := l.node.await(ctx, l.node.raft.Barrier(0))
		if ctx.Err() != nil || l.node.raft.State() != hraft.Leader || l.node.raft.CurrentTerm() != term {
			return
		}
		if err == nil {
			break
		}
		l.node.log.Warn("leadership not established yet", "term", term, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(establishPoll):
		}
	}
	l.set(Leadership{Leader: true, Term: term})
	l.node.log.Info("leadership acquired", "term", term, "applied", l.node.cfg.Store.View().Index())
}

func (l *leadership) set(now Leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now == l.current {
		return
	}
	l.current = now
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leadership) get() (Leadership, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed
}

// established is Node.Established.
func (l *leadership) established(ctx context.Context) (uint64, error) {
	for {
		now, changed := l.get()
		if now.Leader && l.node.raft.CurrentTerm() == now.Term {
			return now.Term, nil
		}
		if l.node.raft.State() != hraft.Leader {
			return 0, l.node.notLeader()
		}
		select {
		case <-changed:
		case <-time.After(establishPoll):
		case <-ctx.Done():
			return 0, l.node.notLeader()
		case <-l.done:
			return 0, ErrClosed
		}
	}
}

// Leadership returns whether this server leads, and a channel that is closed when
// that changes.
func (n *Node) Leadership() (Leadership, <-chan struct{}) { return n.lead.get() }

// WhileLeader calls lead whenever this server leads, with a context that ends when it
// leads no more, and waits for it to return before it calls it again. It returns when
// ctx ends or the node is closed. Leadership may be lost before this server knows: what
// lead does must be safe by itself, as Apply is.
func (n *Node) WhileLeader(ctx context.Context, lead func(ctx context.Context, term uint64)) {
	for ctx.Err() == nil && n.ctx.Err() == nil {
		now, changed := n.lead.get()
		if !now.Leader {
			select {
			case <-changed:
				continue
			case <-n.ctx.Done():
				return
			case <-ctx.Done():
				return
			}
		}
		leading, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { lead(leading, now.Term) })
		select {
		case <-changed:
		case <-n.ctx.Done():
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
	}
}
