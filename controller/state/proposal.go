package state

// Proposal is a wish for a change, as people and autoscalers have it. The rules that say whether
// and how it is carried out run on the leader, on one view, and not when the log is applied: so
// they may change from version to version without making states differ.
type Proposal interface {
	// Resolve returns the command that carries the proposal out on the state of the view, or why
	// the proposal is rejected. The command is rejected with CodeConflict where what it was made
	// from has changed.
	Resolve(*View) (Command, *Error)
}
