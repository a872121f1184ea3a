package server_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"remuda/internal/testkit/reference"
)

// methods in the order in which they are shown.
var methods = []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete}

func TestReferenceAPI(t *testing.T) {
	doc := description(t)
	paths := slices.Sorted(maps.Keys(doc.Paths.Map()))
	usual := usualErrors(doc)
	var b strings.Builder
	fmt.Fprintf(&b, "## Controller\n\nAt the address in the setting `http.bind`. `GET /v1/openapi.json` answers with this as an OpenAPI document.\n\n%s\n\n", reference.Text(doc.Info.Description))
	fmt.Fprintf(&b, "A token is sent in the header `%s`, or as `Authorization: Bearer SECRET`. The roles are those that may send the request; without one, no token is needed.\n",
		doc.Components.SecuritySchemes["token"].Value.Name)
	var params [][]string
	for _, tag := range tags(doc) {
		var rows [][]string
		for _, path := range paths {
			for _, method := range methods {
				op := doc.Paths.Value(path).Operations()[method]
				if op == nil || !slices.Contains(op.Tags, tag) {
					continue
				}
				var query []string
				for _, p := range op.Parameters {
					if p.Value.In == "query" {
						query = append(query, p.Value.Name)
					}
					params = append(params, []string{p.Value.Name, p.Value.In, typeOf(p.Value.Schema), p.Value.Description})
				}
				rows = append(rows, []string{
					reference.Code(method + " " + path), reference.Text(op.Summary), roles(op), reference.Codes(query), bodyOf(op), answerOf(op), strings.Join(without(errorsOf(op), usual), ", "),
				})
			}
		}
		fmt.Fprintf(&b, "\n### Routes: %s\n\n%s", tag, reference.Table([]string{"Request", "What it does", "Roles", "Query", "Body", "Answer", "Errors"}, rows))
	}
	slices.SortFunc(params, func(a, b []string) int { return slices.Compare(a, b) })
	params = slices.CompactFunc(params, func(a, b []string) bool { return slices.Equal(a, b) })
	for _, p := range params {
		p[0] = reference.Code(p[0])
		p[3] = reference.Sentence(reference.Text(p[3]))
	}
	fmt.Fprintf(&b, "\n### Parameters\n\n%s", reference.Table([]string{"Parameter", "In", "Type", "Meaning"}, params))

	var headers [][]string
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Headers)) {
		headers = append(headers, []string{reference.Code(headerName(doc, name)), doc.Components.Headers[name].Value.Description})
	}
	fmt.Fprintf(&b, "\n### Headers of answers\n\n%s", reference.Table([]string{"Header", "Meaning"}, headers))

	var failures [][]string
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Responses)) {
		failures = append(failures, []string{statusOf(doc, name), *doc.Components.Responses[name].Value.Description})
	}
	slices.SortFunc(failures, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	var codes [][]string
	for _, c := range reference.Source(t, "controller/api").Constants() {
		if strings.HasPrefix(c.Name, "Code") {
			codes = append(codes, []string{reference.Code(c.Value), reference.Plain(t, c)})
		}
	}
	fmt.Fprintf(&b, "\n### Errors of the controller\n\nEvery request may be answered with %s; the tables of the routes have the others. The body of an error is an [Error](#error).\n\n%s\n%s",
		strings.Join(usual, ", "), reference.Table([]string{"Status", "Meaning"}, failures), reference.Table([]string{"Code", "Meaning"}, codes))

	b.WriteString("\n### Types\n")
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		s := doc.Components.Schemas[name].Value
		fmt.Fprintf(&b, "\n#### %s\n\n%s\n", name, reference.Sentence(reference.Text(s.Description)))
		var rows [][]string
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			p := s.Properties[field]
			required := ""
			if slices.Contains(s.Required, field) {
				required = "yes"
			}
			rows = append(rows, []string{reference.Code(field), typeOf(p), required, reference.Sentence(reference.Text(p.Value.Description))})
		}
		if len(rows) > 0 {
			b.WriteString("\n" + reference.Table([]string{"Field", "Type", "Always there", "Meaning"}, rows))
		}
	}
	reference.Section(t, "api.md", "controller", b.String())
}

