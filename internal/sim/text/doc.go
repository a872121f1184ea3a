// Package text is the simulated engine's language: a tokenizer, a chat
// template and a deterministic "greedy" language model.
//
// It guarantees that the next token is a pure function of the model's name
// and of the whole text so far (prompt and answer, byte by byte, wherever the
// token borders are). So an answer that one engine began can be taken up by
// another from the prompt plus the text received so far, and goes on exactly
// as the first engine would have. That holds under stop strings and limits too
// (max_tokens and min_tokens less the tokens of that text), because what is shown
// never ends inside a token nor with the beginning of a stop string. Sampling
// parameters (temperature, top_p, seed) do not matter; only the choice index of
// `n` does.
//
// The package is pure: no I/O, no goroutines, no logging. A test that wants to
// know what an engine must answer asks Chat, Complete or Generate.
package text
