// Package client is an engine's side of the GPU memory service:
// sessions, memory that is mapped from it, and sleep and wake.
//
// A Session is one connection to a server and speaks the protocol. A Client has
// at most one session at a time and the mappings, which outlive sessions. The
// first engine of a group writes:
//
//	granted, err := c.Connect(ctx, wire.Auto, nil)  // wire.RW: write
//	a, err := c.Session().Allocate(ctx, size, "weights")
//	m, err := c.Map(ctx, a.ID)                      // then fill it
//	err = c.Session().PutMetadata(ctx, "tensor", a.ID, 0, value)
//	hash, err := c.Commit(ctx)                      // a reader from here on
//
// and the others, as the first one after a restart, are granted wire.RO and map
// what is there. All sleep and wake alike:
//
//	err := c.Unmap(ctx)  // no memory and no connection is held; addresses are
//	err = c.Remap(ctx)   // the same bytes at the same addresses, or an error
//
// # Wake
//
// Remap needs a context with a deadline and never waits for longer. Where it
// succeeds, every mapping is back where it was, and the layout has the hash that
// it had. Any error is fatal to the engine: what its CUDA graphs point to is gone. The
// errors to tell apart are ErrRestarted (the server has forgotten the layout),
// ErrStaleLayout (another layout was committed), ErrTimeout (a writer has the
// lock, or nobody committed) and ErrNoDeadline. A restart that the keeper
// survived is no error: the server has another nonce then and the same layout.
//
// # Contexts
//
// Every call returns soon after its context ends. A request that was under way
// ends its session, as the answer can no longer be told from the next one's. A
// call of the driver cannot be broken off: it is left behind, and the Client is
// of no more use (ErrBroken).
package client
