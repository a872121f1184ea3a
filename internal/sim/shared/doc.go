// Package shared holds a simulated engine's weights in the GPU memory service, as
// engines patched for it do: the primary of a failover pair writes them once, its
// shadow maps the same memory, and neither reads a disk to wake.
//
// With several GPUs each holds every n-th tensor. An engine connects to all of them
// before it loads anything, as vLLM's workers do. Only a primary may ever be
// granted a writer's lock, so two engines cannot wait for each other, and what a
// primary had committed before it died is not loaded again.
//
// It guarantees that every byte is checked against its digest before it is used:
// when it is written, when it is imported, and at every wake unless Config.Verify
// says otherwise.
package shared
