package server

import (
	"fmt"
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

// command is what is asked for, in the state's words and for people.
func (b *scaleBody) command(model string, from state.Origin, at time.Time) (state.Command, string) {
	switch {
	case b.Variants != nil:
		return &state.SetVariants{Model: model, Variants: b.Variants, Origin: from, ModifyIndex: b.CAS, Time: at}, "the replicas " + state.VariantsText(b.Variants)
	case b.Variant != "":
		return &state.SetScale{Model: model, Variant: b.Variant, Replicas: b.Replicas, Origin: from, ModifyIndex: b.CAS, Time: at},
			fmt.Sprintf("%s of variant %q", plural(*b.Replicas, "replica"), b.Variant)
	}
	return &state.SetScale{Model: model, Replicas: b.Replicas, Origin: from, ModifyIndex: b.CAS, Time: at}, plural(*b.Replicas, "replica") + " of the model"
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
	cmd, what := body.command(name, from, s.cfg.Now())
	in := map[string]string{"before": strconv.Itoa(before.Replicas), "variant": body.Variant, "origin": string(from)}
	if body.Variants == nil {
		in["asked"] = strconv.Itoa(*body.Replicas)
	} else {
		in["asked"] = state.VariantsText(body.Variants)
	}
	who := by(rq.token)
	if rq.token == nil && from == state.OriginAutoscaler {
		who = "the autoscaler"
	}
	res, err := s.decide(rq, cmd, state.Decision{Model: name, Kind: "scale", Inputs: in,
		Reason: fmt.Sprintf("%s asked for %s (was %d)%s", who, what, before.Replicas, body.says())})
	if err != nil {
		return answer{}, err
	}
	return s.scaled(name, body.Variant, res.Changed)
}
