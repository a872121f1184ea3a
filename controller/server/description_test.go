package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
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

// description reads the file that the server embeds.
var description = sync.OnceValue(func() *openapi3.T {
	b, err := os.ReadFile("openapi.json")
	if err != nil {
		panic(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		panic(err)
	}
	return doc
})

// seen has the kinds of answers that tests got of each route: "GET /v1/models 200".
var seen sync.Map

// comparing is a transport that compares every answer with the description.
type comparing struct {
	t    testing.TB
	next http.RoundTripper
}

var transport = &http.Transport{MaxIdleConnsPerHost: 256, ExpectContinueTimeout: patience}

func checked(t testing.TB) *http.Client {
	return &http.Client{Transport: &comparing{t: t, next: transport}}
}

func (c *comparing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	op, pattern := operation(r.Method, r.URL)
	if op == nil {
		return resp, nil // A test of what there is not.
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
	if err := conforms(r, resp, op, pattern, body); err != nil {
		c.t.Errorf("%s %s answered %d, which is not as openapi.json says: %v\n%s", r.Method, r.URL, resp.StatusCode, err, body)
	}
	return resp, nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// operation finds what the description has for a request.
func operation(method string, u *url.URL) (*openapi3.Operation, string) {
	segments := strings.Split(u.EscapedPath(), "/")
	var best string
	for pattern := range description().Paths.Map() {
		parts := strings.Split(pattern, "/")
		ok := len(parts) == len(segments)
		for i := 0; ok && i < len(parts); i++ {
			ok = parts[i] == segments[i] || strings.HasPrefix(parts[i], "{")
		}
		if ok && description().Paths.Value(pattern).Operations()[method] != nil && (best == "" || strings.Contains(best, "{")) {
			best = pattern
		}
	}
	if best == "" {
		return nil, ""
	}
	return description().Paths.Value(best).Operations()[method], best
}

func conforms(r *http.Request, resp *http.Response, op *openapi3.Operation, pattern string, body []byte) error {
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r,
			Route:   &routers.Route{Spec: description(), Path: pattern, PathItem: description().Paths.Value(pattern), Method: r.Method, Operation: op},
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
	require.NoError(t, description().Validate(t.Context()))
}

func TestTheDescriptionHasEveryRouteAndNothingMore(t *testing.T) {
	routes := map[string]server.RouteInfo{}
	for _, r := range server.Routes() {
		key := r.Method + " " + r.Pattern
		require.NotContains(t, routes, key, "twice in the table")
		routes[key] = r
	}
	described := map[string]bool{}
	ids := map[string]bool{}
	for pattern, item := range description().Paths.Map() {
		for method, op := range item.Operations() {
			key := method + " " + pattern
			described[key] = true
			r, ok := routes[key]
			if !ok {
				t.Errorf("%s is described, and is no route", key)
				continue
			}
			require.False(t, ids[op.OperationID], op.OperationID)
			ids[op.OperationID] = true
			require.NotEmpty(t, op.Summary, key)

			var query, path []string
			for _, p := range op.Parameters {
				switch p.Value.In {
				case "query":
					query = append(query, p.Value.Name)
				case "path":
					path = append(path, "{"+p.Value.Name+"}")
				default:
					t.Errorf("%s: parameter %s is in the %s", key, p.Value.Name, p.Value.In)
				}
			}
			require.ElementsMatch(t, r.Params, query, key)
			var segments []string
			for _, s := range strings.Split(pattern, "/") {
				if strings.HasPrefix(s, "{") {
					segments = append(segments, s)
				}
			}
			require.Equal(t, segments, path, key)

			var roles []string
			if has, ok := op.Extensions["x-remuda-roles"].([]any); ok {
				for _, one := range has {
					roles = append(roles, fmt.Sprint(one))
				}
			}
			require.ElementsMatch(t, r.Roles, roles, key)
			require.Equal(t, r.Anyone, op.Security != nil && len(*op.Security) == 0, "%s: security", key)

			require.Equal(t, r.JSON || r.Stream, op.RequestBody != nil, "%s: body", key)
			if r.JSON {
				require.NotNil(t, op.RequestBody.Value.Content["application/json"], key)
			}
			ok200 := op.Responses.Value("200")
			if ok200 == nil {
				ok200 = op.Responses.Value("201")
			}
			require.NotNil(t, ok200, key)
			require.Equal(t, r.Read, ok200.Value.Headers[api.HeaderLastContact] != nil, "%s: %s", key, api.HeaderLastContact)
			require.Equal(t, r.Blocking, ok200.Value.Headers[api.HeaderIndex] != nil, "%s: %s", key, api.HeaderIndex)
		}
	}
	for key := range routes {
		require.True(t, described[key], "%s is a route, and is not described", key)
	}
}

// TestRequestsAreDescribed sends what the client's types are made of, and validates
// the client's requests instead of the server's answers.
func TestRequestsAreDescribed(t *testing.T) {
	for name, body := range map[string]struct {
		schema string
		value  string
	}{
		"apply":     {"ApplyRequest", `{"File":"x","Filename":"f","DryRun":true,"CAS":{"m":1}}`},
		"scale":     {"ScaleRequest", `{"Replicas":1,"Variant":"v","Origin":"autoscaler","CAS":2}`},
		"variants":  {"ScaleRequest", `{"Replicas":0,"Variants":{"v":1},"Reason":"it is busy","Origin":"autoscaler","CAS":2}`},
		"scaler":    {"ScalerRequest", `{"State":[1,null],"CAS":0}`},
		"evict":     {"EvictRequest", `{"Replica":"r","Model":"m","To":"COLD","Force":true}`},
		"cordon":    {"CordonRequest", `{"GPU":"g","On":true,"Reason":"it is hot"}`},
		"switch":    {"SwitchRequest", `{"Value":"x","CAS":0}`},
		"token":     {"TokenRequest", `{"Name":"n","Role":"gateway"}`},
		"report":    {"GatewayReport", `{"Gateway":"g","Index":1,"Since":"2026-01-02T03:04:05Z","Wanted":["m"],"Replicas":[{"Name":"m:v:1","InFlight":1,"Requests":[{"ID":"x","Started":"2026-01-02T03:04:05Z"}]}],"Draining":true,"Counters":[{"Model":"m","Arrived":2,"Finished":1,"ServedSeconds":0.5,"Refused":3}],"Queues":[{"Model":"m","State":"BUSY","Waiting":1,"InFlight":1,"Oldest":"2026-01-02T03:04:05Z","Served":0.5,"Requests":[{"ID":"y","Started":"2026-01-02T03:04:05Z"}]}]}`},
		"plan":      {"PlanRequest", `{"File":"x","Filename":"f","Scale":{"m":1},"Evict":{"Model":"m","To":"WARM"}}`},
		"dedicated": {"DedicatedRequest", `{"Models":{"m":1}}`},
		"schedule":  {"ScheduleRequest", `{"File":"x","Filename":"f"}`},
		"pipeline":  {"PipelineRequest", `{"File":"x","Filename":"f","CAS":0}`},
		"expect":    {"ExpectRequest", `{"Replicas":1,"CAS":2}`},
	} {
		s := description().Components.Schemas[body.schema]
		require.NotNil(t, s, name)
		var v any
		decodeJSON(t, body.value, &v)
		require.NoError(t, s.Value.VisitJSON(v), name)
		require.NotNil(t, s.Value.AdditionalProperties.Has, name)
		require.False(t, *s.Value.AdditionalProperties.Has, "%s: an unknown field is refused", name)
	}
}

func TestTheDescriptionIsServed(t *testing.T) {
	m := one(t)
	b, err := m.client.OpenAPI(t.Context())
	require.NoError(t, err)
	want, err := os.ReadFile("openapi.json")
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(b))
	require.True(t, slices.ContainsFunc(server.Routes(), func(r server.RouteInfo) bool { return r.Pattern == "/v1/openapi.json" }))
}

func TestTheClientHasEveryOperation(t *testing.T) {
	c := reflect.TypeFor[*api.Client]()
	ids := map[string]bool{"Close": true}
	for _, item := range description().Paths.Map() {
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
