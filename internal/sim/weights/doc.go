// Package weights reads and writes the simulated engine's weights: safetensors
// files (https://github.com/huggingface/safetensors, "Format") whose tensors
// are covered by digests.
//
// It guarantees that a file that Open accepts is laid out as the specification
// says (length, JSON header, tensors that cover the data without gap or
// overlap, nothing behind them), that Create leaves either no file or a whole
// one under the given name, and that neither needs memory in proportion to the
// file.
//
// Each digest is the XXH64 of one tensor's bytes. XXH64 is not meant against
// forgery: it tells whether a copy is complete and unharmed, at more than
// 10 GB/s, so that checking at every wake costs next to nothing.
package weights
