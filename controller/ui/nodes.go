package ui

import (
	"strings"

	"remuda/controller/api"
)

// nodesData is what the page of nodes shows.
type nodesData struct {
	Nodes []api.Node
	// Total is how many nodes match Filter; Nodes has the first of them, with maxRows GPUs or a
	// few more.
	Total  int
	Filter string
}

func loadNodes(v *visit) (any, error) {
	nodes, meta, err := v.api.Nodes(v.ctx, v.watch)
	if err != nil {
		return nil, err
	}
	v.index = meta.Index
	d := nodesData{Filter: strings.TrimSpace(v.query.Get("q"))}
	gpus := 0
	for _, n := range nodes {
		if d.Filter != "" && !strings.Contains(n.Name, d.Filter) && !strings.HasPrefix(n.ID, d.Filter) {
			continue
		}
		if d.Total++; gpus < maxRows {
			d.Nodes = append(d.Nodes, n)
			gpus += len(n.GPUs)
		}
	}
	return d, nil
}
