package server

// RouteInfo is a route as the tests compare it with the description and the rules.
type RouteInfo struct {
	Method, Pattern string
	// Roles that may call it; nil: no token is asked for.
	Roles []string
	// Anyone: no token is asked for.
	Anyone bool
	// Params are its query parameters.
	Params []string
	// Read tells that it is a read, Blocking that it may wait for a change.
	Read, Blocking bool
	// JSON and Stream tell what body it takes.
	JSON, Stream bool
}

// Routes lists the whole API.
func Routes() []RouteInfo {
	out := make([]RouteInfo, len(routes))
	for i, rt := range routes {
		info := RouteInfo{Method: rt.method, Pattern: rt.pattern, Anyone: rt.access == accessAnyone, Read: rt.where == whereRead, JSON: rt.body == bodyJSON, Stream: rt.body == bodyStream}
		for _, r := range roles[rt.access] {
			info.Roles = append(info.Roles, string(r))
		}
		info.Params = append(info.Params, rt.params...)
		for _, p := range []string{paramIndex, paramWait, paramStale} {
			if rt.takes(p) {
				info.Params = append(info.Params, p)
			}
		}
		info.Blocking = rt.takes(paramIndex)
		out[i] = info
	}
	return out
}

// HeaderNotLeader is the mark of an answer to a server that has passed a request on.
const HeaderNotLeader = headerNotLeader
