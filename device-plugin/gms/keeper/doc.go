// Package keeper holds descriptors of GPU memory for a server that may crash.
//
// Memory lives as long as some process has a descriptor of it. The keeper is
// that process: small, and without any work of its own to crash on. It stores
// records under names, each an opaque blob and descriptors. What is promised:
//   - Save replaces a record as a whole or not at all. Until the last byte and
//     the last descriptor are there, the old record is what Load returns. A
//     client that dies in the middle leaves nothing behind.
//   - What a client has called off, by ending its connection, is not done later:
//     the last call decides.
//   - Descriptors that nobody asked for are closed, and so is the connection
//     that sent them.
//   - Memory and descriptors are bounded (Limits). What is over is refused, and
//     what is kept stays.
//   - Only processes of the keeper's own user are served, and a client speaks to
//     no keeper of another user.
//
// # When the keeper dies
//
// Its records are gone then, and with them the descriptors; memory that the
// server or an engine still has lives on. A Client keeps a connection open for
// nothing but to learn of that. When a keeper is back, it has another instance
// number, and Client.Lost tells: the server saves everything again from what it
// holds. Only when keeper and server die together is anything lost. So run them
// as two tasks (or two units), each restarted on its own.
//
// # Protocol
//
// SOCK_SEQPACKET on a Unix socket, so that a packet arrives whole or not at all.
// The keeper opens with its version and instance. After that the client asks
// and the keeper answers, one packet each. A save or load moves in packets of
// at most 60 KiB and 250 descriptors (the kernel's bound is 253), each of which
// waits for its answer, so that few descriptors are in flight at a time: the
// kernel bounds them by user.
package keeper
