// Package shimclient is the HTTP client of the shims around engines (lockd/engine). It reads the
// state of an engine, drains it, puts it to sleep and wakes it.
//
// It makes no decisions. All operations are idempotent. Every error shows whether the shim could
// not be reached, rejected the operation in its engine's state, did not drain in time, or failed.
package shimclient
