// Package load holds what the gateways report of their requests, in the memory of the
// leading controller.
//
// Nothing here is ever written to Raft: a new leader begins with nothing and hears
// from every live gateway within one time to live. It guarantees that a report counts
// for that long and no longer, and that a replica is called drained only when every
// gateway that lives has let go of it; never because too little was heard yet.
package load
