// Package conformance has only tests: a reading of the GMS wire protocol page
// that shares no code with the server. The tests start the real `remuda gms` (and
// its keeper), talk to its Unix sockets in raw frames, and play engines with
// processes of their own that they stop and kill.
//
// REMUDA_BIN names a directory with a built remuda; without it the tests build one.
package conformance
