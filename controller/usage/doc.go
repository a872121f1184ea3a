// Package usage counts in the state what gateways report that clients' keys have used.
//
// A gateway reports cumulative counters. The leader keeps them in memory and commits them in batches.
// The state has marks of how much of each gateway's counters it contains, which change in the same
// command as the usage, so that a leader counts what the counters grew by.
//
// It guarantees:
//
//   - Nothing is counted twice: not a report that is repeated, or late, and not what an earlier
//     leader has counted.
//   - What was answered with a term is counted as long as the leader of that term leads. A gateway
//     that gets another term sends all of its counters again. So usage is lost only if both the
//     leader and the gateway are lost before it was committed.
//   - Memory is bounded. Beyond it usage is not taken, and the gateway sends it again.
package usage
