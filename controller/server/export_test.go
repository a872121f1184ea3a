package server

import "testing"

// RouteInfo is a route as the tests compare it with the rules.
type RouteInfo struct {
	Method, Pattern string
	// Roles that may call it; nil: no token is asked for.
	Roles []string
	// Writes: it ends in a command of the state.
	Writes bool
}

// Routes lists the whole API.
func Routes() []RouteInfo {
	out := make([]RouteInfo, len(routes))
	for i, rt := range routes {
		out[i] = RouteInfo{Method: rt.method, Pattern: rt.pattern, Writes: rt.write != nil}
		for _, r := range roles[rt.access] {
			out[i].Roles = append(out[i].Roles, string(r))
		}
	}
	return out
}

// OpenAPIDocument is generated from the routes and the types of package api.
func OpenAPIDocument(t testing.TB) []byte { return openAPIDocument(t) }

// HeaderNotLeader is the mark of an answer to a server that has passed a request on.
const HeaderNotLeader = headerNotLeader
