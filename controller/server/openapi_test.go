package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"remuda/controller/api"
	"remuda/internal/testkit/reference"
)

// TestReferenceOpenAPI compares openapi.json, which the server embeds, with the routes, the
// types of package api and their comments; with -update it writes the file.
func TestReferenceOpenAPI(t *testing.T) {
	reference.File(t, "controller/server/openapi.json", string(openAPIDocument(t)))
}

type object = map[string]any

var openAPI struct {
	once     sync.Once
	document []byte
}

// openAPIDocument generates the OpenAPI document, once for all tests: it takes seconds.
func openAPIDocument(t testing.TB) []byte {
	openAPI.once.Do(func() { openAPI.document = generateOpenAPI(t) })
	return openAPI.document
}

func generateOpenAPI(t testing.TB) []byte {
	g := &generator{t: t, schemas: object{}}
	paths := object{}
	var tags []any
	for _, rt := range routes {
		item, ok := paths[rt.pattern].(object)
		if !ok {
			item = object{}
			paths[rt.pattern] = item
		}
		item[strings.ToLower(rt.method)] = g.operation(rt)
		if tag := any(object{"name": rt.tag}); !slices.ContainsFunc(tags, func(o any) bool { return reflect.DeepEqual(o, tag) }) {
			tags = append(tags, tag)
		}
	}
	doc := object{
		"openapi": "3.0.3",
		"info": object{"title": "remuda controller", "version": "1", "description": "The controller's API, with the habits of Nomad and Consul. " +
			"Reads see every write that was acknowledged before they began, on every server; with ?stale they are answered by the server that was asked, from what it has; only a token that it does not know is one for the leader. " +
			"With ?index= a read waits until its answer may be another one than the one that had this " + api.HeaderIndex + ". " +
			"An index that went back means that the state was replaced: begin again without one."},
		"servers":  []any{object{"url": "/"}},
		"security": []any{object{"token": []any{}}, object{"bearer": []any{}}},
		"tags":     tags,
		"paths":    paths,
		"components": object{
			"schemas": g.schemas, "responses": failures(g), "parameters": readParameters(), "headers": answerHeaders(),
			"securitySchemes": object{
				"token":  object{"type": "apiKey", "in": "header", "name": api.HeaderToken},
				"bearer": object{"type": "http", "scheme": "bearer"},
			},
		},
	}
	var b bytes.Buffer
	layout(t, &b, doc, "")
	b.WriteByte('\n')
	return b.Bytes()
}

// layout writes JSON with sorted keys, on one line as far as it fits.
func layout(t testing.TB, b *bytes.Buffer, v any, indent string) {
	const width = 160
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	o, ok := v.(object)
	if !ok || len(indent)+line.Len() <= width {
		b.Write(bytes.TrimSpace(line.Bytes()))
		return
	}
	sep := "{\n"
	for _, key := range slices.Sorted(maps.Keys(o)) {
		b.WriteString(sep + indent + " " + strconv.Quote(key) + ": ")
		layout(t, b, o[key], indent+" ")
		sep = ",\n"
	}
	b.WriteString("\n" + indent + "}")
}

func component(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }

// generator collects the schemas of the types that routes use.
type generator struct {
	t       testing.TB
	schemas object
}

// operation describes a route.
func (g *generator) operation(rt *route) object {
	op := object{"operationId": rt.id, "summary": rt.summary, "tags": []any{rt.tag}, "responses": g.responses(rt)}
	if params := parameters(rt); len(params) > 0 {
		op["parameters"] = params
	}
	if rt.in != nil {
		op["requestBody"] = object{"required": true, "content": g.content(rt.in)}
	}
	if rt.access == accessAnyone {
		op["security"] = []any{}
	} else {
		op["x-remuda-roles"] = roles[rt.access]
	}
	return op
}

func parameters(rt *route) []any {
	var out []any
	for _, segment := range strings.Split(rt.pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			out = append(out, object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true,
				"description": "One segment: a '/' in it is written %2F.", "schema": object{"type": "string"}})
		}
	}
	for _, p := range rt.params {
		schema := object{"type": "string"}
		if p.number {
			schema = object{"type": "integer", "minimum": p.min}
			if p.max > 0 {
				schema["maximum"] = p.max
			}
			if p.preset > 0 {
				schema["default"] = p.preset
			}
		}
		out = append(out, object{"name": p.name, "in": "query", "description": p.about, "schema": schema})
	}
	for _, name := range []string{paramIndex, paramWait, paramStale} {
		if rt.takes(name) {
			out = append(out, component("parameters", name))
		}
	}
	return out
}

