// Package gpucheck proves on a machine with a real GPU what tests elsewhere prove
// on fakes: that the device plugin names the card as its driver does, that memory
// is shared, kept and given back as the GPU memory service promises, and how fast
// a failover is beside a cold load of the same weights.
//
// Everything runs as it would on a node: `remuda gms`, its keeper, lockd, shims and
// simulated engines are processes of their own that meet over sockets, and are
// ended with SIGKILL where the question is what is left then. The clients of checks
// 2, 3 and 5 are this program again (Client).
//
// It guarantees that each step ends within its own time and the whole run within
// its budget, and that no process, no shared memory and no file but its results
// are left behind. A step that fails ends its check; the other checks still run.
package gpucheck
