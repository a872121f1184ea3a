// Package reconcile is the controller's reconcile loop. It watches the state, Consul and the
// Nomad of each capacity pool, has the planner decide, commits the plan to Raft, and executes
// it in Nomad and at the engines' shims.
//
// It guarantees:
//
//   - Only the leader acts. It asks a majority whether it still leads right before each write to
//     Nomad and each command to a shim.
//   - Writes use compare-and-swap, in Nomad by the job's index and in the state by the replica's,
//     so that a concurrent change is never overwritten.
//   - It draws no conclusion from a Nomad or a Consul that does not answer.
//   - A Nomad that hangs, is slow or rejects writes does not affect the other pools.
//   - The GPU memory of a sleeping replica is not reused before a sample shows that it is free.
//   - After a crash between any two steps the next leader can continue.
//   - While nothing changes, nothing is written.
package reconcile
