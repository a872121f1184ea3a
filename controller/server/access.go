package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// access says which roles may call a route. The zero value is nobody, so that a route
// without a rule answers nobody.
type access int

const (
	accessAnyone   access = iota + 1 // no token is asked for
	accessToken                      // whoever has a token
	accessRead                       // all but gateways
	accessModels                     // all: which models and replicas there are
	accessScale                      // operators, and the autoscaler
	accessGateway                    // operators, and gateways
	accessOperator                   // operators alone
)

// roles that may call a route, by its access.
var roles = map[access][]state.Role{
	accessToken:    {state.RoleOperator, state.RoleGateway, state.RoleAutoscaler, state.RoleReadOnly},
	accessRead:     {state.RoleOperator, state.RoleAutoscaler, state.RoleReadOnly},
	accessModels:   {state.RoleOperator, state.RoleGateway, state.RoleAutoscaler, state.RoleReadOnly},
	accessScale:    {state.RoleOperator, state.RoleAutoscaler},
	accessGateway:  {state.RoleOperator, state.RoleGateway},
	accessOperator: {state.RoleOperator},
}

// secret returns the token that a request shows, empty for none.
func secret(h http.Header) string {
	if s := h.Get(api.HeaderToken); s != "" {
		return s
	}
	scheme, s, ok := strings.Cut(h.Get("Authorization"), " ")
	if ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(s)
	}
	return ""
}

// authorize returns the token of a request as v knows it, nil where none is asked for,
// or why the request is refused.
func (s *Server) authorize(rt *route, h http.Header, v *state.View) (*state.Token, error) {
	if !s.cfg.ACL || rt.access == accessAnyone {
		return nil, nil
	}
	shown := secret(h)
	var token *state.Token
	if shown != "" {
		token = v.TokenBySecret(shown)
	}
	if token == nil {
		e := &api.Error{Status: http.StatusUnauthorized, Code: api.CodeNoToken}
		switch {
		case !bootstrapped(v):
			e.Message = "ACLs are enabled but not set up: run \"remuda acl bootstrap\" once (PUT /v1/acl/bootstrap)"
		case shown == "":
			e.Message = fmt.Sprintf("permission denied: missing ACL token: send its secret in the header %s, or set -token or %s", api.HeaderToken, api.EnvToken)
		default:
			e.Message = fmt.Sprintf("permission denied: unknown ACL token in %s: it may have been deleted", api.HeaderToken)
		}
		return nil, e
	}
	if err := permit(rt, token.Role); err != nil {
		return nil, err
	}
	return token, nil
}

// mayKnowToken reports whether the leader may accept a request that was refused with err. A server that has just
// started has an empty state until it hears from the leader, and any other may lag behind a new token.
func (s *Server) mayKnowToken(rq *request, err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == api.CodeNoToken && (secret(rq.Header) != "" || !bootstrapped(s.cfg.Raft.Store().View()))
}

// askLeader asks the leader, once, whether the token of a request may call its route.
func (s *Server) askLeader(rq *request) error {
	leader := s.cfg.Raft.Leader()
	switch leader.ID {
	case "":
		return &raft.NotLeaderError{}
	case s.cfg.Raft.ID():
		v, err := s.cfg.Raft.Read(rq.ctx, raft.Verified)
		if err == nil {
			rq.token, err = s.authorize(rq.route, rq.Header, v)
		}
		return err
	}
	at, err := s.peers.find(rq.ctx, s.cfg.Raft, leader)
	if err != nil {
		return fmt.Errorf("%w, and the leader cannot be reached: %w", raft.ErrNotLeader, err)
	}
	return s.leaderAuthorizes(rq.ctx, rq, at)
}

// permit returns an error if a role may not call a route.
func permit(rt *route, role state.Role) error {
	if slices.Contains(roles[rt.access], role) {
		return nil
	}
	return &api.Error{Status: http.StatusForbidden, Code: api.CodeForbidden,
		Message: fmt.Sprintf("permission denied: role %s cannot %s %s (needs %s)", role, rt.method, rt.pattern, allowed(rt.access))}
}

func allowed(a access) string {
	names := make([]string, len(roles[a]))
	for i, r := range roles[a] {
		names[i] = string(r)
	}
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// bootstrapped tells whether there is an operator's token.
func bootstrapped(v *state.View) bool {
	return slices.ContainsFunc(v.Tokens(nil), func(t *state.Token) bool { return t.Role == state.RoleOperator })
}

// by names a token in logs and decisions.
func by(t *state.Token) string {
	if t == nil {
		return "anonymous (no ACL token)"
	}
	if t.Name == "" {
		return fmt.Sprintf("%s %s", t.Role, t.Accessor)
	}
	return fmt.Sprintf("%s %q", t.Role, t.Name)
}
