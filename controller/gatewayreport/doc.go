// Package gatewayreport holds what the gateways report of their requests, in the memory of the
// leading controller, and what they are ordered to do in the answers.
//
// Nothing here is ever written to Raft. What the store has is of one term of leadership: a
// new leader begins with nothing and hears from every live gateway within one time to live;
// orders are lost with the leader. It
// guarantees that a report counts for that long and no longer, that a replica is called
// drained only when every gateway that lives has let go of it, never because too little
// was heard yet, and that an order goes to every gateway that it is for, again and again,
// until a report shows that it was carried out or its time is over.
package gatewayreport
