// Package batch decides, step by step, which sequences an engine works on:
// continuous batching with chunked prefill over a paged KV cache, as vLLM's V1
// scheduler does it (vllm/v1/core/sched/scheduler.py).
//
// It guarantees that
//   - waiting sequences are admitted first come, first served, and that no
//     running sequence is younger than a waiting one;
//   - when blocks run out the youngest running sequence is preempted: it gives
//     all its blocks back, returns to the front of the queue and is computed
//     again later, without losing what it generated;
//   - every sequence that Add accepted gets its tokens eventually, because none
//     is accepted that would not fit into the empty cache;
//   - a block belongs to at most one sequence, and all blocks are free when no
//     sequence is left.
//
// The package is pure: no I/O, no clock, no goroutines, no logging, and it is
// not safe for concurrent use.
package batch
