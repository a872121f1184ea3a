// Package gatewayreport holds the gateways' reports of their requests, in the memory of the
// leading controller, and the orders that gateways get in the responses.
//
// Nothing here is written to Raft. The store belongs to one term of leadership: a new leader
// starts with an empty store, and gets a report from every live gateway within one time to live.
// Orders are lost with the leader.
//
// It guarantees:
//
//   - A report counts for one time to live and no longer.
//   - A replica counts as drained only if every live gateway has released it, never because a
//     report is missing.
//   - An order is repeated to each of its gateways until a report shows that it was carried out,
//     or until it expires.
//   - The shares of gateways are divided among those that are live, see package share. In the
//     first time to live of a term none grows.
package gatewayreport
