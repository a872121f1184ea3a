// Package openai reads and writes what travels between clients and engines: the head of a
// request, the events of a stream, the objects of errors, the counts of tokens.
//
// Nothing is decoded that does not have to be. Scan walks the top level of a request's JSON
// object once: strings, where prompts live, are skipped at the speed of a memory scan, so a
// prompt costs about as much as copying it; nested values are skipped by their brackets.
//
// For every body that is a valid JSON object, Scan finds what encoding/json would find in a
// map: of a repeated key the last one counts, as in encoding/json and in Python's json, which
// engines use. It rejects what is not a JSON object, and a key that is "model" but for its
// case, which Go's decoders take for "model" and Python's do not. The reverse does not hold: an
// error inside a nested value or a string (a bad escape, a raw control character) passes, and
// the engine, which decodes the body anyway, reports it.
package openai
