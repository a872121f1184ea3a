package server

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (s *Server) bootstrapACL(rq *request, _ *state.View) (answer, error) {
	if !s.cfg.ACL {
		return answer{}, badRequest("ACLs are disabled: set acl { enabled = true } in the agent config, and do not use -dev")
	}
	return s.makeToken(rq, "bootstrap", state.RoleOperator, true)
}

func (s *Server) createToken(rq *request, v *state.View) (answer, error) {
	var body api.TokenRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if s.cfg.ACL || bootstrapped(v) {
		return s.makeToken(rq, body.Name, state.Role(body.Role), false)
	}
	return answer{}, badRequest("ACLs are disabled and no operator token exists: enable ACLs and run \"remuda acl bootstrap\" first")
}

// makeToken makes a token whose secret nobody can guess: both are random UUIDs, as
// Nomad's and Consul's.
func (s *Server) makeToken(rq *request, name string, role state.Role, first bool) (answer, error) {
	const longest = 256
	if len(name) > longest {
		return answer{}, badRequest("field \"Name\" has %d bytes: must be at most %d", len(name), longest)
	}
	accessor, err := uuid.NewRandom()
	if err != nil {
		return answer{}, fmt.Errorf("create a token: %w", err)
	}
	shown, err := uuid.NewRandom()
	if err != nil {
		return answer{}, fmt.Errorf("create a token: %w", err)
	}
	t := state.Token{Accessor: accessor.String(), Name: name, Role: role, Hash: state.HashSecret(shown.String()), CreatedAt: s.cfg.Now()}
	res, err := s.apply(rq, &state.UpsertToken{Token: t, Bootstrap: first})
	if err != nil {
		return answer{}, err
	}
	s.log.Info("token created", "accessor", t.Accessor, "name", name, "role", role, "by", by(rq.token))
	t.CreateIndex, t.ModifyIndex = res.Index, res.Index
	out := tokenOf(&t)
	out.SecretID = shown.String()
	return answer{value: out}, nil
}

func (s *Server) listTokens(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	return answer{value: list(v.Tokens(ws), tokenOf), index: v.TableIndex(state.TableTokens)}, nil
}

func (s *Server) selfToken(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableTokens)
	if rq.token == nil {
		return answer{index: index}, notFound("ACLs are disabled: no token is in use")
	}
	v.Tokens(ws) // It may be changed or taken away.
	return answer{value: tokenOf(rq.token), index: index}, nil
}

// deleteToken never takes the last operator's token: anybody could make the first one
// again.
func (s *Server) deleteToken(rq *request, v *state.View) (answer, error) {
	accessor := rq.PathValue("accessor")
	all := v.Tokens(nil)
	i := slices.IndexFunc(all, func(t *state.Token) bool { return t.Accessor == accessor })
	if i < 0 {
		return answer{}, notFound("token %q does not exist: see \"remuda acl token list\"", accessor)
	}
	if _, err := s.apply(rq, &state.DeleteToken{Accessor: accessor, KeepOperator: s.cfg.ACL}); err != nil {
		return answer{}, err
	}
	s.log.Info("token deleted", "accessor", accessor, "name", all[i].Name, "role", all[i].Role, "by", by(rq.token))
	return answer{}, nil
}
