// Package shimclient is the controller's door to the shims around engines (lockd/engine): it
// asks how an engine stands, puts it to sleep and wakes it, over the shim's own HTTP.
//
// It decides nothing. Both operations may be asked for again: what sleeps sleeps, what
// serves serves. Every error says whether the shim was not to be reached, does not allow
// it in its engine's state, has not drained in time, or has failed.
package shimclient
