// Package planner decides what the controller changes. From the state and an observation it
// computes one plan to commit, and the actions that bring Nomad to the state.
//
// It is pure: plain data in, plain data out, no clock, no I/O, and the same result for the same
// input. It guarantees:
//
//   - The state does not reject a plan that was made from the current view.
//   - Nothing is concluded from what is unknown.
//   - No rollout, no node drain and no GPU out of use stops a serving replica before its
//     replacement serves.
//   - Once the world matches the state, Plan and Actions return nothing.
//   - A new leader computes what the old one would have.
//
// A replica that serves and fails its requests is replaced: one of a model at a time, a few of a
// fleet at a time, and more frequently only if the replacements before it helped.
//
// A replica that is WARM, or on its way to WARM, does not count against its model's target. Nothing
// is evicted unless a placement needs its place. An eviction lowers the target of the evicted
// model, so that the replica does not come back by itself; two models that compete for a place take
// turns, once in Config.ThrashWindow. The memory of a GPU is given to another replica only once an
// Outcome reports that it came back. An external pool that is unreachable takes nothing, loses
// nothing, and changes nothing elsewhere.
package planner
