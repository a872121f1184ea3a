package state

import (
	"context"
	"errors"
	"slices"

	"github.com/hashicorp/go-memdb"
)

// View is the state at one moment. It never changes, and costs next to nothing to
// take. The rows that it returns belong to the state and must not be changed. Lists are sorted by
// name.
//
// A query adds channels to the watch set that it is given, which are closed once its result may
// have changed. The watch set is nil if the caller does not wait.
type View struct {
	txn       *memdb.Txn
	abandoned chan struct{}
}

// View returns the state as it is now.
func (s *Store) View() *View {
	d := s.data.Load()
	return &View{txn: d.db.Txn(false), abandoned: d.abandoned}
}

// Index is that of the last command that the view has seen, whether it changed
// anything or not.
func (v *View) Index() uint64 { return v.index(appliedKey) }

// TableIndex is that of the last command that changed any of the tables, all of them
// if none is named; at least 1, so that a blocking query can wait for the first
// change.
func (v *View) TableIndex(of ...Table) uint64 {
	last := uint64(1)
	for _, t := range tables {
		if len(of) == 0 || slices.Contains(of, t.name) {
			last = max(last, v.index(string(t.name)))
		}
	}
	return last
}

// Unchanged reports whether the tables are the same in both views. It is false for views of
// different stores, and where the store was restored in between.
func (v *View) Unchanged(since *View, of ...Table) bool {
	return v.abandoned == since.abandoned && v.TableIndex(of...) == since.TableIndex(of...)
}

func (v *View) index(key string) uint64 {
	if row := first[indexRow](v.txn, tableIndex, byID, key); row != nil {
		return row.Value
	}
	return 0
}

func query[T any](v *View, ws memdb.WatchSet, table Table, index string, args ...any) []*T {
	rows, ch := each[T](v.txn, table, index, args...)
	ws.Add(ch)
	ws.Add(v.abandoned)
	return rows
}

func queryOne[T any](v *View, ws memdb.WatchSet, table Table, index string, args ...any) *T {
	ch, raw, err := v.txn.FirstWatch(string(table), index, args...)
	if err != nil {
		panic(err) // As in first.
	}
	ws.Add(ch)
	ws.Add(v.abandoned)
	row, _ := raw.(*T)
	return row
}

// Models returns all models.
func (v *View) Models(ws memdb.WatchSet) []*Model { return query[Model](v, ws, TableModels, byID) }

// Model returns a model, nil if there is none of that name.
func (v *View) Model(ws memdb.WatchSet, name string) *Model {
	return queryOne[Model](v, ws, TableModels, byID, name)
}

// Replicas returns all replicas.
func (v *View) Replicas(ws memdb.WatchSet) []*Replica {
	return query[Replica](v, ws, TableReplicas, byID)
}

// ReplicasOf returns the replicas of a model.
func (v *View) ReplicasOf(ws memdb.WatchSet, model string) []*Replica {
	return query[Replica](v, ws, TableReplicas, byModel, model)
}

// StayingOf returns the replicas of a model that count against its target.
func (v *View) StayingOf(ws memdb.WatchSet, model string) []*Replica {
	return slices.DeleteFunc(v.ReplicasOf(ws, model), func(r *Replica) bool { return !r.Counts() })
}

// ReplicasOn returns the replicas on a node.
func (v *View) ReplicasOn(ws memdb.WatchSet, node string) []*Replica {
	return query[Replica](v, ws, TableReplicas, byNode, node)
}

// Replica returns a replica, nil if there is none of that name.
func (v *View) Replica(ws memdb.WatchSet, name string) *Replica {
	return queryOne[Replica](v, ws, TableReplicas, byID, name)
}

// Nodes returns all nodes.
func (v *View) Nodes(ws memdb.WatchSet) []*Node { return query[Node](v, ws, TableNodes, byID) }

// Node returns a node, nil if there is none of that ID.
func (v *View) Node(ws memdb.WatchSet, id string) *Node {
	return queryOne[Node](v, ws, TableNodes, byID, id)
}

// Decisions returns the newest decisions, newest first, at most limit where that is
// above 0; only those about a model if one is named.
func (v *View) Decisions(ws memdb.WatchSet, model string, limit int) []*Decision {
	index, args := byID, []any(nil)
	if model != "" {
		index, args = byModel, []any{model}
	}
	// A reverse iterator has no channel to watch.
	forward, err := v.txn.Get(string(TableDecisions), index, args...)
	if err != nil {
		panic(err) // As in first.
	}
	it, err := v.txn.GetReverse(string(TableDecisions), index, args...)
	if err != nil {
		panic(err)
	}
	ws.Add(forward.WatchCh())
	ws.Add(v.abandoned)
	var ds []*Decision
	for raw := it.Next(); raw != nil && (limit <= 0 || len(ds) < limit); raw = it.Next() {
		if d, ok := raw.(*Decision); ok {
			ds = append(ds, d)
		}
	}
	return ds
}

// LastDecision returns the newest decision of a kind about a model, nil if there is none.
func (v *View) LastDecision(model, kind string) *Decision {
	it, err := v.txn.GetReverse(string(TableDecisions), byModel, model)
	if err != nil {
		panic(err) // As in first.
	}
	for raw := it.Next(); raw != nil; raw = it.Next() {
		if d, ok := raw.(*Decision); ok && d.Kind == kind {
			return d
		}
	}
	return nil
}

// Switches returns all switches that are set.
func (v *View) Switches(ws memdb.WatchSet) []*Switch {
	return query[Switch](v, ws, TableSwitches, byID)
}

// Switch returns a switch's value, empty if it is not set.
func (v *View) Switch(ws memdb.WatchSet, name string) string {
	if s := queryOne[Switch](v, ws, TableSwitches, byID, name); s != nil {
		return s.Value
	}
	return ""
}

// Tokens returns all tokens.
func (v *View) Tokens(ws memdb.WatchSet) []*Token { return query[Token](v, ws, TableTokens, byID) }

// TokenBySecret returns the token of that secret, nil if there is none.
func (v *View) TokenBySecret(secret string) *Token {
	return first[Token](v.txn, TableTokens, byHash, HashSecret(secret))
}

// Usage returns what the replicas on a node hold together.
func (v *View) Usage(ws memdb.WatchSet, node string) *NodeUsage {
	return usageOf(node, v.ReplicasOn(ws, node), "")
}

// UsageWithout returns what the replicas on a node hold together without one of them.
func (v *View) UsageWithout(ws memdb.WatchSet, node, replica string) *NodeUsage {
	return usageOf(node, v.ReplicasOn(ws, node), replica)
}

// Block runs query until the index that it returns is above after, until ctx's
// deadline or until the store is restored, and returns the last index. With after 0
// it runs once. Each time the query runs on a new view, adds what it reads to the watch set, and
// keeps its result. The error is the query's, or ctx's if ctx was cancelled. An exceeded
// deadline is not an error: the last result of the query holds.
func (s *Store) Block(ctx context.Context, after uint64, query func(v *View, ws memdb.WatchSet) (uint64, error)) (uint64, error) {
	for {
		ws := memdb.NewWatchSet()
		v := s.View()
		ws.Add(v.abandoned)
		index, err := query(v, ws)
		if err != nil || after == 0 || index > after {
			return index, err
		}
		if err := ws.WatchCtx(ctx); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			return index, err
		}
		select {
		case <-v.abandoned:
			after = 0 // Its index may be lower now, for good: answer with what is there.
		default:
		}
	}
}
