package dialect

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Parameters are settings of a model that Load makes from ModelFile, as
// PARAMETER lines of an Ollama Modelfile set them: numbers, booleans and
// strings by name. Repeating a name, as "stop" may be, makes a list.
//
// num_thread is worth setting where engines share processors with other work:
// llama.cpp's threads spin while they wait for each other. With the tiny model
// on two cores, 500 tokens took 1.8 s with two threads and 0.10 s with one;
// beside three busy processes, over 15 s with two and 0.14 s with one.
//
// Parameters is a flag.Value that takes one NAME=VALUE at a time.
type Parameters map[string]any

// Set adds one parameter, given as NAME=VALUE.
func (p *Parameters) Set(s string) error {
	name, text, ok := strings.Cut(s, "=")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return fmt.Errorf("model parameter %q: must be NAME=VALUE, such as num_thread=1", s)
	}
	var value any = text
	var parsed any
	if json.Unmarshal([]byte(text), &parsed) == nil {
		switch parsed.(type) {
		case float64, bool, string: // a string in quotes keeps a number from being one
			value = parsed
		}
	}
	if *p == nil {
		*p = Parameters{}
	}
	switch before := (*p)[name].(type) {
	case nil:
		(*p)[name] = value
	case []any:
		(*p)[name] = append(before, value)
	default:
		(*p)[name] = []any{before, value}
	}
	return nil
}

// String lists the parameters by name.
func (p *Parameters) String() string {
	if p == nil {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(*p)) {
		parts = append(parts, fmt.Sprintf("%s=%v", name, (*p)[name]))
	}
	return strings.Join(parts, ",")
}
