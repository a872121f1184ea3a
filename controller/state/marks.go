package state

import (
	"fmt"
	"strings"

	"github.com/hashicorp/go-memdb"
)

// maxMark is the longest key of a mark, in bytes: a word and two names.
const maxMark = 3 * maxName

// apply writes the mark; one with no time is taken away.
func (m Mark) apply(t *txn) *Error {
	errs := []error{checkTime("time", &m.Time)}
	switch {
	case m.Key == "":
		errs = append(errs, fmt.Errorf("mark: key is empty"))
	case len(m.Key) > maxMark:
		errs = append(errs, fmt.Errorf("mark %q…: key is %d bytes: must be at most %d bytes", m.Key[:32], len(m.Key), maxMark))
	case strings.ContainsRune(m.Key, 0):
		errs = append(errs, fmt.Errorf("mark %q: key contains a NUL byte", m.Key))
	}
	if err := faults(m.Key, errs...); err != nil {
		return err
	}
	old := first[Mark](t.Txn, TableMarks, byID, m.Key)
	switch {
	case m.Time.IsZero() && old != nil:
		t.remove(TableMarks, old)
	case !m.Time.IsZero() && (old == nil || !old.Time.Equal(m.Time)):
		t.put(TableMarks, &m)
	}
	return nil
}

// Marks returns all marks, in the order of their keys.
func (v *View) Marks(ws memdb.WatchSet) []*Mark { return query[Mark](v, ws, TableMarks, byID) }
