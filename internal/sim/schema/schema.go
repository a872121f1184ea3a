package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// maxDepth is the deepest value that is made.
	maxDepth = 32
	// optionalDepth is how deep a value may be and still have optional properties.
	optionalDepth = 4
	// maxItems bounds an array, maxText a string, and maxValues all values together.
	maxItems, maxText, maxValues = 1024, 4096, 20000
)

// Source chooses among the values that a schema allows.
type Source interface {
	// Draw is a number below n for a place in the value.
	Draw(place string, n int) int
	// Words are n words of text.
	Words(n int) string
}

// Value is a JSON value that satisfies the schema.
func Value(schema json.RawMessage, from Source) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return "", fmt.Errorf("schema is not valid JSON: %w", err)
	}
	m := maker{root: root, from: from}
	v, err := m.value(root, "#", 0)
	if err != nil {
		return "", err
	}
	return encode(v), nil
}

func encode(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: the value is made of plain JSON values
	}
	return strings.TrimSuffix(b.String(), "\n")
}

type maker struct {
	root   any
	from   Source
	values int // so far
}

// object is a schema that is a JSON object.
type object = map[string]any

func (m *maker) value(schema any, place string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("schema at %s is deeper than %d levels: a value needs an end", place, maxDepth)
	}
	if m.values++; m.values > maxValues {
		return nil, fmt.Errorf("schema at %s wants more than %d values: lower minItems or require fewer properties", place, maxValues)
	}
	s, err := m.resolve(schema, place)
	if err != nil {
		return nil, err
	}
	if c, ok := s["const"]; ok {
		return c, nil
	}
	if values, ok := s["enum"].([]any); ok {
		if len(values) == 0 {
			return nil, fmt.Errorf("schema at %s has an empty enum: no value satisfies it", place)
		}
		return values[m.from.Draw(place, len(values))], nil
	}
	switch t := typeOf(s); t {
	case "object":
		return m.object(s, place, depth)
	case "array":
		return m.array(s, place, depth)
	case "string":
		return m.text(s, place)
	case "integer", "number":
		return m.number(s, place, t == "integer")
	case "boolean":
		return m.from.Draw(place, 2) == 1, nil
	case "null":
		return nil, nil
	default:
		return nil, fmt.Errorf("schema at %s has the type %q: must be object, array, string, integer, number, boolean or null", place, t)
	}
}

// typeOf is the schema's type, the first one of several; without any, the one that its
// keywords are about.
func typeOf(s object) string {
	switch t := s["type"].(type) {
	case string:
		return t
	case []any:
		if len(t) > 0 {
			name, _ := t[0].(string)
			return name
		}
	}
	for _, k := range []struct{ keyword, typ string }{
		{"properties", "object"}, {"required", "object"}, {"items", "array"}, {"prefixItems", "array"},
		{"minimum", "number"}, {"maximum", "number"},
	} {
		if _, ok := s[k.keyword]; ok {
			return k.typ
		}
	}
	return "string"
}

// resolve follows references and merges allOf and the first of anyOf and oneOf into the
// schema.
func (m *maker) resolve(schema any, place string) (object, error) {
	for range maxDepth {
		if allowed, ok := schema.(bool); ok && allowed {
			return object{}, nil
		}
		s, ok := schema.(object)
		if !ok {
			return nil, fmt.Errorf("schema at %s is %s: must be an object or true", place, encode(schema))
		}
		var parts []any
		if ref, ok := s["$ref"].(string); ok {
			target, err := m.lookup(ref, place)
			if err != nil {
				return nil, err
			}
			parts = append(parts, target)
		}
		for _, keyword := range []string{"anyOf", "oneOf"} {
			if of, ok := s[keyword].([]any); ok && len(of) > 0 {
				parts = append(parts, of[0])
			}
		}
		if of, ok := s["allOf"].([]any); ok {
			parts = append(parts, of...)
		}
		if len(parts) == 0 {
			return s, nil
		}
		merged := maps.Clone(s)
		for _, k := range []string{"$ref", "anyOf", "oneOf", "allOf"} {
			delete(merged, k)
		}
		for _, part := range parts {
			o, ok := part.(object)
			if !ok {
				continue // true allows everything
			}
			merge(merged, o)
		}
		schema = merged
	}
	return nil, fmt.Errorf("schema at %s refers to itself without an end", place)
}