// readParameters are those of reads.
func readParameters() object {
	return object{
		paramIndex: object{"name": paramIndex, "in": "query", "schema": object{"type": "integer", "minimum": 0},
			"description": "Wait until the answer may be another one than the one that had this " + api.HeaderIndex + "; 0 or none: answer at once."},
		paramWait: object{"name": paramWait, "in": "query", "schema": object{"type": "string"},
			"description": "How long to wait at most, as \"30s\"; up to \"10m\", and \"5m\" where it is not said. A sixteenth may come on top."},
		paramStale: object{"name": paramStale, "in": "query", "allowEmptyValue": true, "schema": object{"type": "string", "enum": []any{"", "true", "false", "1", "0"}},
			"description": "Let this server answer from what it has."},
	}
}

func answerHeaders() object {
	return object{
		"Index":       object{"description": "The answer's index, for the next ?index=.", "schema": object{"type": "integer", "minimum": 1}},
		"KnownLeader": object{"description": "Whether the answering server knows a leader.", "schema": object{"type": "boolean"}},
		"LastContact": object{"description": "Milliseconds since the answering server heard from the leader.", "schema": object{"type": "integer", "minimum": 0}},
		"RetryAfter":  object{"description": "Seconds after which to try again.", "schema": object{"type": "integer", "minimum": 1}},
	}
}

// failure is a status of errors.
type failure struct {
	name, about string
	retry       bool // the answer has Retry-After
}

var failureOf = map[int]failure{
	http.StatusBadRequest:            {"BadRequest", "The request is not valid. Errors in a file are listed with their lines.", false},
	http.StatusUnauthorized:          {"NoToken", "The token is missing or unknown.", false},
	http.StatusForbidden:             {"Forbidden", "The token's role, or the model's management, does not allow it.", false},
	http.StatusNotFound:              {"NotFound", "What is named does not exist.", false},
	http.StatusConflict:              {"Conflict", "The state is another one than the caller expects. Nothing was changed.", false},
	http.StatusRequestEntityTooLarge: {"TooLarge", "The body exceeds the limit of the route.", false},
	http.StatusTooManyRequests:       {"Busy", "The server is at its limit of such requests. Nothing happened: try again.", true},
	http.StatusInternalServerError:   {"Internal", "The server failed.", false},
	http.StatusServiceUnavailable:    {"Unavailable", "There is no leader, Nomad does not answer, or the server is busy. Nothing happened: try again.", true},
	http.StatusGatewayTimeout:        {"UnknownOutcome", "It may have happened, or may yet. Check the state before retrying.", false},
}

func failures(g *generator) object {
	out := object{}
	for _, f := range failureOf {
		one := object{"description": f.about, "content": g.content(api.Error{})}
		if f.retry {
			one["headers"] = object{"Retry-After": component("headers", "RetryAfter")}
		}
		out[f.name] = one
	}
	return out
}

// responses are what a route answers with.
func (g *generator) responses(rt *route) object {
	answer := object{"description": "The answer.", "content": g.content(rt.out)}
	headers := object{}
	if rt.where == whereRead {
		headers[api.HeaderLastContact] = component("headers", "LastContact")
		headers[api.HeaderKnownLeader] = component("headers", "KnownLeader")
	}
	if rt.takes(paramIndex) {
		headers[api.HeaderIndex] = component("headers", "Index")
	}
	if len(headers) > 0 {
		answer["headers"] = headers
	}
	statuses := append([]int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable}, rt.errors...)
	if rt.access != accessAnyone {
		statuses = append(statuses, http.StatusUnauthorized, http.StatusForbidden)
	}
	changes := rt.write != nil || rt.act != nil
	if changes || strings.Contains(rt.pattern, "{") {
		statuses = append(statuses, http.StatusNotFound)
	}
	if changes {
		statuses = append(statuses, http.StatusConflict, http.StatusGatewayTimeout)
	}
	if rt.in != nil {
		statuses = append(statuses, http.StatusRequestEntityTooLarge)
	}
	out := object{strconv.Itoa(cmp.Or(rt.status, http.StatusOK)): answer}
	for _, status := range statuses {
		out[strconv.Itoa(status)] = component("responses", failureOf[status].name)
	}
	if rt.id == "AgentHealth" {
		out[strconv.Itoa(http.StatusServiceUnavailable)] = answer
	}
	return out
}

// content describes a body by a value of its type.
func (g *generator) content(of any) object {
	kind := "application/json"
	switch of.(type) {
	case nil:
		of = struct{}{}
	case text:
		kind = "text/plain"
	case binary:
		kind = contentBytes
	}
	return object{kind: object{"schema": g.schema(reflect.TypeOf(of), "")}}
}

const (
	apiPackage      = "controller/api"
	durationPattern = `^-?([0-9]+(\.[0-9]+)?(h|m|s|ms|µs|us|ns))+$`
)

