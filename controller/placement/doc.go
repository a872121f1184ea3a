// Package placement chooses the node, the GPUs and the seats of a replica, and what has
// to be evicted for it.
//
// It is pure: the same nodes, tenants and request give the same choice, whatever the
// order in which the tenants came. What it chooses holds in the state as it is, or as it
// is once the evictions are done: every seat is free and every GPU has the bytes, counted
// as the state counts them. All of a replica's GPUs are on one node and of one device
// group of Nomad's: one GPU model in one NVLink clique.
//
// A Fleet has the nodes and a ledger of what Tenants hold of them: now, and later, once
// what is under way is done. Place finds the place with the least of
//
//	seconds until it serves + cost of what is evicted
//
// so that a WARM replica that has to evict something is weighed against a cold start where
// there is room, and prefers, in this order, a place without evictions, fewer of them, GPUs
// on which a WARM replica slept, GPUs on which every WARM replica could still wake (Tenant.Woken), and the
// best fit: the least memory left on the fullest GPU, then the fewest seats, then the first node by name. Who may be evicted, and at what
// cost, is the caller's to say (Tenant.Ways, Request.MayEvict, EvictionCost). If nothing
// helps, nothing is evicted, and the Refusal has the reason for each node.
//
// Evictions are searched by branch and bound, in one group of GPUs after the other, from
// the one on where a bound says that it may cost least. Within a budget of steps for each
// group this is exact; a group that needs more, as 16 GPUs with 6 tenants each, gets the
// best that was found, from which all is taken back that is not necessary. A group where
// there is a way is never given up. Among places that cost the same with evictions, the best
// fit is looked for in 32 groups only.
//
// An eviction to WARM takes host memory, of which each node has a share for that
// (Config.WarmShare): where there is none, room for it is made by sending WARM ones COLD,
// or it goes COLD itself, whatever costs less.
//
// Together finds places for several replicas, where one for one is not the best for all: what is
// evicted can serve two of them, and one can take the only place of another.
//
// Indexes keep a decision cheap on many nodes. They are made when a shape of request is
// first seen, and then follow what changes: which groups fit, by free memory, and what room
// costs in each group at least, which searches make more exact. A place is then found in
// some ten microseconds on 10,000 nodes of 8 GPUs; one that needs evictions in a
// millisecond, and more where MayEvict refuses much of what has a way: leave Ways empty
// for what is never a victim.
package placement
