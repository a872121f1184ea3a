package ui

import (
	"maps"
	"slices"
	"strings"

	"remuda/controller/api"
)

// maxRows is how many rows a table has at most, so that the page of a large cluster stays small.
const maxRows = 200

// overview is what the first page shows.
type overview struct {
	api.Overview
	Filter string
}

// loadOverview reads what cannot be watched: what gateways and shims say.
func loadOverview(v *visit) (any, error) {
	v.unwatched()
	o := overview{Filter: strings.TrimSpace(v.query.Get("q"))}
	var err error
	o.Overview, err = v.api.Overview(v.ctx, api.OverviewQuery{Filter: o.Filter, Limit: maxRows})
	return o, err
}

// rolloutsOf is the status of each variant that is rolled out.
func rolloutsOf(m api.OverviewModel) string {
	var out []string
	for _, variant := range slices.Sorted(maps.Keys(m.Rollouts)) {
		out = append(out, variant+" "+m.Rollouts[variant])
	}
	return strings.Join(out, ", ")
}

// problemName is what a problem is about.
func problemName(p api.Problem) string {
	switch {
	case p.Replica != "":
		return p.Model + " " + short(p.Replica[strings.LastIndexByte(p.Replica, ':')+1:])
	case p.GPU != "":
		return p.NodeName + " " + p.GPU
	case p.Node != "":
		return p.NodeName
	}
	return p.Model
}

// problemLink is the page that shows what a problem is about.
func problemLink(p api.Problem) string {
	if p.Node != "" {
		return nodeLink(p.Node)
	}
	return modelLink(p.Model)
}