// schema describes a type in JSON. The tag is that of the field which has it.
func (g *generator) schema(t reflect.Type, tag reflect.StructTag) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[api.Duration]():
		return object{"type": "string", "pattern": durationPattern}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	case reflect.TypeFor[binary]():
		return object{"type": "string", "format": "binary"}
	}
	out := object{}
	switch t.Kind() {
	case reflect.Pointer:
		return g.schema(t.Elem(), tag)
	case reflect.Struct:
		return g.structure(t)
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(t.Elem(), tag)}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{"type": "object"}
		}
		return object{"type": "object", "additionalProperties": g.schema(t.Elem(), tag)}
	case reflect.Bool:
		out["type"] = "boolean"
	case reflect.String:
		out["type"] = "string"
	case reflect.Int, reflect.Int64:
		out["type"], out["format"] = "integer", "int64"
	case reflect.Uint32, reflect.Uint64:
		out["type"], out["minimum"] = "integer", 0
	case reflect.Float64:
		out["type"], out["format"] = "number", "double"
	default:
		g.t.Fatalf("the OpenAPI document cannot describe the type %s", t)
	}
	for name, keyword := range map[string]string{"min": "minimum", "max": "maximum", "maxLength": "maxLength"} {
		if text, ok := tag.Lookup(name); ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				g.t.Fatalf("tag %s: %v", tag, err)
			}
			out[keyword] = n
		}
	}
	if of := tag.Get("enum"); of != "" {
		out["enum"] = g.values(of)
	}
	return out
}

// values are those of the tag enum: words, and names of constants.
func (g *generator) values(tag string) []any {
	var out []any
	for _, one := range strings.Split(tag, ",") {
		pkg, name, constants := strings.Cut(one, ".")
		if !constants {
			out = append(out, one)
			continue
		}
		prefix, group := strings.CutSuffix(name, "*")
		before := len(out)
		for _, c := range reference.Source(g.t, "controller/"+pkg).Constants() {
			if !group && c.Type == name || group && strings.HasPrefix(c.Name, prefix) {
				out = append(out, c.Value)
			}
		}
		if len(out) == before {
			g.t.Fatalf("the tag enum:%q names no constants: there are none of %s", tag, one)
		}
	}
	return out
}

// structure refers to the schema of a struct, and adds it to the document.
func (g *generator) structure(t reflect.Type) object {
	if t.NumField() == 0 {
		return object{"type": "object", "additionalProperties": false}
	}
	ref := component("schemas", t.Name())
	if _, known := g.schemas[t.Name()]; known {
		return ref
	}
	if t.PkgPath() != "remuda/"+apiPackage {
		g.t.Fatalf("the OpenAPI document needs the type %s: it must be in the package %s", t, apiPackage)
	}
	properties := object{}
	var required []any
	schema := object{"type": "object", "additionalProperties": false, "properties": properties,
		"description": g.prose(reference.Source(g.t, apiPackage).TypeDoc(t.Name()))}
	g.schemas[t.Name()] = schema
	for _, f := range reflect.VisibleFields(t) {
		name, needed := jsonField(f)
		if name == "" {
			continue
		}
		of := g.schema(f.Type, f.Tag)
		owner := t
		if path := f.Index[:len(f.Index)-1]; len(path) > 0 {
			owner = t.FieldByIndex(path).Type
		}
		if doc := g.prose(reference.FieldDoc(g.t, owner, f.Name)); doc != "" {
			if of["$ref"] != nil {
				of = object{"allOf": []any{of}} // beside $ref nothing else counts
			}
			of["description"] = doc
		}
		properties[name] = of
		if needed {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	return ref
}

// prose is a comment on one line, with the values of constants instead of their names.
func (g *generator) prose(comment string) string {
	values := map[string]string{}
	for _, c := range reference.Source(g.t, apiPackage).Constants() {
		if _, err := strconv.Atoi(c.Value); err == nil {
			values[c.Name] = c.Value
		}
	}
	return regexp.MustCompile(`\w+`).ReplaceAllStringFunc(strings.Join(strings.Fields(comment), " "), func(word string) string {
		return cmp.Or(values[word], word)
	})
}

// TestRoutesAreUnique: each operation is in the table once.
func TestRoutesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, rt := range routes {
		for _, key := range []string{rt.method + " " + rt.pattern, rt.id} {
			if seen[key] {
				t.Errorf("%s is twice in the table of routes", key)
			}
			seen[key] = true
		}
		if rt.summary == "" || rt.tag == "" || path.Clean(rt.pattern) != rt.pattern {
			t.Errorf("%s %s: the summary or the tag is missing, or the path is not clean", rt.method, rt.pattern)
		}
	}
}
