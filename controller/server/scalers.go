package server

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (s *Server) listScalers(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	all := list(v.Scalers(ws), func(s *state.Scaler) api.ScalerSummary {
		return api.ScalerSummary{Name: s.Name, Bytes: len(s.State), CreateIndex: s.CreateIndex, ModifyIndex: s.ModifyIndex}
	})
	return answer{value: all, index: v.TableIndex(state.TableScalers)}, nil
}

func noScaler(name string) *api.Error { return notFound("scaler %q does not exist", name) }

func (s *Server) getScaler(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableScalers)
	sc := v.Scaler(ws, rq.PathValue("scaler"))
	if sc == nil {
		return answer{index: index}, noScaler(rq.PathValue("scaler"))
	}
	return answer{index: index, value: api.Scaler{Name: sc.Name, State: json.RawMessage(sc.State), CreateIndex: sc.CreateIndex, ModifyIndex: sc.ModifyIndex}}, nil
}

// setScaler records no decision: a scaler's memory changes every few seconds, and what it
// leads to is recorded where it scales.
func (s *Server) setScaler(rq *request, _ *state.View) (answer, error) {
	var body api.ScalerRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if !utf8.Valid(body.State) {
		return answer{}, badRequest("field \"State\" is not valid UTF-8")
	}
	var memory bytes.Buffer
	if err := json.Compact(&memory, body.State); err != nil {
		return answer{}, badRequest("field \"State\": %v", err)
	}
	name := rq.PathValue("scaler")
	res, err := s.apply(rq.ctx, &state.SetScaler{Name: name, State: memory.String(), ModifyIndex: body.CAS})
	if err != nil {
		return answer{}, err
	}
	out := api.ScalerResponse{Name: name, Changed: res.Changed, ModifyIndex: res.Index}
	now := s.cfg.Raft.Store().View().Scaler(nil, name)
	switch {
	case res.Changed:
		// It may have been changed again, or forgotten, since: the index is of this change.
		out.New = now != nil && now.CreateIndex == res.Index
	case now == nil:
		return answer{}, conflict("scaler %q was deleted in the meantime", name)
	default:
		out.ModifyIndex = now.ModifyIndex
	}
	return answer{value: out}, nil
}

func (s *Server) deleteScaler(rq *request, v *state.View) (answer, error) {
	name := rq.PathValue("scaler")
	cmd := &state.SetScaler{Name: name, Delete: true}
	if cas, ok := rq.numbers["cas"]; ok {
		cmd.ModifyIndex = &cas
	}
	if v.Scaler(nil, name) == nil {
		return answer{}, noScaler(name)
	}
	_, err := s.apply(rq.ctx, cmd)
	return answer{}, err
}
