// Package server is the controller's HTTP API: JSON under /v1/ with the habits of Nomad
// and Consul. Package api has its types and a client.
//
// It guarantees: nothing is answered without a token whose role allows it, but for the
// few routes that say so; a read sees every write that was acknowledged before it
// began, on whichever server it is made, unless it is ?stale; a write is passed on to
// the leader at most once at a time and never a second time where it may have
// happened; a blocking query is answered when what it asks for may have changed, when
// its time is over, or when the state was replaced, and its index goes back only then;
// and bodies take no more memory than their limit.
//
// Which route does what, who may call it and where it is answered is one table, in
// routes.go. openapi.json is generated from it and the types of package api: after a change
// of either, `make reference` writes it.
package server
