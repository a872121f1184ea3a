package state

// Proposal is a requested change, of an operator or an autoscaler. The rules for whether and how it is
// executed run on the leader, on one view, and not when the log is applied: so they may change
// from version to version without making states differ.
type Proposal interface {
	// Resolve returns the command that executes the proposal on the state of the view, or why the
	// proposal is rejected. The state rejects the command with CodeConflict if what it was made from
	// has changed since.
	Resolve(*View) (Command, *Error)
}
