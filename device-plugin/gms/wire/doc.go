// Package wire is the protocol of the GPU memory service: frames, MessagePack
// messages and descriptors over a Unix stream socket (shared/reference:
// gms-wire-protocol, the v0 wire of NVIDIA Dynamo's GPU Memory Service).
//
// A frame is a 4-byte big-endian length and that many bytes of MessagePack: one
// map, whose key "type" names the message. At most one descriptor rides on a
// frame, attached to its first byte.
//
// What the package promises:
//   - Strings travel as str, bytes as bin, lists and byte values are empty and
//     never nil, unknown keys are ignored, and a field of another type than the
//     protocol's is refused by its name: nothing is converted.
//   - Every read collects ancillary data. Descriptors that nobody asked for are
//     closed, and a control message that the kernel cut short is an error.
//   - What a length claims is believed only as far as bytes arrive.
package wire
