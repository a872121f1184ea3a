// Package placement chooses the node, the GPUs and the seats of a new replica.
//
// It is pure: the same nodes, ledger and request give the same choice. What it
// chooses holds in the state as it is: every seat is free and every GPU has the bytes,
// counted as the state counts them.
package placement
