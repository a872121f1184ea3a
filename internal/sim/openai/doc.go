// Package openai speaks the OpenAI API as vLLM's server does: it reads and
// checks request bodies and writes answers, stream events and errors.
//
// It guarantees that a body that passes Decode has sane values and that
// everything else is an *Error with vLLM's status, type and parameter name.
// Fields that the simulator does not know are ignored, as vLLM ignores them;
// sampling parameters are checked but change nothing (the model is greedy).
//
// The package is pure: no network, no goroutines, no logging.
package openai