// tags are the groups of routes in their order.
func tags(doc *openapi3.T) []string {
	var out, rest []string
	for _, tag := range doc.Tags {
		out = append(out, tag.Name)
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for _, tag := range op.Tags {
				if !slices.Contains(out, tag) && !slices.Contains(rest, tag) {
					rest = append(rest, tag)
				}
			}
		}
	}
	slices.Sort(rest)
	return append(out, rest...)
}

func roles(op *openapi3.Operation) string {
	var out []string
	if has, ok := op.Extensions["x-remuda-roles"].([]any); ok {
		for _, one := range has {
			out = append(out, fmt.Sprint(one))
		}
	}
	return strings.Join(out, ", ")
}

// typeOf names a schema's type, with a link where it is described.
func typeOf(s *openapi3.SchemaRef) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	v := s.Value
	switch {
	case len(v.AllOf) == 1:
		return typeOf(v.AllOf[0])
	case v.Type.Is("array"):
		return "list of " + typeOf(v.Items)
	case v.Type.Is("object") && v.AdditionalProperties.Schema != nil:
		return "map to " + typeOf(v.AdditionalProperties.Schema)
	case v.Type.Is("string") && len(v.Enum) > 0:
		var words []string
		for _, e := range v.Enum {
			words = append(words, fmt.Sprintf("%q", e))
		}
		return strings.Join(words, ", ")
	case v.Type.Is("string") && v.Format == "date-time":
		return "time"
	case v.Type.Is("string") && strings.Contains(v.Pattern, "h|m|s"):
		return "duration"
	case v.Type == nil:
		return "any"
	}
	out := strings.Join(v.Type.Slice(), " or ")
	var bounds []string
	if v.Min != nil && *v.Min > 0 {
		bounds = append(bounds, fmt.Sprintf("from %v", *v.Min))
	}
	if v.Max != nil {
		bounds = append(bounds, fmt.Sprintf("to %v", *v.Max))
	}
	if v.Default != nil {
		bounds = append(bounds, fmt.Sprintf("by default %v", v.Default))
	}
	if len(bounds) > 0 {
		out += " (" + strings.Join(bounds, " ") + ")"
	}
	return out
}

func bodyOf(op *openapi3.Operation) string {
	if op.RequestBody == nil {
		return ""
	}
	return contentOf(op.RequestBody.Value.Content)
}

func contentOf(c openapi3.Content) string {
	kinds := slices.Sorted(maps.Keys(c))
	switch {
	case len(kinds) == 0:
		return ""
	case kinds[0] == "application/json" && c[kinds[0]].Schema != nil:
		return typeOf(c[kinds[0]].Schema)
	}
	return reference.Code(kinds[0])
}

func answerOf(op *openapi3.Operation) string {
	for _, status := range slices.Sorted(maps.Keys(op.Responses.Map())) {
		if strings.HasPrefix(status, "2") {
			return strings.TrimSpace(status + " " + contentOf(op.Responses.Value(status).Value.Content))
		}
	}
	return ""
}

func errorsOf(op *openapi3.Operation) []string {
	var out []string
	for _, status := range slices.Sorted(maps.Keys(op.Responses.Map())) {
		if !strings.HasPrefix(status, "2") {
			out = append(out, status)
		}
	}
	return out
}

// usualErrors are the statuses that every route may answer with.
func usualErrors(doc *openapi3.T) []string {
	count, all := map[string]int{}, 0
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			all++
			for _, s := range errorsOf(op) {
				count[s]++
			}
		}
	}
	var out []string
	for s, n := range count {
		if n == all {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

func without(list, these []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return slices.Contains(these, s) })
}

// statusOf is the status with which a response is used.
func statusOf(doc *openapi3.T, name string) string {
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		for _, op := range doc.Paths.Value(path).Operations() {
			for status, r := range op.Responses.Map() {
				if r.Ref == "#/components/responses/"+name {
					return status
				}
			}
		}
	}
	return ""
}

// headerName is the header that a description is used for.
func headerName(doc *openapi3.T, name string) string {
	found := ""
	look := func(headers openapi3.Headers) {
		for header, h := range headers {
			if h.Ref == "#/components/headers/"+name {
				found = header
			}
		}
	}
	for _, r := range doc.Components.Responses {
		look(r.Value.Headers)
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for _, r := range op.Responses.Map() {
				look(r.Value.Headers)
			}
		}
	}
	return cmp.Or(found, name)
}
