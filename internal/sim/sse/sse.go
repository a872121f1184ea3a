// Package sse writes server-sent events with JSON in them.
package sse

import (
	"bytes"
	"encoding/json"
)

// Append appends an event with a name; an empty name is left out.
func Append(b []byte, name string, data any) []byte {
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	b = append(b, "data: "...)
	b = append(b, JSON(data)...)
	return append(b, "\n\n"...)
}

// JSON is v without escapes that only HTML needs.
func JSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: answers are made of plain values
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
