// Package raft keeps the controller's state in step on 1, 3 or 5 servers, with
// hashicorp/raft and raft-boltdb.
//
// It guarantees: a command whose Apply returned without error survives any crash of
// a minority of servers, kill -9 included; a Read that is not stale sees every such
// command; a leader that was cut off can do neither; and servers that start together
// for the first time form one cluster or none.
//
// All servers' traffic runs over one TCP port: Raft's own, and the few questions of
// peering.go. With TLS both sides show a certificate of the one CA; without it the
// port must be out of strangers' reach, as Nomad's and Consul's server ports must.
package raft
