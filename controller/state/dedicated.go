package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
)

// SetDedicated replaces the dedicated set. While a model is in the set, it has at least the number
// of replicas that the set gives it; see Model.Target. Its scale is unchanged. A model whose
// management is disabled is dedicated as well, but keeps the replicas that run.
//
// It is rejected for a model that does not exist or is stopped, and for a number below 1
// or above the model's maximum.
type SetDedicated struct {
	// Models has how many replicas each should have at least. Empty: nothing is
	// dedicated by the set.
	Models map[string]int
	// Window is as of Dedicated.
	Window string `json:",omitempty"`
	// Time is when it was set; in a plan, zero is the plan's.
	Time time.Time
}

// Type implements Command.
func (*SetDedicated) Type() Type { return TypeSetDedicated }

func (c *SetDedicated) apply(t *txn) *Error {
	errs := []error{checkTime("time", &c.Time)}
	if c.Window != "" {
		errs = append(errs, checkText("window", c.Window, maxName))
	}
	names := sortedKeys(c.Models)
	models := make(map[string]*Model, len(names))
	for _, name := range names {
		m := first[Model](t.Txn, TableModels, byID, name)
		if m == nil {
			return notFound(name, "model %q does not exist: only existing models can be dedicated", name)
		}
		models[name] = m
		if n := c.Models[name]; n < 1 || n > m.Max {
			errs = append(errs, fmt.Errorf("model %q: dedicated replicas is %d: must be 1 to %d, the model's max", name, n, m.Max))
		}
	}
	if err := invalid("dedicated set", errs...); err != nil {
		return err
	}
	for _, name := range names {
		if models[name].Stopped {
			return conflict(name, "model %q is stopped: start it before dedicating it", name)
		}
	}
	old := dedicatedSet(t.Txn)
	if old != nil && old.Window == c.Window && maps.Equal(old.Models, c.Models) {
		return nil
	}
	d := &Dedicated{Window: c.Window, Since: c.Time, ModifyIndex: t.index}
	if len(c.Models) > 0 {
		d.Models = maps.Clone(c.Models)
	}
	if old != nil {
		for _, name := range sortedKeys(old.Models) {
			if c.Models[name] == 0 {
				d.Released = append(d.Released, name)
			}
		}
	}
	t.put(TableDedicated, d)
	return nil
}

// undedicate takes a model that is deleted out of the dedicated set.
func (t *txn) undedicate(model string) {
	old := dedicatedSet(t.Txn)
	if old == nil || old.Models[model] == 0 && !slices.Contains(old.Released, model) {
		return
	}
	d := *old
	d.Released = slices.DeleteFunc(slices.Clone(old.Released), func(name string) bool { return name == model })
	d.Models = maps.Clone(old.Models)
	delete(d.Models, model)
	if len(d.Models) == 0 {
		d.Models = nil
	}
	d.ModifyIndex = t.index
	t.put(TableDedicated, &d)
}

// key is onlyRow, and empty for a row that was never set.
func (d *Dedicated) key() string {
	if d.ModifyIndex == 0 {
		return ""
	}
	return onlyRow
}

func dedicatedSet(t *memdb.Txn) *Dedicated {
	return first[Dedicated](t, TableDedicated, byID, onlyRow)
}

// isDedicated reports whether m is dedicated, by its file or by the set.
func (t *txn) isDedicated(m *Model) bool { return m != nil && dedicatedSet(t.Txn).has(m) }

// has reports whether m is dedicated where d, which may be nil, is the set.
func (d *Dedicated) has(m *Model) bool {
	return m.Dedicated || d != nil && d.Models[m.Name] > 0
}

// number returns how many replicas the set, which may be nil, wants of a model.
func (d *Dedicated) number(model string) int {
	if d == nil {
		return 0
	}
	return d.Models[model]
}

// maxSchedule is the longest schedule file, in bytes.
const maxSchedule = 1 << 20

// SetSchedule replaces the calendar of the dedicated set. The set itself stays until
// the calendar is looked at.
type SetSchedule struct {
	// File is its text; it is not parsed here. Empty takes the calendar away.
	File string
}

// Type implements Command.
func (*SetSchedule) Type() Type { return TypeSetSchedule }

func (c *SetSchedule) check() *Error {
	if len(c.File) > maxSchedule {
		return badRequest("", "schedule is %d bytes: must be at most %d bytes", len(c.File), maxSchedule)
	}
	return nil
}

func (c *SetSchedule) apply(t *txn) *Error {
	old := first[Schedule](t.Txn, TableSchedule, byID, onlyRow)
	switch {
	case c.File == "" && old != nil:
		t.remove(TableSchedule, old)
	case c.File != "" && (old == nil || old.File != c.File):
		t.put(TableSchedule, &Schedule{File: c.File, ModifyIndex: t.index})
	}
	return nil
}

// Dedicated returns the dedicated set as it was set last, which may be empty; nil where
// none was ever set.
func (v *View) Dedicated(ws memdb.WatchSet) *Dedicated {
	return queryOne[Dedicated](v, ws, TableDedicated, byID, onlyRow)
}

// IsDedicated reports whether a model, which may be nil, is dedicated: by its file or by
// the set.
func (v *View) IsDedicated(ws memdb.WatchSet, m *Model) bool {
	d := v.Dedicated(ws)
	return m != nil && d.has(m)
}

// Schedule returns the calendar of the dedicated set, nil if there is none.
func (v *View) Schedule(ws memdb.WatchSet) *Schedule {
	return queryOne[Schedule](v, ws, TableSchedule, byID, onlyRow)
}
