package state

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-memdb"
)

// Store is the state. Apply and Restore are called by one goroutine at a time, as
// Raft does; everything else is safe at any time from any goroutine.
type Store struct {
	// write is held by Apply and Restore, so that a mistake of the caller's is a wait
	// and not a broken store.
	write sync.Mutex
	data  atomic.Pointer[data]
}

// data is replaced as a whole by Restore.
type data struct {
	db *memdb.MemDB
	// abandoned is closed when other data took its place.
	abandoned chan struct{}
}

func newData() (*data, error) {
	db, err := memdb.NewMemDB(newSchema())
	if err != nil {
		return nil, fmt.Errorf("state: schema: %w", err)
	}
	return &data{db: db, abandoned: make(chan struct{})}, nil
}

// New returns an empty store.
func New() (*Store, error) {
	d, err := newData()
	if err != nil {
		return nil, err
	}
	s := &Store{}
	s.data.Store(d)
	return s, nil
}

// Fork returns an independent copy of the store, to try commands on: later changes of one do not
// affect the other. It costs next to nothing. Changes of the fork wake no blocking query of the store,
// and the fork supports no blocking queries.
func (s *Store) Fork() *Store {
	fork := &Store{}
	fork.data.Store(&data{db: s.data.Load().db.Snapshot(), abandoned: make(chan struct{})})
	return fork
}

// Apply applies one command of the log. Indexes grow from call to call. The command may be any
// bytes: if it cannot be applied, the result has the error, and only the index of the last command
// changes.
func (s *Store) Apply(index uint64, command []byte) Result {
	s.write.Lock()
	defer s.write.Unlock()

	res := Result{Index: index}
	d := s.data.Load()
	c, err := decode(command)
	t := &txn{Txn: d.db.Txn(true), index: index}
	if err == nil {
		err = c.apply(t)
		if t.failure != nil { // A bug: the schema rejected a row.
			err = reject(CodeInternal, "", "%v", t.failure)
		}
	}
	if err != nil {
		t.Abort()
		t = &txn{Txn: d.db.Txn(true), index: index}
		res.Err = err
	}
	res.Changed = t.finish()
	if t.failure != nil {
		t.Abort()
		return Result{Index: index, Err: reject(CodeInternal, "", "%v", t.failure)}
	}
	t.Commit()
	return res
}

// txn is a transaction. It keeps its first failure, so that commands need not check for one after
// each step: the store then aborts the transaction.
type txn struct {
	*memdb.Txn
	index   uint64
	touched [len(tables)]bool
	failure error
}

func (t *txn) fail(err error) {
	if t.failure == nil {
		t.failure = err
	}
}

func (t *txn) touch(table Table) {
	for i := range tables {
		if tables[i].name == table {
			t.touched[i] = true
		}
	}
}

// changed reports whether any table was touched.
func (t *txn) changed() bool { return slices.Contains(t.touched[:], true) }

// put inserts or replaces a row, which must not be changed afterwards.
func (t *txn) put(table Table, row any) {
	if err := t.Insert(string(table), row); err != nil {
		t.fail(fmt.Errorf("insert into %s: %w", table, err))
	}
	t.touch(table)
}

// remove deletes a row.
func (t *txn) remove(table Table, row any) {
	if err := t.Delete(string(table), row); err != nil {
		t.fail(fmt.Errorf("delete from %s: %w", table, err))
	}
	t.touch(table)
}

// finish writes the indexes and reports whether any table was touched.
func (t *txn) finish() bool {
	for i, touched := range t.touched {
		if touched {
			t.setIndex(string(tables[i].name), t.index)
		}
	}
	t.setIndex(appliedKey, t.index)
	return t.changed()
}

func (t *txn) setIndex(key string, value uint64) {
	if err := t.Insert(string(tableIndex), &indexRow{Key: key, Value: value}); err != nil {
		t.fail(fmt.Errorf("insert into %s: %w", tableIndex, err))
	}
}

// first returns the first row of an index, nil if there is none.
func first[T any](t *memdb.Txn, table Table, index string, args ...any) *T {
	raw, err := t.First(string(table), index, args...)
	if err != nil {
		panic(err) // The tables, indexes and types of arguments are constants of this package.
	}
	row, _ := raw.(*T)
	return row
}

// each returns the rows of an index in its order, and a channel that is closed when
// they change.
func each[T any](t *memdb.Txn, table Table, index string, args ...any) ([]*T, <-chan struct{}) {
	it, err := t.Get(string(table), index, args...)
	if err != nil {
		panic(err) // As above.
	}
	var rows []*T
	for raw := it.Next(); raw != nil; raw = it.Next() {
		if row, ok := raw.(*T); ok {
			rows = append(rows, row)
		}
	}
	return rows, it.WatchCh()
}
