package ui

import (
	"slices"

	"remuda/controller/api"
)

// searched is in how many of the newest decisions a kind is looked for.
const searched = 1000

// decisionData is what the page of decisions shows.
type decisionData struct {
	Model, Node, Kind string
	// Kinds are those that the newest decisions have.
	Kinds     []string
	Decisions []api.Decision
}

func loadDecisions(v *visit) (any, error) {
	d := decisionData{Model: v.query.Get("model"), Node: v.query.Get("node"), Kind: v.query.Get("kind")}
	found, meta, err := v.api.Decisions(v.ctx, api.DecisionFilter{Model: d.Model, Node: d.Node, Limit: searched}, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	for _, decision := range found {
		if !slices.Contains(d.Kinds, decision.Kind) {
			d.Kinds = append(d.Kinds, decision.Kind)
		}
		if (d.Kind == "" || decision.Kind == d.Kind) && len(d.Decisions) < maxRows {
			d.Decisions = append(d.Decisions, decision)
		}
	}
	if d.Kind != "" && !slices.Contains(d.Kinds, d.Kind) {
		d.Kinds = append(d.Kinds, d.Kind)
	}
	slices.Sort(d.Kinds)
	return d, nil
}

func watchDecisions(v *visit) (api.QueryMeta, error) {
	_, meta, err := v.api.Decisions(v.ctx, api.DecisionFilter{Limit: 1}, v.watch)
	return meta, err
}
