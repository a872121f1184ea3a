// Package cuda shares GPU memory through the CUDA driver's virtual memory
// management. The driver is loaded at run time with purego: there is no cgo and
// no CUDA toolkit, and a machine without the driver gets a clear error
// (ErrNoDriver).
//
// A server makes physical memory with a Backend and never maps it; it needs no
// context, so it takes no memory of the GPU for itself. An engine maps the
// memory with a Space, in the device's primary context.
//
// The driver counts references across processes: memory is free when the last handle, the
// last exported descriptor and the last mapping are gone. What the keeper gave
// back after a crash is a descriptor and nothing else, and it is exported again
// by duplicating it.
//
// A GPU is named by its UUID as NVML prints it, "GPU-" or "MIG-" and five groups
// of hexadecimal digits. With MIG the driver shows a process one instance only,
// the first of CUDA_VISIBLE_DEVICES.
package cuda
