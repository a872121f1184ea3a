package state

import (
	"encoding/json"
	"fmt"

	"github.com/hashicorp/go-memdb"

	"remuda/internal/replica"
)

// Scaler is the memory of a program that scales models, as the windows of an HPA. The state
// keeps it as it is, and nothing here depends on it.
type Scaler struct {
	Name string
	// State is its JSON.
	State string

	CreateIndex, ModifyIndex uint64
}

// Bounds of scalers. MaxScalerState is in bytes, of one.
const (
	MaxScalerState = 64 << 10
	MaxScalers     = 10_000
)

// SetScaler keeps a scaler's memory, or forgets it. A caller that compares takes a new
// ModifyIndex even where State is as before: of several who compare with the same one, only
// one is taken.
type SetScaler struct {
	// Name is as a model's, see replica.CheckModel.
	Name string
	// State is as in Scaler: any JSON but null.
	State string `json:",omitempty"`
	// Delete forgets it; one that does not exist is refused as not found.
	Delete bool `json:",omitempty"`
	// ModifyIndex is the scaler's as the caller knows it, 0: it does not exist. Nil:
	// whatever it is; the same State as before changes nothing then.
	ModifyIndex *uint64 `json:",omitempty"`
}

// Type implements Command.
func (*SetScaler) Type() Type { return TypeSetScaler }

func (c *SetScaler) apply(t *txn) *Error {
	if err := faults(c.Name, c.faults()...); err != nil {
		return err
	}
	old := first[Scaler](t.Txn, TableScalers, byID, c.Name)
	var have uint64
	if old != nil {
		have = old.ModifyIndex
	}
	if c.ModifyIndex != nil {
		if err := compare("scaler", c.Name, have, *c.ModifyIndex); err != nil {
			return err
		}
	}
	if c.Delete {
		if old == nil {
			return notFound(c.Name, "scaler %q does not exist", c.Name)
		}
		t.remove(TableScalers, old)
		return nil
	}
	s := &Scaler{Name: c.Name, State: c.State, CreateIndex: t.index, ModifyIndex: t.index}
	switch {
	case old == nil:
		if all, _ := each[Scaler](t.Txn, TableScalers, byID); len(all) >= MaxScalers {
			return badRequest(c.Name, "scaler %q: the limit of %d scalers is reached: delete unused ones", c.Name, len(all))
		}
	case c.ModifyIndex == nil && old.State == s.State:
		return nil
	default:
		s.CreateIndex = old.CreateIndex
	}
	t.put(TableScalers, s)
	return nil
}

func (c *SetScaler) faults() []error {
	var errs []error
	if err := replica.CheckModel(c.Name); err != nil {
		errs = append(errs, fmt.Errorf("scaler name %w", err))
	}
	if c.Delete {
		return errs
	}
	switch {
	case len(c.State) > MaxScalerState:
		errs = append(errs, fmt.Errorf("state of scaler %q is %d bytes: must be at most %d bytes", c.Name, len(c.State), MaxScalerState))
	case c.State == "null" || !json.Valid([]byte(c.State)):
		errs = append(errs, fmt.Errorf("state of scaler %q is null or not valid JSON: must be a JSON value", c.Name))
	}
	return errs
}

// Scalers returns all scalers.
func (v *View) Scalers(ws memdb.WatchSet) []*Scaler {
	return query[Scaler](v, ws, TableScalers, byID)
}

// Scaler returns a scaler, nil where there is none of that name.
func (v *View) Scaler(ws memdb.WatchSet, name string) *Scaler {
	return queryOne[Scaler](v, ws, TableScalers, byID, name)
}
