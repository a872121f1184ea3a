package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-memdb"
)

// Table names a table of the store. Queries name those that they watch.
type Table string

// The tables.
const (
	TableModels    Table = "models"
	TableVersions  Table = "versions"
	TableReplicas  Table = "replicas"
	TableNodes     Table = "nodes"
	TableDecisions Table = "decisions"
	TableSwitches  Table = "switches"
	TableTokens    Table = "tokens"
	TableDedicated Table = "dedicated"
	TableSchedule  Table = "schedule"
	TablePace      Table = "pace"
	TablePipelines Table = "pipelines"
	TableShimKey   Table = "shim_key"
	TableKeys      Table = "keys"
	TableUsage     Table = "usage"
	// TableUsageMarks is how much of which gateway's counters TableUsage contains.
	TableUsageMarks Table = "usage_marks"

	// tableIndex has the index of each table's last change, and of the last command.
	tableIndex Table = "index"
)

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

// table describes a table of rows.
type table struct {
	name Table
	// record is the type of its rows in snapshots. Types are never reused: 11 is retired.
	record byte
	// empty makes an empty row; key returns what a row is known by, empty if it lacks it.
	empty   func() any
	key     func(row any) string
	indexes []*memdb.IndexSchema
}

// tables in the order of snapshots.
var tables = [...]table{
	rowsOf(TableModels, 1, func(m *Model) string { return m.Name }),
	rowsOf(TableVersions, 12, func(v *Version) string {
		if v.Model.Name == "" {
			return ""
		}
		return versionKey(v.Model.Name, v.Number)
	}, indexOf(byModel, func(v *Version) string { return v.Model.Name })),
	rowsOf(TableNodes, 2, func(n *Node) string { return n.ID }),
	rowsOf(TableReplicas, 3, func(r *Replica) string {
		if r.Placement.Node == "" || r.Name.Model == "" {
			return ""
		}
		return r.Name.String()
	}, indexOf(byModel, func(r *Replica) string { return r.Name.Model }), indexOf(byNode, func(r *Replica) string { return r.Placement.Node })),
	rowsOf(TableDecisions, 4, func(d *Decision) string { return d.Kind },
		&memdb.IndexSchema{Name: byID, Unique: true, Indexer: decisionID{}},
		&memdb.IndexSchema{Name: byModel, AllowMissing: true, Indexer: text(func(d *Decision) string { return d.Model })}),
	rowsOf(TableSwitches, 5, func(s *Switch) string { return s.Name }),
	rowsOf(TableTokens, 6, func(t *Token) string {
		if t.Hash == "" {
			return ""
		}
		return t.Accessor
	}, &memdb.IndexSchema{Name: byHash, Unique: true, Indexer: text(func(t *Token) string { return t.Hash })}),
	rowsOf(TableDedicated, 7, (*Dedicated).key, only[Dedicated]()),
	rowsOf(TableSchedule, 8, func(s *Schedule) string { return s.File }, only[Schedule]()),
	rowsOf(TablePace, 9, (*Pace).key, only[Pace]()),
	rowsOf(TablePipelines, 10, func(p *Pipeline) string { return p.Name }),
	rowsOf(TableShimKey, 13, (*ShimKey).key, only[ShimKey]()),
	rowsOf(TableKeys, 14, func(k *Key) string { return k.Name }),
	rowsOf(TableUsage, 15, func(r *UsageRow) string {
		if r.Day == "" || r.Key == "" || r.Model == "" {
			return ""
		}
		return r.key()
	}),
	rowsOf(TableUsageMarks, 16, func(m *UsageMark) string {
		if m.Day == "" || m.Gateway == "" || m.Key == "" || m.Model == "" {
			return ""
		}
		return m.ID()
	}),
}

// rowsOf describes a table whose rows are found by their key, unless an index byID is given.
func rowsOf[T any](name Table, record byte, key func(*T) string, indexes ...*memdb.IndexSchema) table {
	t := table{name: name, record: record, empty: func() any { return new(T) }, indexes: indexes}
	t.key = func(row any) string {
		r, ok := row.(*T)
		if !ok {
			return ""
		}
		return key(r)
	}
	if !slices.ContainsFunc(indexes, func(i *memdb.IndexSchema) bool { return i.Name == byID }) {
		t.indexes = append(t.indexes, &memdb.IndexSchema{Name: byID, Unique: true, Indexer: text(key)})
	}
	return t
}

func indexOf[T any](name string, key func(*T) string) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Indexer: text(key)}
}

// only is the index of a table that has one row at most.
func only[T any]() *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: byID, Unique: true, Indexer: text(func(*T) string { return onlyRow })}
}

// indexes describes the table of indexes, which ends a snapshot.
var indexes = rowsOf(tableIndex, 0x40, func(r *indexRow) string { return r.Key })

// recorded returns the table whose rows have that type in snapshots, nil where none has.
func recorded(record byte) *table {
	if record == indexes.record {
		return &indexes
	}
	for i := range tables {
		if tables[i].record == record {
			return &tables[i]
		}
	}
	return nil
}

func newSchema() *memdb.DBSchema {
	schema := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range append(tables[:], indexes) {
		ts := &memdb.TableSchema{Name: string(t.name), Indexes: map[string]*memdb.IndexSchema{}}
		for _, i := range t.indexes {
			ts.Indexes[i.Name] = i
		}
		schema.Tables[string(t.name)] = ts
	}
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
