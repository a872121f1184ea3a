// Package state is the durable state of the controller: what should run, where it was placed, and
// why. It is the deterministic core under Raft: commands in, a new state out, the same on every
// server. It does no I/O, starts no goroutine, logs nothing and reads no clock: the proposer of a
// command sets its time.
//
// It guarantees that no GPU's seats or bytes are allocated twice: the ledger is the sum of the
// replicas, and a command that would over-commit it is rejected.
package state
