// Package anthropic speaks Anthropic's Messages API as vLLM's server does: it reads
// requests, writes answers, the events of streams, and errors.
//
// It guarantees the names and the order of Anthropic's events, and that a body which
// passes Decode has sane values. The tokens of a prompt are input_tokens, without those
// that the cache had, plus cache_read_input_tokens.
package anthropic
