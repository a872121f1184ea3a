package state

// TypeAnnotate is the type of Annotate.
const TypeAnnotate Type = 200

// Annotate sets the note of a switch that is set.
type Annotate struct{ Name, Note string }

func init() { commands[TypeAnnotate] = func() Command { return new(Annotate) } }

// Type implements Command.
func (*Annotate) Type() Type { return TypeAnnotate }

// Level is that of this version.
func (*Annotate) Level() int { return FeatureLevel }

func (c *Annotate) apply(t *txn) *Error {
	old := first[Switch](t.Txn, TableSwitches, byID, c.Name)
	if old == nil {
		return notFound(c.Name, "switch %q is not set", c.Name)
	}
	s := *old
	s.Note, s.ModifyIndex = c.Note, t.index
	t.put(TableSwitches, &s)
	return nil
}

// Level is that of this version if the command has the new field.
func (c *SetSwitch) Level() int {
	if c.Note != "" {
		return FeatureLevel
	}
	return 1
}
