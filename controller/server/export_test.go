package server

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// RouteInfo is a route as the tests compare it with the rules.
type RouteInfo struct {
	Method, Pattern string
	// Roles that may call it; nil: no token is asked for.
	Roles []string
	// Params are its query parameters.
	Params []string
	// Writes: it ends in a command of the state.
	Writes bool
}

// Routes lists the whole API.
func Routes() []RouteInfo {
	out := make([]RouteInfo, len(routes))
	for i, rt := range routes {
		out[i] = RouteInfo{Method: rt.method, Pattern: rt.pattern, Writes: rt.write != nil}
		for _, p := range rt.params {
			out[i].Params = append(out[i].Params, p.name)
		}
		for _, r := range roles[rt.access] {
			out[i].Roles = append(out[i].Roles, string(r))
		}
	}
	return out
}

// BodyInfo is a route that takes a body, with the fields of that.
type BodyInfo struct {
	Method, Pattern string
	Fields          []BodyField
}

// BodyField is a field of a body.
type BodyField struct {
	Name string
	Type reflect.Type
}

// Bodies lists the routes that take a body.
func Bodies() []BodyInfo {
	var out []BodyInfo
	for _, rt := range routes {
		if rt.in == nil {
			continue
		}
		b := BodyInfo{Method: rt.method, Pattern: rt.pattern}
		if !rt.streams() {
			for _, f := range reflect.VisibleFields(reflect.TypeOf(rt.in)) {
				if name, _ := jsonField(f); name != "" {
					b.Fields = append(b.Fields, BodyField{name, f.Type})
				}
			}
		}
		out = append(out, b)
	}
	return out
}

// OpenAPIDocument is generated from the routes and the types of package api.
func OpenAPIDocument(t testing.TB) []byte { return openAPIDocument(t) }

// HeaderNotLeader is the mark of an answer to a server that has passed a request on.
const HeaderNotLeader = headerNotLeader

// SampleHistory ends a step of the history now.
func (s *Server) SampleHistory() { s.sampleHistory() }

// Followed is how many of n replicas of a model its history has.
func Followed(n int) int {
	h := modelHistory{replicas: map[string]*api.ReplicaHistory{}}
	var all []*state.Replica
	for i := range n {
		all = append(all, &state.Replica{Name: replica.Name{Model: "m", Variant: "v", ID: fmt.Sprint(i)}})
	}
	h.follow(all, time.Time{})
	return len(h.replicas)
}
