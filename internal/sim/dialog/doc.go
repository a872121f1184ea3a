// Package dialog is a conversation that asks the model for an answer, by whichever API
// it came: the chat completions, the responses and the messages.
//
// It guarantees that the same conversation has the same prompt and the same answer in
// each of them. A model that is given tools calls those whose names the last message of
// the user contains, one after the other; it answers in prose where the message names
// none, and after the result of a tool. A tool that the client forces is called. The
// arguments, and an answer whose format is a JSON schema, satisfy their schema.
//
// The package is pure: no network, no goroutines, no logging.
package dialog
