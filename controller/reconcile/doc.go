// Package reconcile is the part of the controller that closes the distance between
// the state and the world: it watches each capacity pool's Nomad, Consul and the state,
// has the planner decide, commits the plan to Raft, and does in Nomad and at the engines'
// shims what the state asks for.
//
// It guarantees: only the leader acts, and right before each write to Nomad and each order
// to a shim it asks a majority whether it still leads; what is done is written with compare and swap, in
// Nomad by the job's index and in the state by the replica's, so that nothing is
// overwritten that somebody else has changed meanwhile; nothing is concluded from a
// Nomad or a Consul that does not answer; a Nomad that does not answer, is slow or
// refuses changes nothing for the others; the GPU memory of a replica that went to sleep
// is not given away before it was seen to be free; a crash between any two steps leaves
// what the next leader can continue; and while nothing changes, nothing is written.
package reconcile
