// Package raft replicates the controller's state on 1, 3 or 5 servers, with
// hashicorp/raft and raft-boltdb.
//
// It guarantees: a command whose Apply returned without error survives any crash of
// a minority of servers, kill -9 included; a Read that is not stale sees every such
// command; a leader that was cut off can do neither; and servers that start together
// for the first time form one cluster or none.
//
// All servers' traffic runs over one TCP port: Raft's own and the RPCs of rpc.go. A
// connection is served only after both sides have shown a certificate of the same CA
// that bears the servers' name, or have proven that they know the same secret
// (auth.go). Only a server on loopback may do without both.
//
// A server that joins is a non-voter: it gets the log and does not count for the
// majority. The leader makes it a voter once it has caught up and was stable for a
// while (autopilot.go).
package raft
