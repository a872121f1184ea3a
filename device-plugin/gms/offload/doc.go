// Package offload takes what a failover pair has committed to the GPU memory service
// off the GPUs, and brings it back: a pair that shares its weights holds no GPU
// memory while it is parked, and wakes without a disk.
//
//	held, err := o.Look(ctx)             // what the services have
//	saved, err := o.Save(ctx)     // the bytes, in this process's memory
//	all, err := o.Vacate(ctx)     // the services let go of them
//	err = o.Restore(ctx, saved)   // the same layout again
//
// What it promises:
//   - Restore commits a layout of the same structure, so that its hash is the same and
//     engines that slept through all of it map it again (Client.Remap).
//   - Every byte is summed when it is saved and again when it is back on the GPU,
//     before the commit. A layout that differs is never committed.
//   - Save changes nothing. Vacate takes a layout away only if no other engine uses it,
//     awake or asleep (Hold), and waits for none. Restore leaves alone what is committed. A crash in the middle leaves an uncommitted layout,
//     which the service drops.
//
// The copy is lost with this process. Whoever loads the weights from their file again
// has lost time and nothing else.
package offload
