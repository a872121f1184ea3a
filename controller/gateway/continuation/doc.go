// Package continuation lets a stream that an engine broke off go on at another engine,
// so that the client's stream has no seam.
//
// A Recorder reads the events of a chat or text completion as they pass to the client
// and keeps the text. After a break Request returns what to ask the next engine:
// the same request with the text so far behind its prompt. Splice turns the events of
// that engine into the rest of the client's stream. Both can be done again when the next
// engine breaks off as well.
//
// What it promises of an engine that goes on from a text as it would have gone on from
// its own (greedy decoding on real engines; always in the simulator): the client gets the
// text of an uninterrupted answer, no token lost and none twice, one role, one id, one
// finish reason, one usage that counts the whole answer, one [DONE]. With sampling the
// text goes on as the model would have it, which is another draw.
//
// # Counting
//
// max_tokens and min_tokens are lowered by the tokens of the text so far. These are
// counted by the usage of the events where the client asked for it
// (continuous_usage_stats), else one per event, as vLLM sends them. An engine that puts
// several tokens into one event (speculative decoding, a slow reader) is then counted
// short, and the answer may become longer than max_tokens.
//
// # Stop strings
//
// While the end of an answer could still become a stop string, engines hold it back. So
// the text so far never has a part of one: the next engine makes what was held back
// once more and finds the stop string as a whole, also where it straddles the break.
// Events without text behind the last one with text are such tokens; they do not count.
// Engines that hold back all such tokens together (the simulator, llama.cpp, Ollama) are
// counted exactly. vLLM always holds back as many characters as the longest stop
// string has, less one: the tokens of these are counted as said, so that a continued
// answer which ends by max_tokens may be shorter by them.
//
// # What cannot go on
//
// Requests whose state is more than text are refused by NewRecorder with ErrNot: several answers
// (n, best_of, several prompts), prompts of token ids, tools, grammars (response_format and
// the like), log probabilities, echo, stop strings that stay in the text. An answer that
// turns out to have reasoning or tool calls cannot go on either: chat templates drop them
// from an assistant's message. Presence and frequency penalties count the answer's tokens
// alone, and begin anew at the break.
//
// Chat templates must render an assistant's message as the model would have written it;
// that is what continue_final_message expects of them in general.
package continuation
