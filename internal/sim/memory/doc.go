// Package memory keeps the simulated engine's weights where a real engine's
// would be: on the "device" while awake, in host memory while asleep at level
// 1, nowhere while asleep at level 2.
//
// It guarantees that the memory is real and that it really goes away. Device
// memory is a memfd mapping for each GPU, so it shows as RssShmem in /proc/PID/status
// and as "remuda-sim-device:" with the GPU in /proc/PID/maps; host memory is an anonymous mapping
// and shows as RssAnon. Neither is on the Go heap. Whatever comes back to the
// device is compared with the digests of the first load, and a difference is an
// error that wraps weights.ErrDigest.
package memory
