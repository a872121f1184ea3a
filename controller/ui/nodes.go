package ui

import (
	"strings"

	"remuda/controller/api"
)

// nodesData is what the page of nodes shows.
type nodesData struct {
	// Nodes are the first ones that match Filter, with maxRows GPUs or a few more. More: there are others.
	Nodes  []api.Node
	More   bool
	Filter string
}

func loadNodes(v *visit) (any, error) {
	d := nodesData{Filter: strings.TrimSpace(v.query.Get("q"))}
	nodes, meta, err := v.api.Nodes(v.ctx, api.NodeFilter{Text: d.Filter, Limit: maxNodes + 1}, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	gpus := 0
	for _, n := range nodes {
		if gpus >= maxRows || len(d.Nodes) == maxNodes {
			d.More = true
			break
		}
		d.Nodes = append(d.Nodes, n)
		gpus += len(n.GPUs)
	}
	return d, nil
}

// maxNodes is how many nodes the page has at most, so that it stays small.
const maxNodes = 50

func watchNodes(v *visit) (api.QueryMeta, error) {
	_, meta, err := v.api.Nodes(v.ctx, api.NodeFilter{Limit: 1}, v.watch)
	return meta, err
}
