package state

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// Table names a table of the store. Queries name those that they watch.
type Table string

// The tables.
const (
	TableModels    Table = "models"
	TableReplicas  Table = "replicas"
	TableNodes     Table = "nodes"
	TableDecisions Table = "decisions"
	TableSwitches  Table = "switches"
	TableTokens    Table = "tokens"
	TableDedicated Table = "dedicated"
	TableSchedule  Table = "schedule"
	TableMarks     Table = "marks"
	TablePipelines Table = "pipelines"
	TableScalers   Table = "scalers"

	// tableIndex has the index of each table's last change, and of the last command.
	tableIndex Table = "index"
)

// tables in the order of snapshots.
var tables = [...]Table{TableModels, TableNodes, TableReplicas, TableDecisions, TableSwitches, TableTokens, TableDedicated, TableSchedule, TableMarks, TablePipelines, TableScalers}

const (
	byID    = "id"
	byModel = "model"
	byNode  = "node"
	byHash  = "hash"

	// onlyRow is the key of a table that has one row at most.
	onlyRow = "only"

	// appliedKey is the row of tableIndex for the last command.
	appliedKey = "applied"
)

// indexRow is a row of tableIndex.
type indexRow struct {
	Key   string
	Value uint64
}

func newSchema() *memdb.DBSchema {
	id := func(i memdb.Indexer) *memdb.IndexSchema {
		return &memdb.IndexSchema{Name: byID, Unique: true, Indexer: i}
	}
	schema := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	add := func(t Table, indexes ...*memdb.IndexSchema) {
		ts := &memdb.TableSchema{Name: string(t), Indexes: map[string]*memdb.IndexSchema{}}
		for _, i := range indexes {
			ts.Indexes[i.Name] = i
		}
		schema.Tables[string(t)] = ts
	}
	add(tableIndex, id(text(func(r *indexRow) string { return r.Key })))
	add(TableModels, id(text(func(m *Model) string { return m.Name })))
	add(TableReplicas,
		id(text(func(r *Replica) string { return r.Name.String() })),
		&memdb.IndexSchema{Name: byModel, Indexer: text(func(r *Replica) string { return r.Name.Model })},
		&memdb.IndexSchema{Name: byNode, Indexer: text(func(r *Replica) string { return r.Placement.Node })},
	)
	add(TableNodes, id(text(func(n *Node) string { return n.ID })))
	add(TableDecisions,
		id(decisionID{}),
		&memdb.IndexSchema{Name: byModel, AllowMissing: true, Indexer: text(func(d *Decision) string { return d.Model })},
	)
	add(TableSwitches, id(text(func(s *Switch) string { return s.Name })))
	add(TableTokens,
		id(text(func(t *Token) string { return t.Accessor })),
		&memdb.IndexSchema{Name: byHash, Unique: true, Indexer: text(func(t *Token) string { return t.Hash })},
	)
	add(TableDedicated, id(text(func(*Dedicated) string { return onlyRow })))
	add(TableSchedule, id(text(func(*Schedule) string { return onlyRow })))
	add(TableMarks, id(text(func(m *Mark) string { return m.Key })))
	add(TablePipelines, id(text(func(p *Pipeline) string { return p.Name })))
	add(TableScalers, id(text(func(s *Scaler) string { return s.Name })))
	return schema
}

// textIndex indexes a row by a string, which holds no NUL.
type textIndex[T any] struct{ key func(*T) string }

func text[T any](key func(*T) string) textIndex[T] { return textIndex[T]{key} }

var errIndexArg = errors.New("index argument has the wrong type")

// FromObject implements memdb.SingleIndexer.
func (i textIndex[T]) FromObject(raw any) (bool, []byte, error) {
	row, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("row is a %T", raw)
	}
	key := i.key(row)
	if key == "" {
		return false, nil, nil
	}
	return true, terminated(key), nil
}

// FromArgs implements memdb.Indexer.
func (i textIndex[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, errIndexArg
	}
	key, ok := args[0].(string)
	if !ok {
		return nil, errIndexArg
	}
	return terminated(key), nil
}

// terminated ends a key, so that none is a prefix of another.
func terminated(key string) []byte {
	b := make([]byte, 0, len(key)+1)
	return append(append(b, key...), 0)
}

// decisionID orders decisions by their IDs.
type decisionID struct{}

// FromObject implements memdb.SingleIndexer.
func (decisionID) FromObject(raw any) (bool, []byte, error) {
	d, ok := raw.(*Decision)
	if !ok {
		return false, nil, fmt.Errorf("row is a %T", raw)
	}
	return true, binary.BigEndian.AppendUint64(nil, d.ID), nil
}

// FromArgs implements memdb.Indexer.
func (decisionID) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, errIndexArg
	}
	id, ok := args[0].(uint64)
	if !ok {
		return nil, errIndexArg
	}
	return binary.BigEndian.AppendUint64(nil, id), nil
}
