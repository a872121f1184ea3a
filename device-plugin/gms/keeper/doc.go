// Package keeper keeps GPU memory while the service that owns it is started again.
//
// Memory lives as long as a process has a descriptor of it. The Keeper is that
// process: the parent of the GPU memory service. It holds a record for each
// committed layout (a blob that it does not read, and one descriptor for each
// allocation) and starts the service again whenever it ends. What it promises:
//   - A record that was saved before the service ended, however it ended, is given
//     to the next service. Save replaces a record as a whole or not at all; a
//     service that dies in the middle of a save leaves the old record.
//   - A service that hangs is killed and started again (Config.Hang).
//   - The service ends with the keeper, also with one that is killed.
//   - Upgrade replaces both programs by the ones at Config.Program and loses no
//     record. A program that cannot serve is not taken over.
//   - The number of descriptors is bounded by the process's limit of open files. A
//     record that does not fit is refused, and what is kept stays.
//
// # Protocol
//
// Keeper and service share a SOCK_SEQPACKET socket pair, made before the service
// starts: there is no path, no other peer and no second connection. First the keeper
// sends its records, then it answers the service, one answer for each request:
//
//	keeper: begin name, descriptors…, end, …, done
//	service: begin name, descriptors…, end      the record is replaced at the end
//	service: drop name
//
// The first descriptor of a record is a memfd with the blob. Descriptors travel in
// packets of at most 250, each of which is answered before the next one is sent: the
// kernel bounds the descriptors that are on their way.
package keeper
