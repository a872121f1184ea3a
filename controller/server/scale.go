package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"remuda/controller/api"
	"remuda/controller/state"
)

// scaleBody is a ScaleRequest: a number that was left out is not 0.
type scaleBody struct {
	api.ScaleRequest
	Replicas *int
}

// check refuses what asks for nothing, or for two things at once.
func (b *scaleBody) check() error {
	switch {
	case b.Variants != nil && (b.Variant != "" || b.Replicas != nil && *b.Replicas != 0):
		// Clients that are written in Go send Replicas always.
		return badRequest("field \"Variants\" is set together with \"Variant\" or \"Replicas\": set either \"Variants\" or the others")
	case b.Variants == nil && b.Replicas == nil:
		return badRequest("field \"Replicas\" is missing: must be the target number of replicas")
	case len(b.Reason) > api.MaxScaleReason:
		return badRequest("field \"Reason\" is %d bytes: must be at most %d bytes", len(b.Reason), api.MaxScaleReason)
	}
	return nil
}

// says is the reason as the end of a sentence on one line, empty where there is none.
func (b *scaleBody) says() string {
	text := strings.Join(strings.FieldsFunc(b.Reason, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if text == "" {
		return ""
	}
	return ": " + text
}

// request is what is asked for, in the state's words and for people.
func (b *scaleBody) request(model string, from state.Origin, at time.Time) (*state.ScaleRequest, string) {
	r := &state.ScaleRequest{Model: model, Origin: from, ModifyIndex: b.CAS, Time: at}
	switch {
	case b.Variants != nil:
		r.Variants = b.Variants
		return r, "the replicas " + state.VariantsText(b.Variants)
	case b.Variant != "":
		r.Variants = map[string]int{b.Variant: *b.Replicas}
		return r, fmt.Sprintf("%s of variant %q", plural(*b.Replicas, "replica"), b.Variant)
	}
	r.Replicas = b.Replicas
	return r, plural(*b.Replicas, "replica") + " of the model"
}

// propose carries a proposal out, as one decision. Where what it was made from changes meanwhile,
// it is resolved anew.
func (s *Server) propose(rq *request, p state.Proposal, d state.Decision) (state.Result, error) {
	for try := 1; ; try++ {
		v := s.cfg.Raft.Store().View()
		cmd, refused := p.Resolve(v)
		if refused != nil {
			return state.Result{}, refused
		}
		if scale, ok := p.(*state.ScaleRequest); ok {
			if err := s.mayScaleToZero(v, scale, cmd); err != nil {
				return state.Result{}, err
			}
		}
		res, err := s.decide(rq, cmd, d)
		if !errors.Is(err, state.ErrConflict) || try == applyTries {
			return res, err
		}
	}
}

// mayScaleToZero returns why the autoscaler may not take a model's last replica: it must have
// been idle for as long as the switch scale-to-zero-delay says. Where it is not known since when
// it is idle, it counts as busy. The state knows no requests, so this rule is not there.
func (s *Server) mayScaleToZero(v *state.View, r *state.ScaleRequest, cmd state.Command) error {
	m, l := v.Model(nil, r.Model), v.Limits(nil)(r.Model)
	c, ok := cmd.(*state.Scale)
	if r.Origin != state.OriginAutoscaler || !ok || c.Desired.Total() > 0 || l.ScaleToZeroDelay == 0 || m.Target(l).Replicas == 0 {
		return nil
	}
	now := s.cfg.Now()
	since, live := s.cfg.Loads.Since() // what came before is not known
	loads := s.cfg.Loads.Loads()
	busy := !live || !s.cfg.Loads.Known()
	for _, r := range v.StayingOf(nil, m.Name) {
		load := loads[r.Name.String()]
		busy = busy || load.InFlight > 0
		for _, at := range []time.Time{load.LastRequest, r.Since} {
			if at.After(since) {
				since = at
			}
		}
	}
	if !busy && !now.Before(since.Add(l.ScaleToZeroDelay)) {
		return nil
	}
	return &api.Error{Status: http.StatusForbidden, Code: api.CodeForbidden, Message: fmt.Sprintf(
		"model %q: switch %s is %s: the autoscaler cannot scale it to 0 before it was idle for so long", m.Name, state.SwitchScaleToZeroDelay, l.ScaleToZeroDelay)}
}

// scaleModel records one decision, whatever was asked for.
func (s *Server) scaleModel(rq *request, v *state.View) (answer, error) {
	var body scaleBody
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if err := body.check(); err != nil {
		return answer{}, err
	}
	from, err := origin(body.Origin, rq.token)
	if err != nil {
		return answer{}, err
	}
	name := rq.PathValue("model")
	before := v.Model(nil, name)
	if before == nil {
		return answer{}, noModel(v, name)
	}
	s.autoscalers.note(rq, s.cfg.Now(), func(a *api.Autoscaler) { a.ScaledAt, a.Scaled = a.LastSeenAt, name })
	ask, what := body.request(name, from, s.cfg.Now())
	was := before.Desired.Total()
	in := map[string]string{"before": strconv.Itoa(was), "variant": body.Variant, "origin": string(from)}
	if body.Variants == nil {
		in["asked"] = strconv.Itoa(*body.Replicas)
	} else {
		in["asked"] = state.VariantsText(body.Variants)
	}
	who := by(rq.token)
	if rq.token == nil && from == state.OriginAutoscaler {
		who = "the autoscaler"
	}
	res, err := s.propose(rq, ask, state.Decision{Model: name, Kind: "scale", Details: in,
		Reason: fmt.Sprintf("%s asked for %s (was %d)%s", who, what, was, body.says())})
	if err != nil {
		return answer{}, err
	}
	return s.scaled(name, body.Variant, res.Changed)
}
