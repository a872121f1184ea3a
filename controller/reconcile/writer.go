package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// nodesPerCommand keeps a command far below state.MaxCommand: a node of 16 GPUs with
// two seats each takes some 5 KiB. With 64 seats each it takes ten times that: see upsert.
const nodesPerCommand = 200

// writer commits nodes and plans. Only the loop's goroutine may call its methods, except
// lastError.
type writer struct {
	l     *loop
	plans *rate.Limiter
	made  uint64 // plans so far
	// failures counts failures in a row; nothing is written before until.
	failures int
	until    time.Time
	// refused are the nodes that the state has rejected, by ID.
	refused map[string]state.Node
	// lost has when this server first saw each node down, by ID; see compareNodes.
	lost map[string]time.Time

	mu  sync.Mutex // guards err
	err string
}

func (w *writer) lastError() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *writer) setLastError(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = text
}

// ready reports whether a write may be tried now.
func (w *writer) ready(now time.Time, next *schedule) bool {
	if now.Before(w.until) {
		next.add(w.until)
		return false
	}
	return true
}

// apply commits one command. If that fails, it adds the time of the next try to next.
func (w *writer) apply(ctx context.Context, what string, c state.Command, next *schedule) error {
	_, err := w.l.cfg.Raft.Apply(ctx, c)
	if err == nil {
		w.failures, w.until = 0, time.Time{}
		w.setLastError("")
		return nil
	}
	w.failed(ctx, what, err, next)
	return err
}

// failed records that a write failed, and when the next one may be tried.
func (w *writer) failed(ctx context.Context, what string, err error, next *schedule) {
	if ctx.Err() != nil {
		return // this server no longer leads
	}
	w.setLastError(fmt.Sprintf("%s: %v", what, err))
	if errors.Is(err, raft.ErrUnknownOutcome) {
		// The command may still be applied. A run before that would decide the same a second
		// time.
		w.settle(ctx)
	}
	w.failures++
	now := w.l.cfg.Now()
	w.until = now
	// The first failure usually means only that the state has changed meanwhile.
	if w.failures > 1 {
		w.until = now.Add(planner.Backoff(w.l.cfg.Retry, w.l.cfg.RetryMax, w.failures-1))
		w.l.cfg.Logger.Warn("write to the state failed", "write", what, "error", err, "failures", w.failures, "retry", w.until.Sub(now))
	}
	next.add(w.until)
}

// settle waits until every proposed command is applied or lost, or until ctx ends because this
// server no longer leads.
func (w *writer) settle(ctx context.Context) {
	for n := 1; w.l.cfg.Raft.Barrier(ctx) != nil; n++ {
		if !sleep(ctx, planner.Backoff(w.l.cfg.Retry, w.l.cfg.RetryMax, n)) {
			return
		}
	}
}

// sleep waits for d. It returns false if ctx ends before that.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// plan commits a plan, and reports whether it did.
func (w *writer) plan(ctx context.Context, view *state.View, p *state.Plan, now time.Time, next *schedule) bool {
	if turn := w.plans.ReserveN(now, 1); turn.DelayFrom(now) > 0 {
		next.add(now.Add(turn.DelayFrom(now)))
		turn.CancelAt(now)
		return false
	}
	w.made++
	if p.ID == "" {
		p.ID = fmt.Sprintf("%d-%d", w.l.term, w.made)
	}
	if p.Index == 0 {
		p.Index = view.Index()
	}
	if p.Time.IsZero() {
		p.Time = now
	}
	err := w.apply(ctx, "plan "+p.ID, p, next)
	w.l.metrics.plan(err)
	if err != nil {
		return false
	}
	log := w.l.cfg.Logger
	log.Debug("plan committed", "plan", p.ID, "remove", len(p.Remove), "move", len(p.Move), "place", len(p.Place), "scales", len(p.Scales), "decisions", len(p.Decisions))
	w.l.logDecisions(p)
	return true
}

// logDecisions logs and counts the decisions of a committed plan.
func (l *loop) logDecisions(p *state.Plan) {
	for _, d := range p.Decisions {
		args := []any{"kind", d.Kind, "model", d.Model, "replica", d.Replica, "plan", p.ID}
		for _, k := range slices.Sorted(maps.Keys(d.Details)) {
			args = append(args, k, d.Details[k])
		}
		l.cfg.Logger.Info(d.Reason, args...)
		l.metrics.countDecision(d)
	}
}

// nodes writes the changed nodes to the state, and deletes those that are gone.
func (w *writer) nodes(ctx context.Context, view *state.View, list listing, now time.Time, next *schedule) {
	used := func(id string) bool { return len(view.ReplicasOn(nil, id)) > 0 }
	changes := compareNodes(view.Nodes(nil), list, now, w.l.cfg.Planner.NodeGrace, w.lost, used)
	next.add(changes.again)
	write := slices.DeleteFunc(changes.write, func(n state.Node) bool {
		was, refused := w.refused[n.ID]
		return refused && reflect.DeepEqual(was, asRefused(n))
	})
	if len(write) == 0 && len(changes.forget) == 0 || !w.ready(now, next) {
		return
	}
	for chunk := range slices.Chunk(write, nodesPerCommand) {
		w.upsert(ctx, chunk, changes.notes, next)
	}
	for _, id := range changes.forget {
		if w.apply(ctx, "forget node "+id, &state.DeleteNode{Node: id}, next) == nil {
			w.l.cfg.Logger.Info("node removed: Nomad no longer has it", "node", id)
		}
	}
}

// upsert writes nodes. If the state rejects them, it writes each half by itself, so that an
// invalid node does not keep out the others, and nodes with many seats fit into a command.
func (w *writer) upsert(ctx context.Context, nodes []state.Node, notes map[string]string, next *schedule) {
	_, err := w.l.cfg.Raft.Apply(ctx, &state.UpsertNodes{Nodes: nodes})
	var refusal *state.Error
	switch refused := errors.As(err, &refusal); {
	case err == nil:
		w.failures, w.until = 0, time.Time{}
		for _, n := range nodes {
			delete(w.refused, n.ID)
			if what := notes[n.ID]; what != "" {
				w.l.cfg.Logger.Info(what, "node", n.ID, "name", n.Name, "pool", n.CapacityPool, "ready", n.Ready, "draining", n.Draining, "gpus", len(n.GPUs))
			}
		}
	case refused && len(nodes) > 1:
		for half := range slices.Chunk(nodes, (len(nodes)+1)/2) {
			w.upsert(ctx, half, notes, next)
		}
	case refused:
		w.l.cfg.Logger.Warn("node ignored until it changes: the state rejects it", "node", nodes[0].ID, "name", nodes[0].Name, "error", err)
		if w.refused == nil {
			w.refused = map[string]state.Node{}
		}
		w.refused[nodes[0].ID] = asRefused(nodes[0])
	default:
		// The write is idempotent: it may be repeated whatever its outcome.
		w.failed(ctx, "write nodes", err, next)
	}
}

// asRefused returns n without the fields that change over time, for comparison.
func asRefused(n state.Node) state.Node {
	n.DownSince, n.WrittenOff = time.Time{}, false
	return n
}
