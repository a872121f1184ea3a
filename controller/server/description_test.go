package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
)

var (
	generate sync.Once
	document *openapi3.T
)

// description is the OpenAPI document, generated from the code as it is.
func description(t testing.TB) *openapi3.T {
	generate.Do(func() {
		var err error
		document, err = openapi3.NewLoader().LoadFromData(server.OpenAPIDocument(t))
		require.NoError(t, err)
	})
	return document
}

// seen has the kinds of answers that tests got of each route: "GET /v1/models 200".
var seen sync.Map

// comparing is a transport that compares every answer with the description, and every body
// that the server accepted.
type comparing struct {
	t    testing.TB
	next http.RoundTripper
}

var transport = &http.Transport{MaxIdleConnsPerHost: 256, ExpectContinueTimeout: patience}

func checked(t testing.TB) *http.Client {
	return &http.Client{Transport: &comparing{t: t, next: transport}}
}

func (c *comparing) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		if sent, err = io.ReadAll(body); err != nil {
			return nil, err
		}
	}
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	op, pattern := operation(c.t, r.Method, r.URL)
	if op == nil {
		return resp, nil // A test of what there is not.
	}
	if resp.StatusCode < 300 {
		if err := accepts(op, sent); err != nil {
			c.t.Errorf("%s %s answered %d to a body that is not as the OpenAPI document says: %v\n%s", r.Method, r.URL, resp.StatusCode, err, sent)
		}
	}
	body, broke := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if broke != nil {
		// The client shall see what came, and that it is not all.
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{broke}))
		return resp, nil //nolint:nilerr // the error is the body's
	}
	seen.Store(fmt.Sprintf("%s %s %d", r.Method, pattern, resp.StatusCode), true)
	if err := conforms(c.t, r, resp, op, pattern, body); err != nil {
		c.t.Errorf("%s %s answered %d, which is not as the OpenAPI document says: %v\n%s", r.Method, r.URL, resp.StatusCode, err, body)
	}
	return resp, nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// operation finds what the description has for a request.
func operation(t testing.TB, method string, u *url.URL) (*openapi3.Operation, string) {
	segments := strings.Split(u.EscapedPath(), "/")
	var best string
	for pattern := range description(t).Paths.Map() {
		parts := strings.Split(pattern, "/")
		ok := len(parts) == len(segments)
		for i := 0; ok && i < len(parts); i++ {
			ok = parts[i] == segments[i] || strings.HasPrefix(parts[i], "{")
		}
		if ok && description(t).Paths.Value(pattern).Operations()[method] != nil && (best == "" || strings.Contains(best, "{")) {
			best = pattern
		}
	}
	if best == "" {
		return nil, ""
	}
	return description(t).Paths.Value(best).Operations()[method], best
}

// accepts compares the body of a request with the document.
func accepts(op *openapi3.Operation, body []byte) error {
	if op.RequestBody == nil {
		return nil
	}
	media := op.RequestBody.Value.Content["application/json"]
	if media == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return media.Schema.Value.VisitJSON(v)
}

func conforms(t testing.TB, r *http.Request, resp *http.Response, op *openapi3.Operation, pattern string, body []byte) error {
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r,
			Route:   &routers.Route{Spec: description(t), Path: pattern, PathItem: description(t).Paths.Value(pattern), Method: r.Method, Operation: op},
		},
		Status: resp.StatusCode, Header: resp.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	in.SetBodyBytes(body)
	if resp.Header.Get("Content-Type") == "application/octet-stream" {
		in.Options.ExcludeResponseBody = true
	}
	if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
		return err
	}
	// The validator looks at headers that are there: those that are described must be.
	for name := range op.Responses.Value(fmt.Sprint(resp.StatusCode)).Value.Headers {
		if resp.Header.Get(name) == "" {
			return fmt.Errorf("header %s is missing", name)
		}
	}
	return nil
}

func TestTheDescriptionIsValid(t *testing.T) {
	require.NoError(t, description(t).Validate(t.Context()))
}

func TestTheDescriptionIsServed(t *testing.T) {
	m := one(t)
	b, err := m.client.OpenAPI(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.Equal(server.OpenAPIDocument(t), b), "openapi.json is stale; run: make reference")
}

func TestTheClientHasEveryOperation(t *testing.T) {
	c := reflect.TypeFor[*api.Client]()
	ids := map[string]bool{"Close": true, "Addresses": true} // no routes
	for _, item := range description(t).Paths.Map() {
		for _, op := range item.Operations() {
			_, ok := c.MethodByName(op.OperationID)
			require.True(t, ok, "the client has no %s", op.OperationID)
			ids[op.OperationID] = true
		}
	}
	for i := range c.NumMethod() {
		require.True(t, ids[c.Method(i).Name], "the client's %s is no operation", c.Method(i).Name)
	}
}