// merge adds the keywords of part to s; properties and required names are joined.
func merge(s, part object) {
	for k, v := range part {
		switch old := s[k].(type) {
		case object:
			if more, ok := v.(object); ok && k == "properties" {
				joined := maps.Clone(old)
				maps.Copy(joined, more)
				s[k] = joined
			}
		case []any:
			if more, ok := v.([]any); ok && k == "required" {
				s[k] = slices.Concat(old, more)
			}
		case nil:
			s[k] = v
		}
	}
}

// lookup finds what a reference like #/$defs/name points at.
func (m *maker) lookup(ref, place string) (any, error) {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, fmt.Errorf("schema at %s refers to %q: must be a place in the same schema, as in #/$defs/name", place, ref)
	}
	at := m.root
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if path == "" {
			break
		}
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		o, _ := at.(object)
		if at = o[name]; at == nil {
			return nil, fmt.Errorf("schema at %s refers to %q: there is no such place in the schema", place, ref)
		}
	}
	return at, nil
}

func (m *maker) object(s object, place string, depth int) (any, error) {
	properties, _ := s["properties"].(object)
	required := map[string]bool{}
	names, _ := s["required"].([]any)
	for _, n := range names {
		if name, ok := n.(string); ok {
			required[name] = true
		}
	}
	out := object{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if depth >= optionalDepth && !required[name] {
			continue
		}
		v, err := m.value(properties[name], place+"/properties/"+name, depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = v
	}
	for name := range required {
		if _, ok := out[name]; ok {
			continue
		}
		var rest any = object{}
		if more, ok := s["additionalProperties"].(object); ok {
			rest = more
		}
		v, err := m.value(rest, place+"/additionalProperties/"+name, depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = v
	}
	return out, nil
}

func (m *maker) array(s object, place string, depth int) (any, error) {
	prefix, _ := s["prefixItems"].([]any)
	least := whole(s, "minItems", 0)
	length := max(least, len(prefix))
	if _, fixed := s["items"].(bool); !fixed && length == 0 && depth < optionalDepth {
		length = 1 + m.from.Draw(place, 3)
	}
	length = min(length, whole(s, "maxItems", maxItems))
	if least > length || least > maxItems {
		return nil, fmt.Errorf("schema at %s wants at least %d items: must be at most maxItems and %d", place, least, maxItems)
	}
	unique, _ := s["uniqueItems"].(bool)
	seen := map[string]bool{}
	out := []any{}
	for try := 0; len(out) < length; try++ {
		item := s["items"]
		if i := len(out); i < len(prefix) {
			item = prefix[i]
		}
		if item == nil {
			item = object{}
		}
		v, err := m.value(item, fmt.Sprintf("%s/items/%d", place, try), depth+1)
		if err != nil {
			return nil, err
		}
		if key := encode(v); unique && seen[key] {
			if try < length+maxItems {
				continue
			}
			if len(out) < least {
				return nil, fmt.Errorf("schema at %s wants %d unique items: its items have too few values", place, least)
			}
			break
		} else {
			seen[key] = true
		}
		out = append(out, v)
	}
	return out, nil
}

// whole is a keyword's value as a count, or def.
func whole(s object, keyword string, def int) int {
	if n, ok := s[keyword].(json.Number); ok {
		if f, err := n.Float64(); err == nil && f >= 0 && f <= 1e9 {
			return int(f)
		}
	}
	return def
}
