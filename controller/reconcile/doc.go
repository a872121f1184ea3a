// Package reconcile is the part of the controller that closes the distance between
// the state and the world: it watches Nomad, Consul and the state, has the planner
// decide, commits the plan to Raft, and does in Nomad what the state asks for
// (DESIGN section 7).
//
// It guarantees: only the leader acts, and right before each write to Nomad it asks a
// majority whether it still leads; what is done is written with compare and swap, in
// Nomad by the job's index and in the state by the replica's, so that nothing is
// overwritten that somebody else has changed meanwhile; nothing is concluded from a
// Nomad or a Consul that does not answer; a crash between any two steps leaves what
// the next leader can continue; and while nothing changes, nothing is written.
package reconcile
